//! What the cases are made of: operations, queries, a clock that is set by hand,
//! and a way to make calls overlap.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Harness;
use crate::domain::error::{Error as Refusal, Reason};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, Origin, RowClass};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::time::{Clock, Timestamp};
use crate::storage::typed::{self, ChangeSet, Loaded};
use crate::storage::{
    Abort, Append, Changes, Committed, Entity, FeedEntry, Index, IndexEntry, IndexHit, Key, Kind,
    Mark, NewRequest, Operation, Put, Query, Reads, RequestRecord, Result, Row, Store, Stretch,
    Version, integrity,
};

/// How long calls that should overlap wait for each other.
pub const MEETING: Duration = Duration::from_millis(200);

/// The tenant of most cases.
#[must_use]
pub fn tenant() -> Tenant {
    named("tenant")
}

/// A tenant.
#[must_use]
pub fn named(name: &str) -> Tenant {
    Tenant::try_from(name.to_owned()).unwrap()
}

/// A log that is always the same for one `number`.
#[must_use]
pub fn log(number: u128) -> LogId {
    LogId(Uuid::from_u128(number))
}

/// A key of one part.
#[must_use]
pub fn key(name: &str) -> Key {
    Key::of(&[name.as_bytes()])
}

/// An index entry.
#[must_use]
pub fn entry(index: Index, place: &str) -> IndexEntry {
    IndexEntry {
        index,
        place: Bytes::copy_from_slice(place.as_bytes()),
    }
}

/// A clock that is set by hand.
#[derive(Debug)]
pub struct HandClock(AtomicI64);

impl HandClock {
    /// A clock that stands at `micros`.
    #[must_use]
    pub fn at(micros: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(micros)))
    }

    /// Puts the hands.
    pub fn set(&self, micros: i64) {
        self.0.store(micros, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// Opens a store whose clock stands still.
pub async fn open(harness: &dyn Harness) -> Arc<dyn Store> {
    harness.open(HandClock::at(1_000_000)).await
}

/// An operation that stores what it was made with.
#[derive(Clone, Debug, Default)]
pub struct Write {
    puts: Vec<RawPut>,
    appends: Vec<RawAppend>,
    request: Option<(Key, Bytes)>,
    end: End,
}

#[derive(Clone, Debug)]
struct RawPut {
    kind: Kind,
    key: Key,
    body: Bytes,
    unindex: Vec<IndexEntry>,
    index: Vec<IndexEntry>,
}

#[derive(Clone, Debug)]
struct RawAppend {
    log: LogId,
    class: RowClass,
    number: i64,
    body: Bytes,
}

#[derive(Clone, Copy, Debug, Default)]
enum End {
    #[default]
    Changes,
    Refusal,
    Panic,
}

impl Write {
    /// An operation that changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that stores a record.
    #[must_use]
    pub fn record(kind: Kind, key: &Key, body: &str) -> Self {
        Self::new().put(kind, key, body.as_bytes())
    }

    /// Stores a record.
    #[must_use]
    pub fn put(self, kind: Kind, key: &Key, body: &[u8]) -> Self {
        self.put_indexed(kind, key, body, &[], &[])
    }

    /// Stores a record, takes index entries away and adds others.
    #[must_use]
    pub fn put_indexed(
        mut self,
        kind: Kind,
        key: &Key,
        body: &[u8],
        unindex: &[IndexEntry],
        index: &[IndexEntry],
    ) -> Self {
        self.puts.push(RawPut {
            kind,
            key: key.clone(),
            body: Bytes::copy_from_slice(body),
            unindex: unindex.to_vec(),
            index: index.to_vec(),
        });
        self
    }

    /// Writes a row of a log.
    #[must_use]
    pub fn row(mut self, log: LogId, class: RowClass, number: i64, body: &str) -> Self {
        self.appends.push(RawAppend {
            log,
            class,
            number,
            body: Bytes::copy_from_slice(body.as_bytes()),
        });
        self
    }

    /// Records a request.
    #[must_use]
    pub fn request(mut self, key: &Key, body: &str) -> Self {
        self.request = Some((key.clone(), Bytes::copy_from_slice(body.as_bytes())));
        self
    }

    /// Refuses to do anything, by a rule.
    #[must_use]
    pub fn refused(mut self) -> Self {
        self.end = End::Refusal;
        self
    }

    /// Panics.
    #[must_use]
    pub fn panicking(mut self) -> Self {
        self.end = End::Panic;
        self
    }

    /// What is stored for `tenant`.
    #[must_use]
    pub fn changes(&self, tenant: &Tenant) -> Changes {
        let puts = self.puts.iter().map(|put| Put {
            kind: put.kind,
            key: put.key.clone(),
            body: put.body.clone(),
            digest: integrity::record_digest(tenant, put.kind, &put.key, &put.body),
            unindex: put.unindex.clone(),
            index: put.index.clone(),
        });
        let appends = self.appends.iter().map(|row| {
            let origin = Origin::Said;
            let digest =
                integrity::row_digest(tenant, row.log, row.class, row.number, origin, &row.body);
            Append {
                log: row.log,
                class: row.class,
                number: row.number,
                origin,
                body: row.body.clone(),
                digest,
                chain: integrity::log_chain(Digest::default(), digest),
                mark: integrity::content_digest(&row.body),
            }
        });
        Changes {
            puts: puts.collect(),
            appends: appends.collect(),
            request: self.request.as_ref().map(|(key, body)| NewRequest {
                key: key.clone(),
                body: body.clone(),
                digest: integrity::request_digest(tenant, key, body),
            }),
        }
    }
}

#[async_trait]
impl Operation for Write {
    /// The newest revision that the operation saw.
    type Output = Revision;

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Revision), Abort> {
        let seen = reads.revision().await?;
        match self.end {
            End::Changes => Ok((self.changes(reads.tenant()), seen)),
            End::Refusal => Err(Refusal::new(Reason::Conflict, "refused, as asked").into()),
            End::Panic => panic!("a panic, as asked"),
        }
    }
}

/// Runs an operation of which all is expected to go well.
pub async fn write(store: &Arc<dyn Store>, tenant: &Tenant, write: Write) -> Committed<Revision> {
    store.transact(tenant, write).await.unwrap()
}

/// A small record of a type of its own, for cases that go through
/// [`typed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Its key.
    pub name: String,
    /// What it says.
    pub text: String,
    /// How often it was changed.
    pub count: i64,
    /// The last change.
    pub etag: Stamp,
}

