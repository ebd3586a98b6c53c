//! Watches: what is there, then every change of it, with nothing lost between.
//!
//! Each stream reads the feed from the store, at the pace of its reader, from the
//! revision that its cursor names. A slow reader so costs a bounded buffer and
//! stalls nobody, and any replica can go on where another one stopped.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::caller::Caller;
use super::engine::Engine;
use super::interrupt::{Filter, ListOrder, is_visible};
use super::listing::{self, Position};
use super::seal::hash;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{InterruptId, PrincipalName, SessionRef, Tenant};
use crate::domain::interrupt::Interrupt;
use crate::domain::log::Digest;
use crate::domain::revision::Revision;
use crate::domain::timeline::{Entry, EntryKind};
use crate::storage::entities::{interrupt_key, timeline_prefix};
use crate::storage::typed::{Loaded, decode, load, load_at};
use crate::storage::{Abort, Direction, Entity, FeedEntry, Kind, Query, Reads, Stretch};

/// How many changes are read at a time.
const CHUNK: usize = 256;
/// How many messages wait for a slow reader before its stream waits too.
const BUFFER: usize = 16;

/// How watches behave.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a stream may be silent before it says where it is.
    pub progress: Duration,
    /// How long a stream may live before it says goodbye.
    pub max_age: Duration,
    /// How often the store is asked whether something has happened, for commits
    /// that nobody tells of.
    pub poll: Duration,
    /// How many streams one principal may have open.
    pub max_streams: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            progress: Duration::from_secs(15),
            max_age: Duration::from_secs(600),
            poll: Duration::from_secs(1),
            max_streams: 256,
        }
    }
}

/// What can be watched.
#[async_trait]
pub trait Watched: Debug + Clone + Serialize + Send + Sync + 'static {
    /// The records.
    type Item: Entity;

    /// What cursors are for, so that one of another kind of watch is refused.
    const NAME: &'static str;

    /// Whether a record is one of them.
    fn matches(&self, item: &Self::Item) -> bool;

    /// Some of those that there were at a revision, beyond a place, each with its
    /// place.
    ///
    /// # Errors
    ///
    /// [`Abort::Store`] from `reads`.
    async fn list(
        &self,
        reads: &mut dyn Reads,
        after: Option<Vec<u8>>,
        at: Revision,
    ) -> Result<Vec<(Vec<u8>, Loaded<Self::Item>)>, Abort>;
}

/// A watch of interrupts.
#[derive(Clone, Debug, Serialize)]
pub struct InterruptWatch {
    /// Which.
    pub filter: Filter,
}

#[async_trait]
impl Watched for InterruptWatch {
    type Item = Interrupt;
    const NAME: &'static str = "WatchInterrupts";

    fn matches(&self, item: &Interrupt) -> bool {
        self.filter.matches(item)
    }

    async fn list(
        &self,
        reads: &mut dyn Reads,
        after: Option<Vec<u8>>,
        at: Revision,
    ) -> Result<Vec<(Vec<u8>, Loaded<Interrupt>)>, Abort> {
        let order = self.filter.order(ListOrder::OldestFirst);
        let from = Position {
            after: after.unwrap_or_default(),
            at,
        };
        let listed =
            listing::page(reads, &order, Some(&from), CHUNK, |item| self.matches(item)).await?;
        let place = |item: &Loaded<Interrupt>| {
            let entries = item.value.index().into_iter();
            let mut at_order = entries.filter(|entry| {
                entry.index == order.index && entry.place.starts_with(&order.prefix)
            });
            at_order
                .next()
                .map(|entry| entry.place.to_vec())
                .unwrap_or_default()
        };
        Ok(listed
            .items
            .into_iter()
            .map(|item| (place(&item), item))
            .collect())
    }
}

/// A watch of a session's timeline, or of all of the tenant's.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineWatch {
    /// The session; `None` for all.
    pub session: Option<SessionRef>,
    /// Entries of one of these kinds; empty means any.
    pub kinds: Vec<EntryKind>,
}

#[async_trait]
impl Watched for TimelineWatch {
    type Item = Entry;
    const NAME: &'static str = "WatchTimeline";

    fn matches(&self, item: &Entry) -> bool {
        self.session
            .as_ref()
            .is_none_or(|session| item.session == *session)
            && (self.kinds.is_empty() || self.kinds.contains(&item.kind))
    }

