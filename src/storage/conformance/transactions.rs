//! Commits: whole or not at all, one after the other, and none hurt by another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinSet;

use super::Harness;
use super::tools::{
    Hold, Increment, MEETING, Meeting, ReadNote, Write, all, check_feed, entry, index, key, log,
    named, open, record, request, revision, rows, tenant, text, write,
};
use crate::domain::id::Tenant;
use crate::domain::log::RowClass;
use crate::domain::revision::Revision;
use crate::storage::{
    Abort, Changes, Direction, Error, Index, Kind, Operation, Query, Reads, Result, Store, Stretch,
};

fn touch(name: &str) -> Write {
    Write::record(Kind::Session, &key(name), name)
}

/// Without a gap, and whatever other tenants do.
pub async fn revisions_count_one_by_one_for_each_tenant(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenants = [named("a"), named("b"), named("c")];
    let mut calls = JoinSet::new();
    for round in 0..90 {
        let store = Arc::clone(&store);
        let tenant = tenants[round % 3].clone();
        calls.spawn(async move {
            let name = format!("r{round}");
            let commit = match round % 9 {
                0 => touch(&name).refused(),
                1 => Write::new(),
                _ => touch(&name).put(Kind::Thread, &key(&name), b"x"),
            };
            let outcome = store.transact(&tenant, commit).await;
            (tenant, outcome.ok().map(|c| (c.revision, c.output)))
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = calls.join_next().await {
        outcomes.push(outcome.unwrap());
    }
    for tenant in &tenants {
        let mut revisions: Vec<i64> = outcomes
            .iter()
            .filter(|(of, _)| of == tenant)
            .filter_map(|(_, outcome)| *outcome)
            // What an operation saw is what came right before it.
            .filter(|(revision, seen)| {
                let changed = *revision != *seen;
                assert!(
                    !changed || seen.next() == *revision,
                    "{revision} after {seen}"
                );
                changed
            })
            .map(|(revision, _)| revision.get())
            .collect();
        revisions.sort_unstable();
        let newest = i64::try_from(revisions.len()).unwrap();
        assert_eq!(revisions, (1..=newest).collect::<Vec<_>>());
        assert_eq!(revision(&store, tenant).await.get(), newest);
        check_feed(&store, tenant).await;
    }
    assert_eq!(store.tenants().await.unwrap(), tenants);
}

/// Whatever is asked for, with the same names.
pub async fn a_tenant_sees_nothing_of_another(harness: &dyn Harness) {
    let store = open(harness).await;
    // Names of which one starts with the other must not run into each other.
    let tenants = [named("acme"), named("acme2"), named("acm")];
    for (number, tenant) in tenants.iter().enumerate().take(2) {
        let body = format!("of {number}");
        let places = [entry(Index::SessionSaved, "same")];
        let commit = Write::new()
            .put_indexed(Kind::Session, &key("same"), body.as_bytes(), &[], &places)
            .row(log(1), RowClass::Item, 1, &body)
            .request(&key("same"), &body);
        write(&store, tenant, commit).await;
    }
    for (number, tenant) in tenants.iter().enumerate() {
        let body = format!("of {number}");
        let there = usize::from(number < 2);
        let found = record(&store, tenant, Kind::Session, key("same"), Revision::LATEST).await;
        assert_eq!(
            found.map(|v| v.body),
            (there == 1).then(|| body.clone().into())
        );
        let whole = Stretch {
            prefix: Bytes::new(),
            after: None,
            direction: Direction::Forward,
            limit: 99,
        };
        let hits = index(&store, tenant, Index::SessionSaved, whole).await;
        assert_eq!(hits.len(), there);
        let rows = rows(&store, tenant, log(1), RowClass::Item, 0, 9).await;
        let rows: Vec<Bytes> = rows.into_iter().map(|row| row.body).collect();
        assert_eq!(rows, vec![Bytes::from(body.clone()); there]);
        let found = request(&store, tenant, key("same")).await;
        assert_eq!(found.map(|r| r.body), (there == 1).then(|| body.into()));
        let (newest, entries) = all(&store, tenant).await;
        assert_eq!(
            (newest.get(), entries.len()),
            (i64::try_from(there).unwrap(), there)
        );
    }
    assert_eq!(
        store.tenants().await.unwrap(),
        [named("acme"), named("acme2")]
    );
}

/// No change, no revision, no tenant.
pub async fn a_refused_operation_leaves_nothing(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let refused = || touch("a").request(&key("id"), "receipt").refused();
    let outcome = store.transact(&tenant, refused()).await;
    assert!(matches!(outcome, Err(Abort::Refused(_))), "{outcome:?}");
    assert!(store.tenants().await.unwrap().is_empty());
    write(&store, &tenant, touch("b")).await;
    let outcome = store.transact(&tenant, refused()).await;
    assert!(matches!(outcome, Err(Abort::Refused(_))), "{outcome:?}");
    assert_eq!(revision(&store, &tenant).await, Revision::new(1));
    assert_eq!(text(&store, &tenant, Kind::Session, "a").await, "(none)");
    assert_eq!(request(&store, &tenant, key("id")).await, None);
}

/// It answers the newest one, and a request id stays free.
pub async fn an_operation_without_changes_takes_no_revision(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let nothing = || Write::new().request(&key("id"), "receipt");
    let committed = write(&store, &tenant, nothing()).await;
    assert_eq!(committed.revision, Revision::ZERO);
    assert!(store.tenants().await.unwrap().is_empty());
    write(&store, &tenant, touch("a")).await;
    let committed = write(&store, &tenant, nothing()).await;
    assert_eq!(committed.revision, Revision::new(1));
    assert_eq!(request(&store, &tenant, key("id")).await, None);
    assert_eq!(revision(&store, &tenant).await, Revision::new(1));
}

/// Rows that no record refers to would never be found again.
pub async fn a_commit_without_a_record_is_refused(harness: &dyn Harness) {
    let store = open(harness).await;
    let only_rows = Write::new().row(log(1), RowClass::Item, 1, "x");
    let outcome = store.transact(&tenant(), only_rows).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
        "{outcome:?}"
    );
    assert!(
        rows(&store, &tenant(), log(1), RowClass::Item, 0, 9)
            .await
            .is_empty()
    );
}

/// A commit that breaks a constraint, with all that it would have changed before.
fn broken_commit() -> Write {
    let places = [entry(Index::SessionSaved, "broken")];
    Write::new()
        .put_indexed(Kind::Session, &key("broken"), b"x", &[], &places)
        .request(&key("broken"), "receipt")
        .row(log(9), RowClass::Item, 1, "x")
        .row(log(9), RowClass::Item, 1, "y")
}

async fn assert_nothing_of_the_broken_commit(store: &Arc<dyn Store>, tenant: &Tenant) {
    assert_eq!(text(store, tenant, Kind::Session, "broken").await, "(none)");
    assert_eq!(request(store, tenant, key("broken")).await, None);
    assert!(
        rows(store, tenant, log(9), RowClass::Item, 0, 9)
            .await
            .is_empty()
    );
    let whole = Stretch {
        prefix: Bytes::from_static(b"broken"),
        after: None,
        direction: Direction::Forward,
        limit: 9,
    };
    assert!(
        index(store, tenant, Index::SessionSaved, whole)
            .await
            .is_empty()
    );
}

/// Not even what was stored before the part that fails.
pub async fn a_commit_that_fails_leaves_nothing(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    write(&store, &tenant, touch("a")).await;
    let outcome = store.transact(&tenant, broken_commit()).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
        "{outcome:?}"
    );
    assert_nothing_of_the_broken_commit(&store, &tenant).await;
    let next = write(&store, &tenant, touch("a")).await;
    assert_eq!(next.revision, Revision::new(2));
    check_feed(&store, &tenant).await;
}

/// A tenant is made by its first commit, also when that comes right after one that
/// failed.
pub async fn a_tenant_whose_first_commit_failed_is_unknown(harness: &dyn Harness) {
    let store = open(harness).await;
    let (new, never) = (named("new"), named("never"));
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for (tenant, commit) in [
        (&new, broken_commit()),
        (&never, broken_commit()),
        (&new, touch("a")),
        (&new, touch("b")),
    ] {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        calls.spawn(async move { store.transact(&tenant, commit).await.is_ok() });
    }
    hold.release().await;
    let mut stored = 0;
    while let Some(ok) = calls.join_next().await {
        stored += i32::from(ok.unwrap());
    }
    assert_eq!(stored, 2);
    assert_eq!(store.tenants().await.unwrap(), std::slice::from_ref(&new));
    assert_eq!(revision(&store, &new).await, Revision::new(2));
    assert_eq!(revision(&store, &never).await, Revision::ZERO);
    assert_nothing_of_the_broken_commit(&store, &new).await;
    for name in ["a", "b"] {
        assert_eq!(text(&store, &new, Kind::Session, name).await, name);
    }
    check_feed(&store, &new).await;
}

/// Two operations read the same version before either of them writes.
pub async fn overlapping_updates_lose_none(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let meeting = Meeting::of(2);
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let increment = Increment {
            name: "note".into(),
            meeting: Some(Arc::clone(&meeting)),
        };
        calls.spawn(async move { store.transact(&tenant, increment).await.unwrap().output });
    }
    let mut counts: Vec<i64> = calls.join_all().await;
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
    let note = store.read(&tenant, ReadNote("note")).await.unwrap();
    assert_eq!(note.unwrap().count, 2);
    check_feed(&store, &tenant).await;
}