impl Note {
    /// A note that is not stored.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: text.to_owned(),
            count: 0,
            etag: Stamp::THIS_COMMIT,
        }
    }
}

impl Entity for Note {
    const KIND: Kind = Kind::Session;

    fn key(&self) -> Key {
        key(&self.name)
    }

    fn resolve(&mut self, stored: Revision) {
        self.etag.resolve(stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        vec![entry(Index::SessionSaved, &self.text)]
    }
}

/// Reads a note and stores it with one more on its count.
#[derive(Clone, Debug)]
pub struct Increment {
    /// Which note; it is made if it is absent.
    pub name: String,
    /// Where to wait between reading and writing.
    pub meeting: Option<Arc<Meeting>>,
}

#[async_trait]
impl Operation for Increment {
    /// The count that was stored.
    type Output = i64;

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, i64), Abort> {
        let mut note: Loaded<Note> = typed::load(reads, &key(&self.name))
            .await?
            .unwrap_or_else(|| Loaded::fresh(Note::new(&self.name, "")));
        if let Some(meeting) = &self.meeting {
            meeting.attend();
        }
        note.value.count += 1;
        note.value.etag = Stamp::THIS_COMMIT;
        let mut changes = ChangeSet::new(reads.tenant());
        changes.update(&note)?;
        Ok((changes.finish(), note.value.count))
    }
}

/// Where calls wait for each other, for a moment.
#[derive(Debug)]
pub struct Meeting {
    expected: usize,
    present: Mutex<usize>,
    all_there: Condvar,
}

impl Meeting {
    /// A meeting of so many.
    #[must_use]
    pub fn of(expected: usize) -> Arc<Self> {
        Arc::new(Self {
            expected,
            present: Mutex::new(0),
            all_there: Condvar::new(),
        })
    }

    /// Waits for the others, but not for ever. It blocks the thread, since an
    /// operation may await nothing but reads.
    pub fn attend(&self) {
        self.arrive_and_wait(MEETING);
    }

