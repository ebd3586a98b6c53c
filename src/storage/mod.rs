//! What a database has to do for Adjourn, and nothing else.
//!
//! A backend stores rows and gives them back; it knows no rule. Four kinds of row
//! are all there is:
//!
//! * **records**: the things that change (sessions, threads, interrupts, …). A
//!   change never overwrites: it adds a version under the revision of its commit.
//!   The newest version is the current state, an older one is the state *at* its
//!   revision, and the versions of a tenant in the order of their revisions are
//!   the change feed. A deletion is a version too.
//! * **index entries**: where the current versions are found in another order.
//! * **log rows**: items, cells and nodes of logs, written once.
//! * **requests**: what an idempotency key was used for.
//!
//! A write is an [`Operation`]: it reads, decides by rules of the domain, and
//! returns the [`Changes`] to store. The backend runs it, alone or in a group with
//! others, applies what it returned, and commits before anybody hears of it. A
//! read is a [`Query`] on one snapshot.
//!
//! # How to add a backend
//!
//! Implement [`Store`] and [`Reads`], and run the suite in [`conformance`] with it.
//! The backend in [`memory`] is the model that the others are compared with.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::domain::error::Error as Refusal;
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, Origin, RowClass};
use crate::domain::revision::Revision;
use crate::domain::time::Timestamp;

pub mod conformance;
pub mod entities;
pub mod integrity;
pub mod memory;
pub mod overlay;
mod poll;
pub mod sqlite;
pub mod typed;
mod wake;

/// What a call to a store answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store could not do what it was asked, by what the caller can do about it.
///
/// There is no "not found": a look-up answers `None`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was written. Try again after a while.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The commit was sent and its answer lost. Repeat with the same request id.
    #[error("the outcome of the commit is unknown: {0}")]
    OutcomeUnknown(String),
    /// The disk or a quota is full. Nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// Stored bytes are not what was stored. Never the same as missing.
    #[error("stored {} is corrupt: {problem}", kind.name())]
    Corrupt {
        /// What kind of record.
        kind: Corrupt,
        /// Which one, for people.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A fault of this program or of the store. Nothing was written.
    #[error("the store failed: {0}")]
    Internal(String),
}

/// What the corrupt bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// A version of a record.
    Record(Kind),
    /// A row of a log.
    Log,
    /// What an idempotency key was used for.
    Request,
    /// The database itself.
    Database,
}

impl Corrupt {
    fn name(self) -> &'static str {
        match self {
            Self::Record(kind) => kind.name(),
            Self::Log => "log",
            Self::Request => "request",
            Self::Database => "database",
        }
    }
}

/// Why an operation ended without a commit.
#[derive(Debug, thiserror::Error)]
pub enum Abort {
    /// A rule of the domain refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The kinds of record. The number is stored, so it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A session's head.
    Session = 1,
    /// A memory's head.
    Memory = 2,
    /// A thread's head, with its lease.
    Thread = 3,
    /// A checkpoint of a thread.
    Checkpoint = 4,
    /// A snapshot of a session.
    Snapshot = 5,
    /// An interrupt, with its decision and consumption.
    Interrupt = 6,
    /// A tool call that was gated.
    Call = 7,
    /// An entry of a timeline. Written once; a backend refuses to change it.
    TimelineEntry = 8,
    /// A live context of a client, with its restore target and guard.
    Writer = 9,
    /// The tool rules of an agent.
    ToolRules = 10,
    /// A standing grant.
    Grant = 11,
    /// The header of a log: who refers to it, and from where rows are kept.
    LogHeader = 12,
}

impl Kind {
    /// Every kind, in the order of the numbers.
    pub const ALL: [Self; 12] = [
        Self::Session,
        Self::Memory,
        Self::Thread,
        Self::Checkpoint,
        Self::Snapshot,
        Self::Interrupt,
        Self::Call,
        Self::TimelineEntry,
        Self::Writer,
        Self::ToolRules,
        Self::Grant,
        Self::LogHeader,
    ];

    /// The kind stored as `number`.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The kind's name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Memory => "memory",
            Self::Thread => "thread",
            Self::Checkpoint => "checkpoint",
            Self::Snapshot => "snapshot",
            Self::Interrupt => "interrupt",
            Self::Call => "tool call",
            Self::TimelineEntry => "timeline entry",
            Self::Writer => "writer",
            Self::ToolRules => "tool rules",
            Self::Grant => "grant",
            Self::LogHeader => "log header",
        }
    }
}