    async fn list(
        &self,
        reads: &mut dyn Reads,
        after: Option<Vec<u8>>,
        at: Revision,
    ) -> Result<Vec<(Vec<u8>, Loaded<Entry>)>, Abort> {
        let mut stretch = Stretch {
            prefix: self
                .session
                .as_ref()
                .map(timeline_prefix)
                .unwrap_or_default(),
            after: after.map(Into::into),
            direction: Direction::Forward,
            limit: CHUNK,
        };
        // A page of entries that do not match says nothing about later ones.
        loop {
            let page = reads.records(Kind::TimelineEntry, &stretch, at).await?;
            let whole = page.len() < CHUNK;
            stretch.after = page
                .last()
                .map(|(key, _)| bytes::Bytes::copy_from_slice(key.as_bytes()));
            let mut found = Vec::new();
            for (key, version) in page {
                let entry = decode::<Entry>(reads.tenant(), &key, &version)?;
                if self.matches(&entry.value) {
                    found.push((key.as_bytes().to_vec(), entry));
                }
            }
            if whole || !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

/// Where a watch starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what is there.
    InitialState,
    /// After this cursor.
    Cursor(String),
    /// With the next change.
    Now,
}

/// What a watch says.
#[derive(Clone, Debug)]
pub struct Said<T> {
    /// Where to go on from after this.
    pub cursor: String,
    /// The revision it is about.
    pub revision: Revision,
    /// What.
    pub event: Event<T>,
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// It is there.
    Snapshot(T),
    /// It changed, or came.
    Changed(T),
    /// It changed, and is no longer one of those that are watched.
    Left(T),
    /// All that was there was said.
    Synced,
    /// Nothing, up to the cursor.
    Progress,
    /// The stream ends; go on with the cursor.
    Goodbye(Farewell),
}

/// Why a stream ends although nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// The server stops.
    Drain,
    /// The stream is old.
    MaxAge,
}

/// What a cursor says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cursor {
    epoch: [u8; 8],
    revision: Revision,
    filter: [u8; 8],
    /// The first bytes of the feed's chain at the revision.
    chain: [u8; 8],
    /// The place of the last item said, while what was there at the revision is
    /// still being said.
    listed: Option<Vec<u8>>,
}

/// Whether the key that a stream was opened with still holds.
pub type StillValid = Arc<dyn Fn() -> bool + Send + Sync>;

/// A stream of what a watch says.
pub type Stream<T> = ReceiverStream<Result<Said<T>>>;

/// Runs watches.
#[derive(Clone, Debug)]
pub struct Watches {
    engine: Engine,
    options: Options,
    drain: CancellationToken,
    tracker: TaskTracker,
    open: Arc<Mutex<HashMap<(Tenant, PrincipalName), usize>>>,
}

/// A place among the streams of a principal.
struct Seat {
    key: (Tenant, PrincipalName),
    open: Arc<Mutex<HashMap<(Tenant, PrincipalName), usize>>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = open.get_mut(&self.key) {
            *number -= 1;
            if *number == 0 {
                open.remove(&self.key);
            }
        }
    }
}

impl Watches {
    /// Watches of an engine's store that say goodbye when `drain` is cancelled.
    #[must_use]
    pub fn new(engine: Engine, options: Options, drain: CancellationToken) -> Self {
        Self {
            engine,
            options,
            drain,
            tracker: TaskTracker::new(),
            open: Arc::default(),
        }
    }

    /// Waits until every stream has ended; to be called after the drain began.
    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    fn seat(&self, caller: &Caller) -> Result<Seat> {
        let key = (caller.tenant.clone(), caller.principal.clone());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.entry(key.clone()).or_default();
        if *number >= self.options.max_streams {
            return Err(Error::new(
                Reason::LimitExceeded,
                format!("{} streams are open, and that is the most; close some, or watch with a wider filter", *number),
            )
            .with("limit", self.options.max_streams));
        }
        *number += 1;
        Ok(Seat {
            key,
            open: Arc::clone(&self.open),
        })
    }

    /// Starts a watch.
    ///
    /// # Errors
    ///
    /// [`Reason::CursorInvalid`], [`Reason::CursorFilterChanged`],
    /// [`Reason::CursorEpochChanged`], [`Reason::CursorCompacted`] with the oldest
    /// revision, [`Reason::LimitExceeded`].
    pub async fn watch<W: Watched>(
        &self,
        caller: &Caller,
        watched: W,
        start: Start,
        still_valid: StillValid,
    ) -> Result<Stream<W::Item>> {
        let seat = self.seat(caller)?;
        let filter = hash(&watched);
        let position = match start {
            Start::Cursor(cursor) => self.open(caller, W::NAME, filter, &cursor).await?,
            Start::InitialState => Place {
                listed: Some(None),
                ..self.newest(caller).await?
            },
            Start::Now => self.newest(caller).await?,
        };
        let (said, stream) = mpsc::channel(BUFFER);
        let run = Run {
            watches: self.clone(),
            caller: caller.clone(),
            watched,
            filter,
            said,
            place: position,
            still_valid,
            born: Instant::now(),
        };
        self.tracker.spawn(async move {
            run.to_end().await;
            drop(seat);
        });
        Ok(ReceiverStream::new(stream))
    }

