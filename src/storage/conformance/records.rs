//! Records and their versions.

use std::sync::Arc;

use bytes::Bytes;

use super::Harness;
use super::tools::{
    HandClock, Note, Write, check_feed, entry, index, key, named, open, record, records, revision,
    tenant, text, write,
};
use crate::domain::id::Tenant;
use crate::domain::revision::Revision;
use crate::storage::typed::{self, ChangeSet, Loaded};
use crate::storage::{
    Abort, Changes, Direction, Index, Key, Kind, Operation, Reads, Result, Store, Stretch, Version,
};
use async_trait::async_trait;

fn bodies(found: &[(Key, Version)]) -> Vec<&str> {
    let bodies = found.iter().map(|(_, version)| &*version.body);
    bodies
        .map(|body| std::str::from_utf8(body).unwrap())
        .collect()
}

fn stretch(prefix: &[u8], direction: Direction, limit: usize) -> Stretch {
    Stretch {
        prefix: Bytes::copy_from_slice(prefix),
        after: None,
        direction,
        limit,
    }
}

/// A look-up of what was never stored finds nothing, and makes nothing.
pub async fn an_absent_record_is_none(harness: &dyn Harness) {
    let store = open(harness).await;
    let found = record(&store, &tenant(), Kind::Session, key("a"), Revision::LATEST).await;
    assert_eq!(found, None);
    assert_eq!(revision(&store, &tenant()).await, Revision::ZERO);
    assert!(store.tenants().await.unwrap().is_empty());
}

/// Each version is the state from its revision up to the next one.
pub async fn a_version_is_read_at_every_revision_until_the_next(harness: &dyn Harness) {
    let clock = HandClock::at(1_000_000);
    let store = harness.open(clock.clone()).await;
    let (tenant, key) = (tenant(), key("a"));
    for (time, body) in (2..).zip(["one", "", "two", "three"]) {
        clock.set(time * 1_000_000);
        let other = if body.is_empty() { Some("other") } else { None };
        let commit = match other {
            Some(other) => Write::record(Kind::Session, &super::tools::key(other), "x"),
            None => Write::record(Kind::Session, &key, body),
        };
        write(&store, &tenant, commit).await;
    }
    let at = async |revision: Revision| {
        let version = record(&store, &tenant, Kind::Session, key.clone(), revision).await?;
        Some((
            version.revision.get(),
            version.at.as_micros() / 1_000_000,
            String::from_utf8(version.body.to_vec()).unwrap(),
        ))
    };
    assert_eq!(at(Revision::ZERO).await, None);
    assert_eq!(at(Revision::new(1)).await, Some((1, 2, "one".into())));
    assert_eq!(at(Revision::new(2)).await, Some((1, 2, "one".into())));
    assert_eq!(at(Revision::new(3)).await, Some((3, 4, "two".into())));
    assert_eq!(at(Revision::new(4)).await, Some((4, 5, "three".into())));
    assert_eq!(at(Revision::new(9)).await, Some((4, 5, "three".into())));
    assert_eq!(at(Revision::LATEST).await, Some((4, 5, "three".into())));
}

/// Stores a note twice, the second time under another index entry.
#[derive(Debug)]
struct Twice {
    /// Whether the second one is stored as if it were new.
    anew: bool,
}

#[async_trait]
impl Operation for Twice {
    type Output = ();

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        let mut note: Loaded<Note> = typed::load(reads, &key("note")).await?.unwrap();
        let mut changes = ChangeSet::new(reads.tenant());
        note.value.text = "second".into();
        changes.update(&note)?;
        note.value.text = "third".into();
        if self.anew {
            changes.insert(&note.value)?;
        } else {
            changes.update(&note)?;
        }
        Ok((changes.finish(), ()))
    }
}

/// Of a record that a commit stores twice, only the second is ever seen.
pub async fn a_record_stored_twice_in_a_commit_is_the_second(harness: &dyn Harness) {
    let store = open(harness).await;
    for (tenant, anew) in [(tenant(), false), (named("other"), true)] {
        store_twice(&store, &tenant, anew).await;
    }
}