/// The orders in which current records can be found. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Index {
    /// Sessions, by the time they were saved, newest first, then id.
    SessionSaved = 1,
    /// Memories, by the time they were changed, newest first, then id.
    MemoryUpdated = 2,
    /// Threads, by the time they were changed, newest first.
    ThreadUpdated = 3,
    /// Threads, by their session.
    ThreadSession = 4,
    /// Interrupts, by (state, time of creation).
    InterruptState = 5,
    /// Interrupts, by time of creation.
    InterruptCreated = 6,
    /// Interrupts, by (state, expiry); those without expiry come last.
    InterruptExpiry = 7,
    /// Interrupts that a thread still has to resume with, by (thread, creation).
    InterruptThread = 8,
    /// Live interrupts, by (agent, `dedup_key`).
    InterruptDedup = 9,
    /// Live interrupts, by `correlation_id`.
    InterruptCorrelation = 10,
    /// Interrupts, by (session, creation).
    InterruptSession = 11,
    /// Interrupts, by (state, agent, creation).
    InterruptAgent = 12,
    /// Tool calls that are started or in doubt, by thread.
    CallOpen = 13,
    /// Snapshots, by (session, time).
    SnapshotTime = 14,
    /// Standing grants, by (agent, tool).
    GrantTool = 15,
    /// Checkpoints, by (thread, time).
    CheckpointTime = 16,
    /// All tool calls that were let through, by (thread, execution key).
    CallKey = 17,
}

/// The key of a record within its tenant and kind.
///
/// Made of parts joined by NUL, which no id contains, so keys with the same first
/// parts stand together. See [`Key::of`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The key made of `parts`.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        Self(parts.join(&0).into())
    }

    /// The key whose bytes are `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

/// A version of a record, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The commit that wrote it.
    pub revision: Revision,
    /// When that was, by the store's clock.
    pub at: Timestamp,
    /// The record, encoded.
    pub body: Bytes,
    /// [`integrity::record_digest`] of it.
    pub digest: Digest,
}

/// A row of a log, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number in its class.
    pub number: i64,
    /// How it came to be. Cells and nodes are all [`Origin::Said`].
    pub origin: Origin,
    /// When it was written, by the store's clock.
    pub at: Timestamp,
    /// The item, cell or node, encoded.
    pub body: Bytes,
    /// [`integrity::row_digest`] of it.
    pub digest: Digest,
    /// The running digest of the items of the log up to this one.
    pub chain: Digest,
    /// What is compared to find out whether a re-sent item is this one.
    pub mark: Digest,
}

/// A row of a log without its body, for comparing histories.
#[expect(
    clippy::struct_field_names,
    reason = "the field is what the row calls it"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The row's number.
    pub number: i64,
    /// [`Row::mark`].
    pub mark: Digest,
    /// [`Row::chain`].
    pub chain: Digest,
}

/// One change in the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEntry {
    /// What kind of record changed.
    pub kind: Kind,
    /// Which one.
    pub key: Key,
    /// The version that the commit wrote.
    pub version: Version,
    /// The feed's hash chain up to here: what a cursor carries eight bytes of.
    pub chain: Digest,
}

/// Where a record is to be found in an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexEntry {
    /// The order.
    pub index: Index,
    /// The place in it. Entries of one index are ordered by it, then by key; but
    /// [`Stretch::after`] passes over all that have one place, so where pages are
    /// read a place names its record.
    pub place: Bytes,
}

/// What an index look-up found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexHit {
    /// The place.
    pub place: Bytes,
    /// The record.
    pub key: Key,
}

/// Which way to go through an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first.
    Forward,
    /// From the last.
    Backward,
}

/// A stretch of an order: all that starts with `prefix`, beyond `after`.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// What the key or place has to start with.
    pub prefix: Bytes,
    /// Leave out everything up to and including this one, in the direction of
    /// travel.
    pub after: Option<Bytes>,
    /// Which way.
    pub direction: Direction,
    /// At most so many.
    pub limit: usize,
}

/// A new version of a record.
#[derive(Clone, Debug)]
pub struct Put {
    /// What kind.
    pub kind: Kind,
    /// Which one.
    pub key: Key,
    /// The record, encoded.
    pub body: Bytes,
    /// [`integrity::record_digest`] of it.
    pub digest: Digest,
    /// Index entries that the version before had and this one has not. One that
    /// is not there is no error.
    pub unindex: Vec<IndexEntry>,
    /// Index entries that this version has and the one before had not. One that
    /// is there already is no error.
    pub index: Vec<IndexEntry>,
}

