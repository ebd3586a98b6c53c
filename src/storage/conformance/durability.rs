//! Data that outlives the store: it is the same, or it is known not to be.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::tools::{
    HandClock, Increment, Note, ReadNote, Write, all, check_feed, entry, index, key, log, named,
    now, open, request, rows, tenant, write,
};
use super::{Durable, Place, Wound};
use crate::domain::log::{LogId, Origin, Range, RowClass};
use crate::domain::message::{Content, Item, Message, Role};
use crate::domain::revision::Revision;
use crate::storage::typed::{self, ChangeSet, EncodedItem, StoredItem};
use crate::storage::{
    Abort, Changes, Corrupt, Direction, Error, Index, Key, Kind, Operation, Query, Reads,
    RequestRecord, Result, Store, Stretch,
};

/// Every kind of row, the order of commits, and the chain.
pub async fn what_was_committed_is_there_after_a_reopening(harness: &dyn Durable) {
    let store = open(harness).await;
    let tenants = [named("a"), named("b")];
    let whole = || Stretch {
        prefix: Bytes::new(),
        after: None,
        direction: Direction::Forward,
        limit: 99,
    };
    let mut before = Vec::new();
    for tenant in &tenants {
        for number in 1..=5 {
            let name = format!("{number}");
            let places = [entry(Index::SessionSaved, &name)];
            let commit = Write::new()
                .put_indexed(
                    Kind::Session,
                    &key(&name),
                    tenant.as_str().as_bytes(),
                    &[],
                    &places,
                )
                .row(log(1), RowClass::Item, number, &name)
                .request(&key(&name), &name);
            write(&store, tenant, commit).await;
        }
        before.push((
            all(&store, tenant).await,
            index(&store, tenant, Index::SessionSaved, whole()).await,
            rows(&store, tenant, log(1), RowClass::Item, 0, 9).await,
            request(&store, tenant, key("3")).await,
        ));
    }
    store.close().await;
    let store = open(harness).await;
    assert_eq!(store.tenants().await.unwrap(), tenants);
    for (tenant, before) in tenants.iter().zip(before) {
        let after = (
            all(&store, tenant).await,
            index(&store, tenant, Index::SessionSaved, whole()).await,
            rows(&store, tenant, log(1), RowClass::Item, 0, 9).await,
            request(&store, tenant, key("3")).await,
        );
        assert_eq!(after, before);
        // And it goes on where it ended.
        let next = write(&store, tenant, Write::record(Kind::Session, &key("6"), "x")).await;
        assert_eq!(next.revision, Revision::new(6));
        check_feed(&store, tenant).await;
    }
}

/// Or cursors and etags would be void.
pub async fn the_identity_is_the_same_after_a_reopening(harness: &dyn Durable) {
    let store = open(harness).await;
    let before = store.identity();
    assert_ne!(before.secret, [0; 32]);
    store.close().await;
    let store = open(harness).await;
    let after = store.identity();
    assert_eq!((before.epoch, before.secret), (after.epoch, after.secret));
}

/// Also if the clock was set back meanwhile.
pub async fn time_does_not_go_backwards_over_a_reopening(harness: &dyn Durable) {
    let store = harness.open(HandClock::at(5_000_000)).await;
    let touch = || Write::record(Kind::Session, &key("a"), "x");
    write(&store, &tenant(), touch()).await;
    store.close().await;
    let store = harness.open(HandClock::at(2_000_000)).await;
    assert_eq!(now(&store, &tenant()).await.as_micros(), 5_000_000);
    let committed = write(&store, &tenant(), touch()).await;
    assert_eq!(committed.at.as_micros(), 5_000_000);
}

/// Writes one item at the end of a log that it knows the length of.
#[derive(Debug)]
struct AppendItem {
    number: i64,
    item: EncodedItem,
}

#[async_trait]
impl Operation for AppendItem {
    type Output = ();

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        let mut changes = ChangeSet::new(reads.tenant());
        let mut head = crate::domain::log::Head::new(LOG);
        head.last_seq = self.number - 1;
        changes.append_item(&mut head, Origin::Said, &self.item);
        changes.insert(&Note::new("log", &self.number.to_string()))?;
        changes.record_request(
            key(&self.number.to_string()),
            Bytes::from_static(b"receipt"),
        );
        Ok((changes.finish(), ()))
    }
}