async fn store_twice(store: &Arc<dyn Store>, tenant: &Tenant, anew: bool) {
    let first = serde_json::to_vec(&Note::new("note", "first")).unwrap();
    let places = [entry(Index::SessionSaved, "first")];
    let insert = Write::new().put_indexed(Kind::Session, &key("note"), &first, &[], &places);
    write(store, tenant, insert).await;
    store.transact(tenant, Twice { anew }).await.unwrap();
    let all = stretch(b"", Direction::Forward, 10);
    let found = index(store, tenant, Index::SessionSaved, all).await;
    let places: Vec<&[u8]> = found.iter().map(|hit| &*hit.place).collect();
    assert_eq!(places, [b"third"]);
    assert_eq!(revision(store, tenant).await, Revision::new(2));
    check_feed(store, tenant).await;
}

/// Changes that were not collected properly are refused whole.
pub async fn one_record_twice_in_raw_changes_is_refused(harness: &dyn Harness) {
    let store = open(harness).await;
    let twice = Write::record(Kind::Session, &key("a"), "1").put(Kind::Session, &key("a"), b"2");
    let outcome = store.transact(&tenant(), twice).await;
    assert!(matches!(outcome, Err(Abort::Store(_))), "{outcome:?}");
    assert_eq!(revision(&store, &tenant()).await, Revision::ZERO);
    assert_eq!(text(&store, &tenant(), Kind::Session, "a").await, "(none)");
}

async fn store_many(store: &Arc<dyn Store>, tenant: &Tenant) {
    for name in ["b1", "a", "b3", "c", "b2", "b"] {
        write(store, tenant, Write::record(Kind::Thread, &key(name), name)).await;
    }
}

/// In both directions, and only those with the prefix.
pub async fn records_come_in_the_order_of_their_keys(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    store_many(&store, &tenant).await;
    let find = async |prefix: &'static [u8], direction, limit, at| {
        let found = records(
            &store,
            &tenant,
            Kind::Thread,
            stretch(prefix, direction, limit),
            at,
        );
        bodies(&found.await).join(" ")
    };
    let (forward, backward, latest) = (Direction::Forward, Direction::Backward, Revision::LATEST);
    assert_eq!(find(b"", forward, 9, latest).await, "a b b1 b2 b3 c");
    assert_eq!(find(b"", backward, 9, latest).await, "c b3 b2 b1 b a");
    assert_eq!(find(b"b", forward, 9, latest).await, "b b1 b2 b3");
    assert_eq!(find(b"b", backward, 2, latest).await, "b3 b2");
    assert_eq!(find(b"b2", forward, 9, latest).await, "b2");
    assert_eq!(find(b"d", forward, 9, latest).await, "");
    assert_eq!(find(b"", forward, 0, latest).await, "");
    // As it was before the last two.
    assert_eq!(find(b"b", forward, 9, Revision::new(4)).await, "b1 b3");
    // A changed record is there once, as it was then and as it is now.
    let change = Write::record(Kind::Thread, &key("b1"), "new");
    write(&store, &tenant, change).await;
    assert_eq!(find(b"b", backward, 9, latest).await, "b3 b2 new b");
    assert_eq!(find(b"b", forward, 2, Revision::new(6)).await, "b b1");
}

/// Going on after the last one of a page gives all, once.
pub async fn pages_of_records_neither_repeat_nor_skip(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    store_many(&store, &tenant).await;
    for direction in [Direction::Forward, Direction::Backward] {
        for prefix in [b"".as_slice(), b"b"] {
            let whole = records(
                &store,
                &tenant,
                Kind::Thread,
                stretch(prefix, direction, 99),
                Revision::LATEST,
            );
            let whole = whole.await;
            let mut pages = Vec::new();
            let mut next = stretch(prefix, direction, 2);
            loop {
                let latest = Revision::LATEST;
                let page = records(&store, &tenant, Kind::Thread, next.clone(), latest).await;
                let Some((last, _)) = page.last() else { break };
                next.after = Some(Bytes::copy_from_slice(last.as_bytes()));
                assert!(page.len() <= 2);
                pages.extend(page);
                assert!(pages.len() <= whole.len(), "pages without end");
            }
            assert_eq!(bodies(&pages), bodies(&whole));
        }
    }
    // A position outside of the prefix is a position all the same.
    let outside = |after: &'static [u8], direction| Stretch {
        after: Some(Bytes::from_static(after)),
        ..stretch(b"b", direction, 9)
    };
    for (after, direction, expected) in [
        (b"a", Direction::Forward, "b b1 b2 b3"),
        (b"c", Direction::Forward, ""),
        (b"c", Direction::Backward, "b3 b2 b1 b"),
        (b"a", Direction::Backward, ""),
    ] {
        let stretch = outside(after, direction);
        let found = records(&store, &tenant, Kind::Thread, stretch, Revision::LATEST).await;
        assert_eq!(
            bodies(&found).join(" "),
            expected,
            "{after:?} {direction:?}"
        );
    }
}