/// A new row of a log.
#[derive(Clone, Debug)]
pub struct Append {
    /// The log.
    pub log: LogId,
    /// The class.
    pub class: RowClass,
    /// Its number; the row must not exist.
    pub number: i64,
    /// How it came to be.
    pub origin: Origin,
    /// The item, cell or node, encoded.
    pub body: Bytes,
    /// [`integrity::row_digest`] of it.
    pub digest: Digest,
    /// See [`Row::chain`].
    pub chain: Digest,
    /// See [`Row::mark`].
    pub mark: Digest,
}

/// What an idempotency key was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The commit that the request made.
    pub revision: Revision,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Fingerprint and receipt, encoded.
    pub body: Bytes,
    /// [`integrity::request_digest`] of it.
    pub digest: Digest,
}

/// A new idempotency key.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// The key: request id, principal, method.
    pub key: Key,
    /// Fingerprint and receipt, encoded.
    pub body: Bytes,
    /// [`integrity::request_digest`] of it.
    pub digest: Digest,
}

/// All that an operation wants stored: everything, or nothing.
///
/// An operation that returns no changes makes no commit and takes no revision.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// New versions of records, at most one for each record, in feed order.
    pub puts: Vec<Put>,
    /// New rows of logs.
    pub appends: Vec<Append>,
    /// The idempotency key, if the caller sent one. Does not count as a change.
    pub request: Option<NewRequest>,
}

impl Changes {
    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.appends.is_empty()
    }
}

/// What can be read, from one snapshot of one tenant's data.
///
/// In an operation the snapshot is the newest state, the earlier members of its
/// group included, and stays the newest until the operation's commit.
#[async_trait]
pub trait Reads: Send {
    /// Whose data this is.
    fn tenant(&self) -> &Tenant;

    /// The store's time: never earlier than the last commit of the tenant.
    fn now(&self) -> Timestamp;

    /// The newest revision in the snapshot.
    async fn revision(&mut self) -> Result<Revision>;

    /// The version of a record that was current at `at`.
    async fn record(&mut self, kind: Kind, key: &Key, at: Revision) -> Result<Option<Version>>;

    /// Records of a kind in the order of their keys, each in the version that was
    /// current at `at`.
    async fn records(
        &mut self,
        kind: Kind,
        stretch: &Stretch,
        at: Revision,
    ) -> Result<Vec<(Key, Version)>>;

    /// Current records in the order of an index.
    async fn index(&mut self, index: Index, stretch: &Stretch) -> Result<Vec<IndexHit>>;

    /// Rows `from` to `to`, inclusive, of a class of a log, in order. Absent rows
    /// are left out.
    async fn rows(&mut self, log: LogId, class: RowClass, from: i64, to: i64) -> Result<Vec<Row>>;

    /// The items `from` to `to`, inclusive, of a log, without their bodies.
    async fn marks(&mut self, log: LogId, from: i64, to: i64) -> Result<Vec<Mark>>;

    /// The changes after the revision `after` and up to `until`, of these kinds, in
    /// commit order; at most `limit`, but never part of a commit.
    async fn feed(
        &mut self,
        kinds: &[Kind],
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<Vec<FeedEntry>>;

    /// The feed's hash chain after the commit `revision`; `None` when there is no
    /// such commit or it was reclaimed.
    async fn chain(&mut self, revision: Revision) -> Result<Option<Digest>>;

    /// What an idempotency key was used for.
    async fn request(&mut self, key: &Key) -> Result<Option<RequestRecord>>;
}

/// A use case that writes.
///
/// It may be run again from the start, so it changes nothing but what it returns,
/// and it awaits nothing but `reads`: a backend that runs it on its own thread
/// takes any other wait for a bug. Parsing and hashing come before it.
#[async_trait]
pub trait Operation: Debug + Send + Sync + 'static {
    /// What the caller gets: ids and numbers, not contents.
    type Output: Debug + Send + 'static;

    /// Reads, decides, and says what to store.
    ///
    /// # Errors
    ///
    /// [`Abort::Refused`] when a rule says no; [`Abort::Store`] from `reads`.
    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Self::Output), Abort>;
}

/// A use case that reads.
#[async_trait]
pub trait Query: Debug + Send + Sync {
    /// What the caller gets.
    type Output: Send + 'static;

    /// Reads. It awaits nothing but `reads`.
    ///
    /// # Errors
    ///
    /// [`Abort::Refused`] when there is nothing to answer; [`Abort::Store`] from
    /// `reads`.
    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort>;
}

/// A value of a type that only the caller knows.
pub type Boxed = Box<dyn Any + Send>;

/// An [`Operation`] whose output type is hidden, so that a [`Store`] can be `dyn`.
#[async_trait]
pub trait ErasedOperation: Debug + Send + Sync {
    /// See [`Operation::run`].
    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Boxed), Abort>;
}