const LOG: LogId = LogId(uuid::Uuid::from_u128(7));

/// Reads items as the domain does, checked.
#[derive(Debug)]
struct ReadItems(i64, i64);

#[async_trait]
impl Query for ReadItems {
    type Output = Vec<StoredItem>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Vec<StoredItem>, Abort> {
        let range = Range {
            log: LOG,
            from: self.0,
            to: self.1,
            pinned: None,
        };
        let mut items = Vec::new();
        typed::read_range(reads, &range, &mut items).await?;
        Ok(items)
    }
}

/// Reads the record of a request, checked.
#[derive(Debug)]
struct ReadRequest(Key);

#[async_trait]
impl Query for ReadRequest {
    type Output = Option<RequestRecord>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<RequestRecord>, Abort> {
        Ok(typed::request(reads, &self.0).await?)
    }
}

async fn increment(store: &Arc<dyn Store>, name: &str) -> Result<i64, Abort> {
    let increment = Increment {
        name: name.to_owned(),
        meeting: None,
    };
    Ok(store.transact(&tenant(), increment).await?.output)
}

async fn fill(store: &Arc<dyn Store>) {
    for name in ["a", "b", "b", "c"] {
        increment(store, name).await.unwrap();
    }
    for number in 1..=3 {
        let item = Item::Message(Message {
            id: None,
            role: Role::User,
            content: Content::Text(format!("item {number}")),
            name: None,
            tool_call_id: None,
            tool_name: None,
            pinned: None,
            created_at: None,
            extra_json: None,
        });
        let item = EncodedItem::new(&item).unwrap();
        store
            .transact(&tenant(), AppendItem { number, item })
            .await
            .unwrap();
    }
}

/// Fills a store, closes it, damages it and opens it again.
async fn wounded(harness: &dyn Durable, wound: Wound) -> Arc<dyn Store> {
    let store = open(harness).await;
    fill(&store).await;
    store.close().await;
    harness.damage(wound).await;
    open(harness).await
}

/// The kind and key that a corruption names.
fn corrupt<T>(outcome: Result<T, Abort>) -> (Corrupt, String) {
    match outcome {
        Err(Abort::Store(Error::Corrupt { kind, key, .. })) => (kind, key),
        Err(other) => panic!("another error: {other:?}"),
        Ok(_) => panic!("the damage was not noticed"),
    }
}

/// It is not missing, and it is not what it was.
pub async fn a_damaged_record_is_corrupt_and_the_rest_is_readable(harness: &dyn Durable) {
    let place = Place::Record(tenant(), Kind::Session, key("b"));
    let store = wounded(harness, Wound::Flip(place)).await;
    let outcome = store.read(&tenant(), ReadNote("b")).await;
    assert_eq!(
        corrupt(outcome),
        (Corrupt::Record(Kind::Session), "b".into())
    );
    for name in ["a", "c"] {
        let note = store.read(&tenant(), ReadNote(name)).await.unwrap();
        assert_eq!(note.unwrap().count, 1);
    }
    assert_eq!(
        store.read(&tenant(), ReadItems(1, 3)).await.unwrap().len(),
        3
    );
    assert_eq!(increment(&store, "a").await.unwrap(), 2);
    // The feed says where.
    let (_, entries) = all(&store, &tenant()).await;
    let checked = crate::storage::integrity::check_feed(
        &tenant(),
        crate::domain::log::Digest::default(),
        &entries,
    );
    assert!(matches!(
        checked,
        Err(Error::Corrupt { kind: Corrupt::Record(Kind::Session), key, .. }) if key == "b"
    ));
}