    async fn newest(&self, caller: &Caller) -> Result<Place> {
        let (revision, chain) = self.engine.read(&caller.tenant, Newest).await?;
        Ok(Place {
            revision,
            chain,
            listed: None,
        })
    }

    /// The place that a cursor names.
    async fn open(
        &self,
        caller: &Caller,
        name: &str,
        filter: [u8; 8],
        cursor: &str,
    ) -> Result<Place> {
        let sealer = self.engine.sealer();
        let cursor = sealer
            .open::<Cursor>(&caller.tenant, name.as_bytes(), cursor)
            .ok_or_else(|| {
                Error::new(
                    Reason::CursorInvalid,
                    "this is no cursor of this watch; start with initial_state",
                )
                .at("cursor")
            })?;
        let epoch_changed = || {
            Error::new(
                Reason::CursorEpochChanged,
                "the store was restored since, and this cursor is of a history that is no more; start with initial_state",
            )
        };
        if cursor.epoch != sealer.epoch() {
            return Err(epoch_changed());
        }
        if cursor.filter != filter {
            return Err(Error::new(
                Reason::CursorFilterChanged,
                "this cursor is of a watch with another filter; send that filter, or start with initial_state",
            )
            .at("cursor"));
        }
        let (newest, chain) = self
            .engine
            .read(
                &caller.tenant,
                ChainAt {
                    revision: cursor.revision,
                },
            )
            .await?;
        match chain {
            Some(chain) if short(chain) == cursor.chain => Ok(Place {
                revision: cursor.revision,
                chain,
                listed: cursor.listed.map(Some),
            }),
            Some(_) => Err(epoch_changed()),
            None if cursor.revision > newest => Err(epoch_changed()),
            None => Err(Error::new(
                Reason::CursorCompacted,
                "what came after this cursor is no longer kept; start with initial_state",
            )
            .with("newest_revision", newest)),
        }
    }