#[async_trait]
impl<O: Operation> ErasedOperation for O {
    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Boxed), Abort> {
        let (changes, output) = Operation::run(self, reads).await?;
        Ok((changes, Box::new(output)))
    }
}

/// A [`Query`] whose output type is hidden.
#[async_trait]
pub trait ErasedQuery: Debug + Send + Sync {
    /// See [`Query::run`].
    async fn run(&self, reads: &mut dyn Reads) -> Result<Boxed, Abort>;
}

#[async_trait]
impl<Q: Query> ErasedQuery for Q {
    async fn run(&self, reads: &mut dyn Reads) -> Result<Boxed, Abort> {
        Ok(Box::new(Query::run(self, reads).await?))
    }
}

/// What a commit answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed<T> {
    /// The commit's revision; for an operation without changes the newest one.
    pub revision: Revision,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What the operation returned.
    pub output: T,
}

/// What makes a store itself and no other.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Changes when the store is restored from a backup, so that a cursor into a
    /// history that is no more is noticed.
    pub epoch: [u8; 8],
    /// Authenticates the cursors, page tokens, etags and fencing tokens that the
    /// store's clients hold.
    pub secret: [u8; 32],
}

impl Identity {
    /// The identity of a new store.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when the machine has no random numbers.
    pub fn random() -> Result<Self> {
        let mut identity = Self {
            epoch: [0; 8],
            secret: [0; 32],
        };
        getrandom::fill(&mut identity.epoch)
            .and_then(|()| getrandom::fill(&mut identity.secret))
            .map_err(|error| Error::Internal(format!("no random numbers: {error}")))?;
        Ok(identity)
    }
}

impl Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// A database of agent state. Cheap to share as `Arc<dyn Store>`.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// The backend's name, for people and metrics.
    fn name(&self) -> &'static str;

    /// See [`Identity`].
    fn identity(&self) -> Identity;

    /// Runs an operation and commits what it returned. When this answers `Ok` with
    /// changes, they are durable.
    ///
    /// # Errors
    ///
    /// As the operation's, and [`Error::OutcomeUnknown`] when the answer to the
    /// commit was lost.
    async fn execute(
        &self,
        tenant: &Tenant,
        operation: Arc<dyn ErasedOperation>,
    ) -> Result<Committed<Boxed>, Abort>;

    /// Runs a query on one snapshot.
    ///
    /// # Errors
    ///
    /// As the query's.
    async fn inspect(&self, tenant: &Tenant, query: &dyn ErasedQuery) -> Result<Boxed, Abort>;

    /// The newest revision of a tenant that is known here: a hint to read the feed.
    ///
    /// Another replica's commits may show late, so whoever waits also polls.
    fn commits(&self, tenant: &Tenant) -> watch::Receiver<Revision>;

    /// The tenants that have data, for background work.
    async fn tenants(&self) -> Result<Vec<Tenant>>;

    /// Checks that the store answers.
    async fn ready(&self) -> Result<()>;

    /// Finishes what was begun and lets go of files and connections. Later calls
    /// answer [`Error::Unavailable`].
    async fn close(&self);
}

impl dyn Store {
    /// Runs an operation and commits what it returned; see [`Store::execute`].
    ///
    /// # Errors
    ///
    /// As [`Store::execute`].
    pub async fn transact<O: Operation>(
        &self,
        tenant: &Tenant,
        operation: O,
    ) -> Result<Committed<O::Output>, Abort> {
        let Committed {
            revision,
            at,
            output,
        } = self.execute(tenant, Arc::new(operation)).await?;
        let output = output.downcast().map_err(|_| {
            Error::Internal("an operation returned another operation's output".into())
        })?;
        Ok(Committed {
            revision,
            at,
            output: *output,
        })
    }

    /// Runs a query on one snapshot; see [`Store::inspect`].
    ///
    /// # Errors
    ///
    /// As [`Store::inspect`].
    pub async fn read<Q: Query>(&self, tenant: &Tenant, query: Q) -> Result<Q::Output, Abort> {
        let output = self.inspect(tenant, &query).await?;
        let output = output
            .downcast()
            .map_err(|_| Error::Internal("a query returned another query's output".into()))?;
        Ok(*output)
    }
}

/// The record types of the domain, as a store sees them.
pub trait Entity: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Which kind of record it is.
    const KIND: Kind;

    /// Its key.
    fn key(&self) -> Key;

    /// Turns stamps made by the commit that stored it into numbers.
    fn resolve(&mut self, stored: Revision);

    /// Where it is to be found.
    fn index(&self) -> Vec<IndexEntry>;
}