/// The rows before and after it are read as ever.
pub async fn a_damaged_row_is_corrupt_and_the_rest_is_readable(harness: &dyn Durable) {
    let place = Place::Row(tenant(), LOG, RowClass::Item, 2);
    let store = wounded(harness, Wound::Flip(place)).await;
    for (from, to) in [(2, 2), (1, 3)] {
        let outcome = store.read(&tenant(), ReadItems(from, to)).await;
        assert_eq!(corrupt(outcome), (Corrupt::Log, LOG.0.to_string()));
    }
    for number in [1, 3] {
        let items = store.read(&tenant(), ReadItems(number, number)).await;
        assert_eq!(items.unwrap().len(), 1);
    }
    let note = store.read(&tenant(), ReadNote("b")).await.unwrap();
    assert_eq!(note.unwrap().count, 2);
}

/// A repeated call is not answered with something else.
pub async fn a_damaged_request_is_corrupt(harness: &dyn Durable) {
    let place = Place::Request(tenant(), key("2"));
    let store = wounded(harness, Wound::Flip(place)).await;
    let outcome = store.read(&tenant(), ReadRequest(key("2"))).await;
    assert_eq!(corrupt(outcome), (Corrupt::Request, "2".into()));
    let other = store.read(&tenant(), ReadRequest(key("3"))).await.unwrap();
    assert_eq!(other.unwrap().body, "receipt");
}

/// A change of it fails, and leaves the bytes for whoever can mend them.
pub async fn a_damaged_record_is_not_overwritten(harness: &dyn Durable) {
    let place = Place::Record(tenant(), Kind::Session, key("b"));
    let store = wounded(harness, Wound::Flip(place)).await;
    let (newest, entries) = all(&store, &tenant()).await;
    let outcome = increment(&store, "b").await;
    assert_eq!(
        corrupt(outcome),
        (Corrupt::Record(Kind::Session), "b".into())
    );
    assert_eq!(all(&store, &tenant()).await, (newest, entries));
}

/// A record is not taken for another one.
pub async fn a_record_moved_to_another_key_is_corrupt(harness: &dyn Durable) {
    let place = |name| Place::Record(tenant(), Kind::Session, key(name));
    let store = wounded(harness, Wound::Move(place("a"), place("x"))).await;
    let outcome = store.read(&tenant(), ReadNote("x")).await;
    assert_eq!(
        corrupt(outcome),
        (Corrupt::Record(Kind::Session), "x".into())
    );
}

/// Nor for the same one of somebody else.
pub async fn a_record_moved_to_another_tenant_is_corrupt(harness: &dyn Durable) {
    let store = open(harness).await;
    let other = named("other");
    write(&store, &other, Write::record(Kind::Session, &key("y"), "x")).await;
    store.close().await;
    let place = |tenant| Place::Record(tenant, Kind::Session, key("a"));
    let wound = Wound::Move(place(tenant()), place(other.clone()));
    let store = wounded(harness, wound).await;
    let outcome = store.read(&other, ReadNote("a")).await;
    assert_eq!(
        corrupt(outcome),
        (Corrupt::Record(Kind::Session), "a".into())
    );
}

/// The order of a history cannot be changed.
pub async fn a_row_moved_to_another_number_is_corrupt(harness: &dyn Durable) {
    let place = |number| Place::Row(tenant(), LOG, RowClass::Item, number);
    let store = wounded(harness, Wound::Move(place(3), place(4))).await;
    for (from, to) in [(4, 4), (3, 3)] {
        let outcome = store.read(&tenant(), ReadItems(from, to)).await;
        assert_eq!(corrupt(outcome), (Corrupt::Log, LOG.0.to_string()));
    }
}

/// One tenant's answer is never another one's.
pub async fn a_request_moved_to_another_tenant_is_corrupt(harness: &dyn Durable) {
    let store = open(harness).await;
    let other = named("other");
    write(&store, &other, Write::record(Kind::Session, &key("y"), "x")).await;
    store.close().await;
    let place = |tenant| Place::Request(tenant, key("2"));
    let wound = Wound::Move(place(tenant()), place(other.clone()));
    let store = wounded(harness, wound).await;
    let outcome = store.read(&other, ReadRequest(key("2"))).await;
    assert_eq!(corrupt(outcome), (Corrupt::Request, "2".into()));
}