/// Also those that were made just before, in one group with it.
pub async fn an_operation_sees_all_commits_before_it(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let increment = Increment {
            name: "note".into(),
            meeting: None,
        };
        calls.spawn(async move { store.transact(&tenant, increment).await.unwrap().output });
    }
    hold.release().await;
    let mut counts = calls.join_all().await;
    counts.sort_unstable();
    assert_eq!(counts, (1..=50).collect::<Vec<_>>());
    check_feed(&store, &tenant).await;
}

/// The members around one that goes wrong, and that one.
async fn among_others(store: &Arc<dyn Store>, wrong: Write) -> Result<(), Abort> {
    let tenant = tenant();
    let hold = Hold::on(store).await;
    let mut calls = JoinSet::new();
    let mut victim = None;
    for number in 0..7 {
        let (store, tenant) = (Arc::clone(store), tenant.clone());
        if number == 3 {
            let wrong = wrong.clone();
            victim = Some(tokio::spawn(
                async move { store.transact(&tenant, wrong).await },
            ));
        } else {
            let commit = touch(&format!("m{number}"));
            calls.spawn(async move { store.transact(&tenant, commit).await });
        }
        // They come in this order.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    hold.release().await;
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(revision(store, &tenant).await, Revision::new(6));
    for number in [0, 1, 2, 4, 5, 6] {
        let name = format!("m{number}");
        assert_eq!(text(store, &tenant, Kind::Session, &name).await, name);
    }
    assert_nothing_of_the_broken_commit(store, &tenant).await;
    check_feed(store, &tenant).await;
    victim.unwrap().await.unwrap().map(drop)
}

/// It fails, and the others do not.
pub async fn a_member_that_panics_harms_no_other(harness: &dyn Harness) {
    let store = open(harness).await;
    let outcome = among_others(&store, broken_commit().panicking()).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
        "{outcome:?}"
    );
    write(&store, &tenant(), touch("after")).await;
}

