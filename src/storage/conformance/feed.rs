//! The change feed.

use std::sync::Arc;
use std::time::Duration;

use super::Harness;
use super::tools::{
    Write, all, chain, check_feed, feed, key, named, open, revision, tenant, write,
};
use crate::domain::id::Tenant;
use crate::domain::log::Digest;
use crate::domain::revision::Revision;
use crate::storage::{FeedEntry, Kind, Store, integrity};

fn shape(entries: &[FeedEntry]) -> String {
    let entries = entries.iter().map(|entry| {
        let key = String::from_utf8_lossy(entry.key.as_bytes());
        format!("{}{key}", entry.version.revision)
    });
    entries.collect::<Vec<_>>().join(" ")
}

/// Four commits, of 2, 1, 3 and 1 changes.
async fn fill(store: &Arc<dyn Store>, tenant: &Tenant) {
    for commit in [
        Write::record(Kind::Session, &key("b"), "1").put(Kind::Interrupt, &key("a"), b"1"),
        Write::record(Kind::Session, &key("c"), "2"),
        Write::record(Kind::Interrupt, &key("a"), "3")
            .put(Kind::TimelineEntry, &key("t"), b"3")
            .put(Kind::Session, &key("b"), b"3"),
        Write::record(Kind::Interrupt, &key("z"), "4"),
    ] {
        write(store, tenant, commit).await;
    }
}

/// The changes of a commit come in the order in which the operation made them.
pub async fn changes_come_in_commit_order(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    fill(&store, &tenant).await;
    let find = async |after, until| {
        let (after, until) = (Revision::new(after), Revision::new(until));
        shape(&feed(&store, &tenant, Kind::ALL.to_vec(), after, until, 99).await)
    };
    assert_eq!(find(0, 99).await, "1b 1a 2c 3a 3t 3b 4z");
    assert_eq!(find(1, 3).await, "2c 3a 3t 3b");
    assert_eq!(find(2, 2).await, "");
    assert_eq!(find(4, 99).await, "");
    let (_, entries) = all(&store, &tenant).await;
    assert_eq!(entries[3].version.body, "3");
    assert_eq!(entries[3].kind, Kind::Interrupt);
}

/// A page ends between two commits, also if it gets longer than asked for.
pub async fn a_commit_is_never_parted(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    fill(&store, &tenant).await;
    let find = async |after, limit| {
        let (after, until) = (Revision::new(after), Revision::LATEST);
        shape(&feed(&store, &tenant, Kind::ALL.to_vec(), after, until, limit).await)
    };
    assert_eq!(find(0, 1).await, "1b 1a");
    assert_eq!(find(0, 2).await, "1b 1a");
    assert_eq!(find(0, 3).await, "1b 1a 2c");
    assert_eq!(find(0, 4).await, "1b 1a 2c 3a 3t 3b");
    assert_eq!(find(2, 1).await, "3a 3t 3b");
    assert_eq!(find(3, 1).await, "4z");
    assert_eq!(find(0, 0).await, "");
    let interrupts = vec![Kind::Interrupt, Kind::TimelineEntry];
    let found = feed(
        &store,
        &tenant,
        interrupts,
        Revision::ZERO,
        Revision::LATEST,
        2,
    )
    .await;
    assert_eq!(shape(&found), "1a 3a 3t");
}

/// Others are as if they were not there.
pub async fn only_the_kinds_asked_for_come(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    fill(&store, &tenant).await;
    let find = async |kinds: &[Kind]| {
        let (after, until) = (Revision::ZERO, Revision::LATEST);
        shape(&feed(&store, &tenant, kinds.to_vec(), after, until, 99).await)
    };
    assert_eq!(find(&[Kind::Interrupt]).await, "1a 3a 4z");
    assert_eq!(
        find(&[Kind::TimelineEntry, Kind::Session]).await,
        "1b 2c 3t 3b"
    );
    assert_eq!(find(&[Kind::Grant]).await, "");
    assert_eq!(find(&[]).await, "");
}

/// Leaving a change out, or putting another in its place, breaks it.
pub async fn the_chain_links_all_changes(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    fill(&store, &tenant).await;
    check_feed(&store, &tenant).await;
    let (_, entries) = all(&store, &tenant).await;
    for left_out in 0..entries.len() - 1 {
        let mut entries = entries.clone();
        entries.remove(left_out);
        integrity::check_feed(&tenant, Digest::default(), &entries).unwrap_err();
    }
    // The same changes of another tenant, or in another order, end elsewhere.
    let other = named("other");
    let swapped =
        Write::record(Kind::Interrupt, &key("a"), "1").put(Kind::Session, &key("b"), b"1");
    write(&store, &other, swapped).await;
    let ends = [
        chain(&store, &tenant, Revision::new(1)).await,
        chain(&store, &other, Revision::new(1)).await,
    ];
    assert_ne!(ends[0], ends[1]);
}

/// It is what a cursor is compared with.
pub async fn the_chain_is_known_at_each_commit_and_at_no_other(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    fill(&store, &tenant).await;
    let (_, entries) = all(&store, &tenant).await;
    for commit in 1..=4 {
        let commit = Revision::new(commit);
        let last = entries
            .iter()
            .rfind(|entry| entry.version.revision == commit);
        let expected = last.map(|entry| entry.chain);
        assert_eq!(chain(&store, &tenant, commit).await, expected);
    }
    for other in [Revision::ZERO, Revision::new(5), Revision::LATEST] {
        assert_eq!(chain(&store, &tenant, other).await, None);
    }
}

/// And by the time it does, the commit can be read.
pub async fn a_commit_wakes_who_waits(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let mut commits = store.commits(&tenant);
    let seen = *commits.borrow_and_update();
    assert!(seen <= revision(&store, &tenant).await);
    let writer = {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        tokio::spawn(async move { fill(&store, &tenant).await })
    };
    let deadline = Duration::from_secs(10);
    let mut newest = Revision::ZERO;
    while newest < Revision::new(4) {
        tokio::time::timeout(deadline, commits.changed())
            .await
            .unwrap()
            .unwrap();
        newest = *commits.borrow_and_update();
        assert!(newest <= revision(&store, &tenant).await);
    }
    writer.await.unwrap();
}