/// No folding, no trimming, and bytes that are no text are bytes.
pub async fn keys_are_compared_byte_by_byte(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let keys: [&[u8]; 9] = [
        b"",
        b"\0",
        b"A",
        b"a",
        b"a\0",
        b"a ",
        "ä".as_bytes(),
        b"\xff",
        b"\xff\xff\0",
    ];
    for (number, bytes) in keys.iter().enumerate().rev() {
        let key = Key::from_bytes(bytes.to_vec());
        let commit = Write::record(Kind::Writer, &key, &number.to_string());
        write(&store, &tenant, commit).await;
    }
    let find = async |prefix: &[u8], direction| {
        let stretch = stretch(prefix, direction, 99);
        let found = records(&store, &tenant, Kind::Writer, stretch, Revision::LATEST).await;
        bodies(&found).join("")
    };
    assert_eq!(find(b"", Direction::Forward).await, "012345678");
    assert_eq!(find(b"", Direction::Backward).await, "876543210");
    assert_eq!(find(b"a", Direction::Forward).await, "345");
    assert_eq!(find(b"a\0", Direction::Forward).await, "4");
    assert_eq!(find(b"\xff", Direction::Backward).await, "87");
    assert_eq!(find(b"\xff\xff", Direction::Forward).await, "8");
    for (number, bytes) in keys.iter().enumerate() {
        let key = Key::from_bytes(bytes.to_vec());
        let found = record(&store, &tenant, Kind::Writer, key, Revision::LATEST).await;
        assert_eq!(found.unwrap().body, number.to_string());
    }
}

/// Records of two kinds may have one key.
pub async fn kinds_are_apart(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let mut commit = Write::new();
    for kind in Kind::ALL {
        commit = commit.put(kind, &key("same"), kind.name().as_bytes());
    }
    write(&store, &tenant, commit).await;
    for kind in Kind::ALL {
        assert_eq!(text(&store, &tenant, kind, "same").await, kind.name());
        let all = stretch(b"", Direction::Forward, 99);
        let found = records(&store, &tenant, kind, all, Revision::LATEST).await;
        assert_eq!(bodies(&found), [kind.name()]);
    }
}

/// Bodies are bytes: empty ones, and such that are no text.
pub async fn a_body_is_kept_byte_for_byte(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let large: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let bodies: [&[u8]; 4] = [b"", b"\0", b"\xff\xfe{\"a\": 1.0}\r\n", &large];
    for body in bodies {
        let commit = Write::new().put(Kind::Memory, &key("a"), body);
        write(&store, &tenant, commit).await;
        let found = record(&store, &tenant, Kind::Memory, key("a"), Revision::LATEST).await;
        assert_eq!(found.unwrap().body, body);
    }
}

/// There is no way to change one.
pub async fn a_timeline_entry_is_written_once(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let entry = |body| Write::record(Kind::TimelineEntry, &key("entry"), body);
    write(&store, &tenant, entry("first")).await;
    let again = store.transact(&tenant, entry("second")).await;
    assert!(matches!(again, Err(Abort::Store(_))), "{again:?}");
    let same = store.transact(&tenant, entry("first")).await;
    assert!(matches!(same, Err(Abort::Store(_))), "{same:?}");
    let left = text(&store, &tenant, Kind::TimelineEntry, "entry").await;
    assert_eq!(left, "first");
    assert_eq!(revision(&store, &tenant).await, Revision::new(1));
}