/// It fails, and the others do not.
pub async fn a_member_that_fails_harms_no_other(harness: &dyn Harness) {
    let store = open(harness).await;
    let outcome = among_others(&store, broken_commit()).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
        "{outcome:?}"
    );
    write(&store, &tenant(), touch("after")).await;
}

#[derive(Debug)]
struct PanickingQuery;

#[async_trait]
impl Query for PanickingQuery {
    type Output = ();

    async fn run(&self, reads: &mut dyn Reads) -> Result<(), Abort> {
        reads.revision().await?;
        panic!("a panic, as asked")
    }
}

/// The store goes on, for reads and for writes.
pub async fn a_query_that_panics_harms_no_other(harness: &dyn Harness) {
    let store = open(harness).await;
    write(&store, &tenant(), touch("before")).await;
    for _ in 0..3 {
        let outcome = store.read(&tenant(), PanickingQuery).await;
        assert!(
            matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
            "{outcome:?}"
        );
    }
    write(&store, &tenant(), touch("after")).await;
    assert_eq!(
        text(&store, &tenant(), Kind::Session, "after").await,
        "after"
    );
    store.ready().await.unwrap();
}

/// Reads the same thing twice, and waits for a commit in between.
#[derive(Debug)]
struct Stare(Arc<Meeting>);