    /// The interrupt at once, then whenever it changes, until it is terminal.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::LimitExceeded`].
    pub async fn await_decision(
        &self,
        caller: &Caller,
        id: InterruptId,
        still_valid: StillValid,
    ) -> Result<ReceiverStream<Result<Awaited>>> {
        let seat = self.seat(caller)?;
        let find = || async {
            let found = self.engine.read(&caller.tenant, Find { id }).await?;
            let found = found.filter(|found| is_visible(caller, &found.value));
            found.ok_or_else(|| {
                Error::new(
                    Reason::InterruptNotFound,
                    "there is no such interrupt; check interrupt_id",
                )
            })
        };
        let first = find().await?;
        let (said, stream) = mpsc::channel(BUFFER);
        let (watches, caller) = (self.clone(), caller.clone());
        self.tracker.spawn(async move {
            let _seat = seat;
            let mut commits = watches.engine.store().commits(&caller.tenant);
            let born = Instant::now();
            let mut seen = Revision::ZERO;
            let mut next = Ok(Some(first));
            loop {
                match next {
                    Ok(Some(found)) if found.revision > seen => {
                        seen = found.revision;
                        let terminal = found.value.state.is_terminal();
                        let awaited = Awaited::State(Box::new(found.value), found.revision);
                        if said.send(Ok(awaited)).await.is_err() || terminal {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let _ = said.send(Err(error)).await;
                        return;
                    }
                }
                if !still_valid() {
                    let _ = said.send(Err(revoked())).await;
                    return;
                }
                let left = watches.options.max_age.saturating_sub(born.elapsed());
                tokio::select! {
                    () = watches.drain.cancelled() => {
                        let _ = said.send(Ok(Awaited::Goodbye(Farewell::Drain))).await;
                        return;
                    }
                    () = tokio::time::sleep(left) => {
                        let _ = said.send(Ok(Awaited::Goodbye(Farewell::MaxAge))).await;
                        return;
                    }
                    () = said.closed() => return,
                    _ = commits.changed() => {}
                    () = tokio::time::sleep(watches.options.poll) => {}
                }
                next = watches.engine.read(&caller.tenant, Find { id }).await;
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// What awaiting a decision says.
#[derive(Clone, Debug)]
pub enum Awaited {
    /// The interrupt, and the commit that last changed it.
    State(Box<Interrupt>, Revision),
    /// The stream ends; await again.
    Goodbye(Farewell),
}

fn revoked() -> Error {
    Error::new(
        Reason::Unauthenticated,
        "the key was revoked; use another one",
    )
}

/// How far a watch is.
#[derive(Clone, Debug)]
struct Place {
    revision: Revision,
    chain: Digest,
    /// While what was there is being said: the place of the last item, if there is
    /// one.
    #[expect(
        clippy::option_option,
        reason = "being at the start of the list differs from being through with it"
    )]
    listed: Option<Option<Vec<u8>>>,
}

fn short(chain: Digest) -> [u8; 8] {
    let mut short = [0; 8];
    for (to, from) in short.iter_mut().zip(chain.0) {
        *to = from;
    }
    short
}

/// One stream.
struct Run<W: Watched> {
    watches: Watches,
    caller: Caller,
    watched: W,
    filter: [u8; 8],
    said: mpsc::Sender<Result<Said<W::Item>>>,
    place: Place,
    still_valid: StillValid,
    born: Instant,
}

/// Why a stream ends before its time.
enum End {
    /// The reader is gone.
    Gone,
    /// Something is wrong.
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<W: Watched> Run<W> {
    async fn to_end(mut self) {
        let end = match self.list().await {
            Ok(()) => self.follow().await,
            Err(end) => Err(end),
        };
        if let Err(End::Failed(error)) = end {
            // A reader that is gone meanwhile does not need it.
            let _ = self.said.send(Err(error)).await;
        }
    }

    fn cursor(&self) -> String {
        let sealer = self.watches.engine.sealer();
        let cursor = Cursor {
            epoch: sealer.epoch(),
            revision: self.place.revision,
            filter: self.filter,
            chain: short(self.place.chain),
            // At the very start there is no item to go on from.
            listed: self.place.listed.clone().map(Option::unwrap_or_default),
        };
        sealer.seal(&self.caller.tenant, W::NAME.as_bytes(), &cursor)
    }

    async fn say(&self, revision: Revision, event: Event<W::Item>) -> Result<(), End> {
        let said = Said {
            cursor: self.cursor(),
            revision,
            event,
        };
        self.said.send(Ok(said)).await.map_err(|_| End::Gone)
    }

    /// Says what was there at the place's revision, if that is still to be said.
    async fn list(&mut self) -> Result<(), End> {
        while let Some(after) = self.place.listed.clone() {
            let after = after.filter(|after| !after.is_empty());
            let list = List {
                watched: self.watched.clone(),
                after,
                at: self.place.revision,
            };
            let page = self.watches.engine.read(&self.caller.tenant, list).await?;
            if page.is_empty() {
                self.place.listed = None;
                self.say(self.place.revision, Event::Synced).await?;
                break;
            }
            for (at, item) in page {
                self.place.listed = Some(Some(at));
                self.say(item.revision, Event::Snapshot(item.value)).await?;
            }
            self.check_valid()?;
        }
        Ok(())
    }

    fn check_valid(&self) -> Result<(), End> {
        if (self.still_valid)() {
            Ok(())
        } else {
            Err(End::Failed(revoked()))
        }
    }

    /// Says every change after the place's revision.
    async fn follow(&mut self) -> Result<(), End> {
        let mut commits = self.watches.engine.store().commits(&self.caller.tenant);
        let mut silent_since = Instant::now();
        loop {
            commits.mark_unchanged();
            let more = self.catch_up(&mut silent_since).await?;
            self.check_valid()?;
            if self.watches.drain.is_cancelled() {
                return self
                    .say(self.place.revision, Event::Goodbye(Farewell::Drain))
                    .await;
            }
            if self.born.elapsed() >= self.watches.options.max_age {
                return self
                    .say(self.place.revision, Event::Goodbye(Farewell::MaxAge))
                    .await;
            }
            if more {
                continue;
            }
            if silent_since.elapsed() >= self.watches.options.progress {
                self.say(self.place.revision, Event::Progress).await?;
                silent_since = Instant::now();
            }
            let options = self.watches.options;
            let pause = options
                .poll
                .min(options.progress.saturating_sub(silent_since.elapsed()))
                .min(options.max_age.saturating_sub(self.born.elapsed()));
            tokio::select! {
                () = self.watches.drain.cancelled() => {}
                () = self.said.closed() => return Err(End::Gone),
                _ = commits.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Says a chunk of changes, and whether there may be more.
    async fn catch_up(&mut self, silent_since: &mut Instant) -> Result<bool, End> {
        let changes = Changes {
            watched: self.watched.clone(),
            after: self.place.revision,
        };
        let Caught {
            changes,
            newest,
            chain,
            more,
        } = self
            .watches
            .engine
            .read(&self.caller.tenant, changes)
            .await?;
        for change in changes {
            // The cursor moves with the last change of a commit: one that breaks off
            // in the middle is said again.
            if let Some(chain) = change.completes {
                self.place.revision = change.revision;
                self.place.chain = chain;
            }
            *silent_since = Instant::now();
            self.say(change.revision, change.event).await?;
        }
        if !more {
            self.place.revision = newest;
            self.place.chain = chain;
        }
        Ok(more)
    }
}

/// The newest revision and the feed's chain there.
#[derive(Debug)]
struct Newest;

#[async_trait]
impl Query for Newest {
    type Output = (Revision, Digest);

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let revision = reads.revision().await?;
        Ok((revision, reads.chain(revision).await?.unwrap_or_default()))
    }
}

/// The feed's chain at a revision, and the newest revision.
#[derive(Debug)]
struct ChainAt {
    revision: Revision,
}

#[async_trait]
impl Query for ChainAt {
    type Output = (Revision, Option<Digest>);

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let newest = reads.revision().await?;
        if self.revision == Revision::ZERO {
            return Ok((newest, Some(Digest::default())));
        }
        Ok((newest, reads.chain(self.revision).await?))
    }
}

#[derive(Debug)]
struct Find {
    id: InterruptId,
}

#[async_trait]
impl Query for Find {
    type Output = Option<Loaded<Interrupt>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        Ok(load::<Interrupt>(reads, &interrupt_key(self.id)).await?)
    }
}

#[derive(Debug)]
struct List<W> {
    watched: W,
    after: Option<Vec<u8>>,
    at: Revision,
}

#[async_trait]
impl<W: Watched> Query for List<W> {
    type Output = Vec<(Vec<u8>, Loaded<W::Item>)>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        self.watched.list(reads, self.after.clone(), self.at).await
    }
}

#[derive(Debug)]
struct Changes<W> {
    watched: W,
    after: Revision,
}

/// A chunk of changes.
struct Caught<T> {
    changes: Vec<Change<T>>,
    /// The newest revision, up to which there is nothing else if there is no more.
    newest: Revision,
    chain: Digest,
    more: bool,
}

struct Change<T> {
    revision: Revision,
    event: Event<T>,
    /// The feed's chain, on the last change of a commit.
    completes: Option<Digest>,
}

#[async_trait]
impl<W: Watched> Query for Changes<W> {
    type Output = Caught<W::Item>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let newest = reads.revision().await?;
        let chain = reads.chain(newest).await?.unwrap_or_default();
        if newest <= self.after {
            // A store that has gone back is noticed when the cursor is opened.
            return Ok(Caught {
                changes: Vec::new(),
                newest: self.after.max(newest),
                chain,
                more: false,
            });
        }
        let feed = reads
            .feed(&[W::Item::KIND], self.after, newest, CHUNK)
            .await?;
        let more = feed.len() >= CHUNK;
        let mut changes: Vec<Change<W::Item>> = Vec::new();
        for entry in feed {
            changes.extend(self.change(reads, &entry).await?);
        }
        let ends: Vec<bool> = changes
            .iter()
            .enumerate()
            .map(|(at, change)| {
                changes
                    .get(at + 1)
                    .is_none_or(|next| next.revision != change.revision)
            })
            .collect();
        for (change, ends) in changes.iter_mut().zip(ends) {
            if ends {
                change.completes = reads.chain(change.revision).await?;
            }
        }
        Ok(Caught {
            changes,
            newest,
            chain,
            more,
        })
    }
}

impl<W: Watched> Changes<W> {
    /// What a change is for the watch; `None` when it is nothing.
    async fn change(
        &self,
        reads: &mut dyn Reads,
        entry: &FeedEntry,
    ) -> Result<Option<Change<W::Item>>, Abort> {
        let item = decode::<W::Item>(reads.tenant(), &entry.key, &entry.version)?;
        let revision = item.revision;
        let said = |event| {
            Some(Change {
                revision,
                event,
                completes: None,
            })
        };
        if self.watched.matches(&item.value) {
            return Ok(said(Event::Changed(item.value)));
        }
        let before = Revision::new(revision.get() - 1);
        let previous = load_at::<W::Item>(reads, &entry.key, before).await?;
        if previous.is_some_and(|previous| self.watched.matches(&previous.value)) {
            return Ok(said(Event::Left(item.value)));
        }
        Ok(None)
    }
}