    fn arrive_and_wait(&self, patience: Duration) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        *present += 1;
        self.all_there.notify_all();
        let until = Instant::now() + patience;
        while *present < self.expected {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (present, _) = self
                .all_there
                .wait_timeout(present, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn present(&self) -> usize {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that changes nothing and takes its time, so that those who come
/// meanwhile wait together: a backend that groups them has them in one group.
#[derive(Debug)]
pub struct Hold {
    meeting: Arc<Meeting>,
    call: JoinHandle<()>,
}

#[derive(Debug)]
struct Holding(Arc<Meeting>);

#[async_trait]
impl Operation for Holding {
    type Output = ();

    async fn run(&self, _reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        // A backend may run it anew; it holds only once.
        self.0.arrive_and_wait(Duration::from_secs(5));
        Ok((Changes::default(), ()))
    }
}

impl Hold {
    /// Holds up the writes of a store.
    pub async fn on(store: &Arc<dyn Store>) -> Self {
        let meeting = Meeting::of(2);
        let operation = Holding(Arc::clone(&meeting));
        let store = Arc::clone(store);
        let call = tokio::spawn(async move {
            store.transact(&named("holding"), operation).await.unwrap();
        });
        while meeting.present() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Self { meeting, call }
    }

    /// Lets the store go on, once the calls that were made meanwhile wait.
    pub async fn release(self) {
        tokio::time::sleep(MEETING / 2).await;
        self.meeting.arrive_and_wait(Duration::ZERO);
        self.call.await.unwrap();
    }
}

/// Makes a function of a read, and the query behind it.
macro_rules! look {
    ($(#[$doc:meta])* $name:ident / $query:ident($($field:ident: $type:ty),*) -> $output:ty
        = |$this:ident, $reads:ident| $read:expr) => {
        #[derive(Debug)]
        struct $query { $($field: $type,)* }

        #[async_trait]
        impl Query for $query {
            type Output = $output;

            async fn run(&self, $reads: &mut dyn Reads) -> Result<$output, Abort> {
                let $this = self;
                Ok($read.await?)
            }
        }

        $(#[$doc])*
        pub async fn $name(store: &Arc<dyn Store>, tenant: &Tenant, $($field: $type),*) -> $output {
            store.read(tenant, $query { $($field),* }).await.unwrap()
        }
    };
}

look! {
    /// The newest revision.
    revision / RevisionQuery() -> Revision = |_this, reads| reads.revision()
}
look! {
    /// A version of a record.
    record / RecordQuery(kind: Kind, key: Key, at: Revision) -> Option<Version>
        = |this, reads| reads.record(this.kind, &this.key, this.at)
}
look! {
    /// Records in the order of their keys.
    records / RecordsQuery(kind: Kind, stretch: Stretch, at: Revision) -> Vec<(Key, Version)>
        = |this, reads| reads.records(this.kind, &this.stretch, this.at)
}
look! {
    /// Records in the order of an index.
    index / IndexQuery(index: Index, stretch: Stretch) -> Vec<IndexHit>
        = |this, reads| reads.index(this.index, &this.stretch)
}
look! {
    /// Rows of a log.
    rows / RowsQuery(log: LogId, class: RowClass, from: i64, to: i64) -> Vec<Row>
        = |this, reads| reads.rows(this.log, this.class, this.from, this.to)
}
look! {
    /// Items of a log without their bodies.
    marks / MarksQuery(log: LogId, from: i64, to: i64) -> Vec<Mark>
        = |this, reads| reads.marks(this.log, this.from, this.to)
}
look! {
    /// Changes.
    feed / FeedQuery(kinds: Vec<Kind>, after: Revision, until: Revision, limit: usize) -> Vec<FeedEntry>
        = |this, reads| reads.feed(&this.kinds, this.after, this.until, this.limit)
}
look! {
    /// The feed's chain.
    chain / ChainQuery(revision: Revision) -> Option<Digest>
        = |this, reads| reads.chain(this.revision)
}
look! {
    /// The record of a request.
    request / RequestQuery(key: Key) -> Option<RequestRecord>
        = |this, reads| reads.request(&this.key)
}
look! {
    /// The store's time.
    now / NowQuery() -> Timestamp = |_this, reads| std::future::ready(Ok::<_, Abort>(reads.now()))
}

/// A query for a note, checked.
#[derive(Debug)]
pub struct ReadNote(pub &'static str);

#[async_trait]
impl Query for ReadNote {
    type Output = Option<Note>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<Note>, Abort> {
        let note: Option<Loaded<Note>> = typed::load(reads, &key(self.0)).await?;
        Ok(note.map(|note| note.value))
    }
}

/// The text of the current version of a record.
pub async fn text(store: &Arc<dyn Store>, tenant: &Tenant, kind: Kind, name: &str) -> String {
    match record(store, tenant, kind, key(name), Revision::LATEST).await {
        Some(version) => String::from_utf8_lossy(&version.body).into_owned(),
        None => "(none)".to_owned(),
    }
}

/// Everything that a tenant has: what two backends are compared by.
pub async fn all(store: &Arc<dyn Store>, tenant: &Tenant) -> (Revision, Vec<FeedEntry>) {
    let newest = revision(store, tenant).await;
    let feed = feed(
        store,
        tenant,
        Kind::ALL.to_vec(),
        Revision::ZERO,
        newest,
        usize::MAX,
    )
    .await;
    (newest, feed)
}

/// Checks the feed of a tenant from the first commit to the last.
pub async fn check_feed(store: &Arc<dyn Store>, tenant: &Tenant) {
    let (newest, entries) = all(store, tenant).await;
    let end = integrity::check_feed(tenant, Digest::default(), &entries).unwrap();
    let expected = chain(store, tenant, newest).await;
    assert_eq!(expected.unwrap_or_default(), end);
    let mut before = 0;
    for entry in &entries {
        let at = entry.version.revision.get();
        assert!(
            at == before || at == before + 1,
            "revision {at} comes after {before}"
        );
        before = at;
    }
    assert_eq!(before, newest.get());
}