#[async_trait]
impl Query for Stare {
    type Output = [(Revision, Option<Bytes>); 2];

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let mut seen = Vec::new();
        for _ in 0..2 {
            let version = reads
                .record(Kind::Session, &key("a"), Revision::LATEST)
                .await?;
            seen.push((reads.revision().await?, version.map(|version| version.body)));
            if seen.len() == 1 {
                // The query has begun, …
                self.0.attend();
                // … and the commit is made.
                std::thread::sleep(MEETING / 2);
            }
        }
        Ok([seen[0].clone(), seen[1].clone()])
    }
}

/// Whatever is committed while it runs.
pub async fn a_query_sees_one_snapshot(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    write(
        &store,
        &tenant,
        Write::record(Kind::Session, &key("a"), "old"),
    )
    .await;
    let meeting = Meeting::of(2);
    let query = {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let query = Stare(Arc::clone(&meeting));
        tokio::spawn(async move { store.read(&tenant, query).await.unwrap() })
    };
    let arrive = Arc::clone(&meeting);
    tokio::task::spawn_blocking(move || arrive.attend())
        .await
        .unwrap();
    write(
        &store,
        &tenant,
        Write::record(Kind::Session, &key("a"), "new"),
    )
    .await;
    let [first, second] = query.await.unwrap();
    assert_eq!(first, second);
    assert_eq!(text(&store, &tenant, Kind::Session, "a").await, "new");
}

/// What it asked for is done whole or not at all.
pub async fn a_caller_that_stops_waiting_harms_no_other(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let hold = Hold::on(&store).await;
    let mut gone = Vec::new();
    let mut calls = JoinSet::new();
    for number in 0..6 {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let name = format!("m{number}");
        let commit = touch(&name).put(Kind::Thread, &key(&name), b"x");
        if number % 2 == 0 {
            gone.push(tokio::spawn(async move {
                store.transact(&tenant, commit).await
            }));
        } else {
            calls.spawn(async move { store.transact(&tenant, commit).await });
        }
    }
    tokio::time::sleep(MEETING / 4).await;
    for call in gone {
        call.abort();
    }
    hold.release().await;
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    for number in 0..6 {
        let name = format!("m{number}");
        let session = text(&store, &tenant, Kind::Session, &name).await;
        let thread = text(&store, &tenant, Kind::Thread, &name).await;
        assert_eq!(session == "(none)", thread == "(none)", "{name}");
        assert!(number % 2 == 0 || session == name);
    }
    check_feed(&store, &tenant).await;
}

/// Over any connection, and by anybody.
pub async fn what_was_answered_is_read_by_whoever_asks_next(harness: &dyn Harness) {
    let store = open(harness).await;
    let mut calls = JoinSet::new();
    for caller in 0..8 {
        let store = Arc::clone(&store);
        calls.spawn(async move {
            let tenant = named(&format!("t{}", caller % 2));
            for round in 0..20 {
                let name = format!("{caller}-{round}");
                let committed = write(&store, &tenant, touch(&name)).await;
                assert_eq!(text(&store, &tenant, Kind::Session, &name).await, name);
                assert!(revision(&store, &tenant).await >= committed.revision);
            }
        });
    }
    calls.join_all().await;
}

#[derive(Debug)]
struct NothingToDo;

#[async_trait]
impl Operation for NothingToDo {
    type Output = ();

    async fn run(&self, _reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        Ok((Changes::default(), ()))
    }
}

/// What was begun is finished first.
pub async fn a_closed_store_answers_unavailable(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    store.ready().await.unwrap();
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for number in 0..4 {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let commit = touch(&format!("m{number}"));
        calls.spawn(async move { store.transact(&tenant, commit).await });
    }
    tokio::time::sleep(MEETING / 4).await;
    let closing = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.close().await })
    };
    hold.release().await;
    closing.await.unwrap();
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    let late = store.transact(&tenant, NothingToDo).await;
    assert!(
        matches!(late, Err(Abort::Store(Error::Unavailable(_)))),
        "{late:?}"
    );
    let late = store.read(&tenant, ReadNote("a")).await;
    assert!(
        matches!(late, Err(Abort::Store(Error::Unavailable(_)))),
        "{late:?}"
    );
    assert!(matches!(store.ready().await, Err(Error::Unavailable(_))));
    assert!(matches!(store.tenants().await, Err(Error::Unavailable(_))));
    // Once more is no harm.
    store.close().await;
}
