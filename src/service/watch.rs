//! Watches: what is there, then every change of it, with nothing lost between.
//!
//! A cursor names a revision, and a stream goes on with the feed of the store after
//! it, at the pace of its reader. A slow reader so costs a bounded buffer and stalls
//! nobody, and any replica can go on where another one stopped.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::caller::Caller;
use super::engine::Engine;
use super::interrupt::{Revised, is_visible, not_found};
use super::seal::hash;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{InterruptId, PrincipalName, Tenant};
use crate::domain::interrupt::Interrupt;
use crate::domain::log::Digest;
use crate::domain::revision::Revision;
use crate::storage::entities::interrupt_key;
use crate::storage::typed::load;
use crate::storage::{Abort, Kind, Query, Reads};

mod tail;
mod watched;

use tail::{Bell, Commit, ReadFeed, Tail, Tails};
pub use watched::{Change, Interest, InterruptWatch, Placed, TimelineWatch, Watched};

/// How many records or changes are read at a time.
const CHUNK: usize = 256;
/// How many messages wait for a slow reader before its stream waits too.
const BUFFER: usize = 16;
/// How long a stream that is to end waits for its reader to take what is left.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// How often a stream asks whether its key still holds.
    pub recheck: Duration,
    /// How many streams one principal may have open.
    pub max_streams: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            progress: Duration::from_secs(15),
            max_age: Duration::from_mins(10),
            poll: Duration::from_secs(1),
            recheck: Duration::from_secs(5),
            max_streams: 256,
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
pub struct Said<T, G> {
    /// Where to go on from after this.
    pub cursor: String,
    /// The revision it is about.
    pub revision: Revision,
    /// What.
    pub event: Event<T, G>,
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum Event<T, G> {
    /// It is there.
    Snapshot(Arc<T>),
    /// It changed, or came.
    Changed(Arc<T>),
    /// It changed, and is no longer one of those that are watched.
    Left(Arc<T>),
    /// It is gone.
    Deleted(G),
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

/// What a cursor says: small, for it comes with every message.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cursor {
    #[serde(rename = "e")]
    epoch: u64,
    #[serde(rename = "r")]
    revision: Revision,
    #[serde(rename = "f")]
    filter: u64,
    /// The first bytes of the feed's chain at the revision.
    #[serde(rename = "c")]
    chain: u64,
    /// The place of the last item said, while what was there at the revision is
    /// still being said.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    listed: Option<String>,
    /// A later commit of which so many changes were said, and not all.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    partly: Option<(Revision, usize)>,
}

/// Whether the key that a stream was opened with still holds.
pub type StillValid = Arc<dyn Fn() -> bool + Send + Sync>;

/// A stream of what a watch says.
pub type Stream<W> = ReceiverStream<Result<Said<<W as Watched>::Item, <W as Watched>::Gone>>>;

/// Runs watches.
#[derive(Clone, Debug)]
pub struct Watches {
    engine: Engine,
    options: Options,
    drain: CancellationToken,
    tracker: TaskTracker,
    open: Arc<Mutex<HashMap<(Tenant, PrincipalName), usize>>>,
    interrupts: Tails<InterruptWatch>,
    timelines: Tails<TimelineWatch>,
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
            interrupts: Tails::default(),
            timelines: Tails::default(),
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
    /// cursor, [`Reason::LimitExceeded`].
    pub async fn watch<W: Watched>(
        &self,
        caller: &Caller,
        watched: W,
        start: Start,
        still_valid: StillValid,
    ) -> Result<Stream<W>> {
        let seat = self.seat(caller)?;
        let filter = u64::from_be_bytes(hash(&watched));
        let tails = W::tails(self);
        let tail = tails
            .of(&self.engine, &caller.tenant, self.options.poll)
            .await?;
        let greets = start == Start::Now;
        let place = match start {
            Start::Cursor(cursor) => self.open::<W>(caller, filter, &cursor).await?,
            Start::InitialState => Place {
                listed: Some(None),
                ..self.newest(caller).await?
            },
            Start::Now => self.newest(caller).await?,
        };
        let (said, stream) = mpsc::channel(BUFFER);
        let run = Run {
            life: Life::new(self, still_valid),
            bell: tail.bell(watched.interest()),
            tail,
            watches: self.clone(),
            tenant: caller.tenant.clone(),
            watched,
            filter,
            said,
            place,
        };
        self.tracker.spawn(async move {
            run.finish(greets).await;
            drop(seat);
        });
        Ok(ReceiverStream::new(stream))
    }

    async fn newest(&self, caller: &Caller) -> Result<Place> {
        let (revision, chain) = self.engine.read(&caller.tenant, Newest).await?;
        Ok(Place::at(revision, chain))
    }

    /// The place that a cursor names.
    async fn open<W: Watched>(&self, caller: &Caller, filter: u64, cursor: &str) -> Result<Place> {
        let sealer = self.engine.sealer();
        let cursor = sealer
            .open::<Cursor>(&caller.tenant, W::NAME.as_bytes(), cursor)
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
        if cursor.epoch != u64::from_be_bytes(sealer.epoch()) {
            return Err(epoch_changed());
        }
        if cursor.filter != filter {
            return Err(Error::new(
                Reason::CursorFilterChanged,
                "this cursor is of a watch with another filter; send that filter, or start with initial_state",
            )
            .at("cursor"));
        }
        let listed = cursor
            .listed
            .map(|listed| URL_SAFE_NO_PAD.decode(listed))
            .transpose();
        let Ok(listed) = listed else {
            return Err(Error::new(
                Reason::CursorInvalid,
                "this cursor names no item; start with initial_state",
            )
            .at("cursor"));
        };
        let revision = cursor.revision;
        let history = self
            .engine
            .read(&caller.tenant, History { revision })
            .await?;
        match history.chain {
            Some(chain) if short(chain) == cursor.chain => Ok(Place {
                listed: listed.map(Some),
                partly: cursor.partly,
                ..Place::at(revision, chain)
            }),
            Some(_) => Err(epoch_changed()),
            None if revision > history.newest => Err(epoch_changed()),
            None => {
                let (oldest, chain) = history.oldest;
                let place = Place::at(oldest, chain);
                let oldest_cursor = self.seal::<W>(&caller.tenant, filter, &place);
                Err(Error::new(
                    Reason::CursorCompacted,
                    "what came after this cursor is no longer kept; start with initial_state",
                )
                .with("oldest_revision", oldest)
                .with("oldest_cursor", oldest_cursor))
            }
        }
    }

    fn seal<W: Watched>(&self, tenant: &Tenant, filter: u64, place: &Place) -> String {
        let sealer = self.engine.sealer();
        let cursor = Cursor {
            epoch: u64::from_be_bytes(sealer.epoch()),
            revision: place.revision,
            filter,
            chain: short(place.chain),
            listed: place.listed.as_ref().map(|listed| {
                // At the very start there is no item to go on from.
                URL_SAFE_NO_PAD.encode(listed.as_deref().unwrap_or_default())
            }),
            partly: place.partly,
        };
        sealer.seal(tenant, W::NAME.as_bytes(), &cursor)
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
        let waiting = self.wait_for(caller, id).await?;
        let first = waiting.look().await?;
        let (said, stream) = mpsc::channel(BUFFER);
        let life = Life::new(self, still_valid);
        self.tracker.spawn(async move {
            let _seat = seat;
            if let Err(End::Failed(error)) = waiting.tell(first, &said, &life).await {
                // A reader that is gone meanwhile does not need it.
                let _ = said.try_send(Err(error));
            }
        });
        Ok(ReceiverStream::new(stream))
    }

    /// The interrupt once it is terminal, or as it is when `wait` is over or the
    /// server stops. Running out of time is no error.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`].
    pub async fn poll_decision(
        &self,
        caller: &Caller,
        id: InterruptId,
        wait: Duration,
    ) -> Result<Revised> {
        let waiting = self.wait_for(caller, id).await?;
        let end = Instant::now() + wait;
        loop {
            let found = waiting.look().await?;
            if found.0.state.is_terminal() {
                return Ok(found);
            }
            tokio::select! {
                () = waiting.bell.rung() => {}
                () = sleep_until(end) => return waiting.look().await,
                () = self.drain.cancelled() => return Ok(found),
            }
        }
    }

    async fn wait_for(&self, caller: &Caller, id: InterruptId) -> Result<Waiting> {
        let tails = &self.interrupts;
        let tail = tails
            .of(&self.engine, &caller.tenant, self.options.poll)
            .await?;
        Ok(Waiting {
            bell: tail.bell(Interest::Interrupt(id)),
            _tail: tail,
            engine: self.engine.clone(),
            caller: caller.clone(),
            id,
        })
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

/// Somebody waits for one interrupt.
struct Waiting {
    bell: Bell<InterruptWatch>,
    _tail: Arc<Tail<InterruptWatch>>,
    engine: Engine,
    caller: Caller,
    id: InterruptId,
}

impl Waiting {
    async fn look(&self) -> Result<Revised> {
        let found = self
            .engine
            .read(&self.caller.tenant, Find { id: self.id })
            .await?;
        found
            .filter(|(interrupt, _)| is_visible(&self.caller, interrupt))
            .ok_or_else(not_found)
    }

    async fn tell(
        &self,
        first: Revised,
        said: &mpsc::Sender<Result<Awaited>>,
        life: &Life,
    ) -> Result<(), End> {
        let mut seen = Revision::ZERO;
        let (mut interrupt, mut revision) = first;
        loop {
            if revision > seen {
                seen = revision;
                let terminal = interrupt.state.is_terminal();
                let state = Awaited::State(Box::new(interrupt), revision);
                life.say(said, state).await?;
                if terminal {
                    return Ok(());
                }
            }
            life.check()?;
            if let Some(farewell) = life.is_over() {
                return life.say(said, Awaited::Goodbye(farewell)).await;
            }
            tokio::select! {
                () = self.bell.rung() => {}
                () = life.over() => {}
                () = said.closed() => return Err(End::Gone),
                () = sleep(life.options.recheck) => {}
            }
            (interrupt, revision) = self.look().await?;
        }
    }
}

/// How long a stream goes on.
struct Life {
    options: Options,
    drain: CancellationToken,
    still_valid: StillValid,
    end: Instant,
}

impl Life {
    fn new(watches: &Watches, still_valid: StillValid) -> Self {
        Self {
            options: watches.options,
            drain: watches.drain.clone(),
            still_valid,
            end: Instant::now() + watches.options.max_age,
        }
    }

    /// Refuses to go on once the key is revoked.
    fn check(&self) -> Result<(), End> {
        if (self.still_valid)() {
            return Ok(());
        }
        Err(End::Failed(Error::new(
            Reason::Unauthenticated,
            "the key was revoked; use another one",
        )))
    }

    fn is_over(&self) -> Option<Farewell> {
        if self.drain.is_cancelled() {
            Some(Farewell::Drain)
        } else if Instant::now() >= self.end {
            Some(Farewell::MaxAge)
        } else {
            None
        }
    }

    async fn over(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = sleep_until(self.end) => {}
        }
    }

    /// Waits until the reader has room. One that has none for a while after the
    /// stream is over is left behind.
    async fn say<T>(&self, to: &mpsc::Sender<Result<T>>, said: T) -> Result<(), End> {
        let given_up = async {
            self.over().await;
            sleep(PATIENCE).await;
        };
        tokio::select! {
            biased;
            sent = to.send(Ok(said)) => sent.map_err(|_| End::Gone),
            () = given_up => Err(End::Gone),
        }
    }
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
    /// A later commit of which so many changes were said, and not all.
    partly: Option<(Revision, usize)>,
}

impl Place {
    const fn at(revision: Revision, chain: Digest) -> Self {
        Self {
            revision,
            chain,
            listed: None,
            partly: None,
        }
    }
}

/// The first bytes of a chain.
fn short(chain: Digest) -> u64 {
    chain
        .0
        .iter()
        .take(8)
        .fold(0, |short, byte| short << 8 | u64::from(*byte))
}

/// One stream.
struct Run<W: Watched> {
    life: Life,
    watches: Watches,
    tail: Arc<Tail<W>>,
    bell: Bell<W>,
    tenant: Tenant,
    watched: W,
    filter: u64,
    said: mpsc::Sender<Result<Said<W::Item, W::Gone>>>,
    place: Place,
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
    async fn finish(mut self, greets: bool) {
        let end = self.run(greets).await;
        if let Err(End::Failed(error)) = end {
            // A reader that is gone meanwhile does not need it.
            let _ = tokio::time::timeout(PATIENCE, self.said.send(Err(error))).await;
        }
    }

    async fn run(&mut self, greets: bool) -> Result<(), End> {
        if greets {
            // Without a first cursor, what happens before the second could be lost.
            self.say(self.place.revision, Event::Progress).await?;
        }
        if let Some(farewell) = self.list().await? {
            return self.goodbye(farewell).await;
        }
        let farewell = self.follow().await?;
        self.goodbye(farewell).await
    }

    async fn goodbye(&self, farewell: Farewell) -> Result<(), End> {
        self.say(self.place.revision, Event::Goodbye(farewell))
            .await
    }

    async fn say(&self, revision: Revision, event: Event<W::Item, W::Gone>) -> Result<(), End> {
        let said = Said {
            cursor: self
                .watches
                .seal::<W>(&self.tenant, self.filter, &self.place),
            revision,
            event,
        };
        self.life.say(&self.said, said).await
    }

    /// Says what was there at the place's revision, if that is still to be said.
    async fn list(&mut self) -> Result<Option<Farewell>, End> {
        while let Some(after) = self.place.listed.clone() {
            self.life.check()?;
            if let Some(farewell) = self.life.is_over() {
                return Ok(Some(farewell));
            }
            let list = List {
                watched: self.watched.clone(),
                after: after.filter(|after| !after.is_empty()),
                at: self.place.revision,
            };
            let page = self.watches.engine.read(&self.tenant, list).await;
            let page = page.map_err(list_failed)?;
            if page.is_empty() {
                self.place.listed = None;
                self.say(self.place.revision, Event::Synced).await?;
            }
            for (at, item) in page {
                self.place.listed = Some(Some(at));
                let event = Event::Snapshot(Arc::new(item.value));
                self.say(item.revision, event).await?;
            }
        }
        Ok(None)
    }

    /// Says every change after the place's revision.
    async fn follow(&mut self) -> Result<Farewell, End> {
        let options = self.life.options;
        let mut spoke = Instant::now();
        loop {
            let caught = self.catch_up().await?;
            self.life.check()?;
            if let Some(farewell) = self.life.is_over() {
                return Ok(farewell);
            }
            if caught.spoke {
                spoke = Instant::now();
            }
            if caught.more {
                continue;
            }
            if spoke.elapsed() >= options.progress {
                self.say(self.place.revision, Event::Progress).await?;
                spoke = Instant::now();
            }
            let wake = (spoke + options.progress).min(Instant::now() + options.recheck);
            tokio::select! {
                () = self.bell.rung() => {}
                () = self.life.over() => {}
                () = self.said.closed() => return Err(End::Gone),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Says some changes.
    async fn catch_up(&mut self) -> Result<Caught, End> {
        let batch = match self.tail.after(self.place.revision) {
            Some(batch) => batch,
            None => {
                let read = ReadFeed::<W>::after(self.place.revision);
                self.watches.engine.read(&self.tenant, read).await?
            }
        };
        let mut caught = Caught {
            spoke: false,
            more: batch.more,
        };
        for commit in batch.commits {
            caught.spoke |= self.say_commit(&commit).await?;
        }
        if let Some((revision, chain)) = batch.reached {
            self.place = Place::at(revision, chain);
        }
        Ok(caught)
    }

    /// Says what a commit changed, and whether there was something to say.
    async fn say_commit(&mut self, commit: &Commit<W>) -> Result<bool, End> {
        let changes = match &commit.changes {
            Ok(changes) => changes,
            Err(error) => return Err(End::Failed(error.clone())),
        };
        let said = match self.place.partly {
            Some((revision, said)) if revision == commit.revision => said,
            Some(_) | None => 0,
        };
        let mut events = changes
            .iter()
            .enumerate()
            .skip(said)
            .filter_map(|(at, change)| Some((at, self.watched.judge(change)?)))
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        let any = events.peek().is_some();
        while let Some((at, event)) = events.next() {
            if events.peek().is_some() {
                self.place.partly = Some((commit.revision, at + 1));
            } else {
                self.place = Place::at(commit.revision, commit.chain);
            }
            self.say(commit.revision, event).await?;
        }
        self.place = Place::at(commit.revision, commit.chain);
        Ok(any)
    }
}

/// What catching up came to.
struct Caught {
    /// Whether something was said.
    spoke: bool,
    /// Whether there is more.
    more: bool,
}

/// What a stream says when it cannot list any more.
fn list_failed(error: Error) -> Error {
    if error.reason == Reason::PageTokenInvalid {
        return Error::new(
            Reason::CursorCompacted,
            "too much has changed while what was there was being read; start with initial_state",
        );
    }
    error
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

/// What is known of a revision in the feed.
#[derive(Debug)]
struct History {
    revision: Revision,
}

/// See [`History`].
struct Known {
    newest: Revision,
    /// The oldest revision that is kept, and the chain there.
    oldest: (Revision, Digest),
    /// The chain at the revision.
    chain: Option<Digest>,
}

#[async_trait]
impl Query for History {
    type Output = Known;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Known, Abort> {
        let newest = reads.revision().await?;
        let chain = if self.revision == Revision::ZERO {
            Some(Digest::default())
        } else {
            reads.chain(self.revision).await?
        };
        let mut oldest = (Revision::ZERO, Digest::default());
        if chain.is_none() {
            let first = reads
                .feed(&Kind::ALL, Revision::ZERO, newest, 1)
                .await?
                .pop();
            oldest = first.map_or(oldest, |first| (first.version.revision, first.chain));
        }
        Ok(Known {
            newest,
            oldest,
            chain,
        })
    }
}

#[derive(Debug)]
struct Find {
    id: InterruptId,
}

#[async_trait]
impl Query for Find {
    type Output = Option<Revised>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let found = load::<Interrupt>(reads, &interrupt_key(self.id)).await?;
        Ok(found.map(|found| (found.value, found.revision)))
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
    type Output = Vec<Placed<W::Item>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        self.watched.list(reads, self.after.clone(), self.at).await
    }
}
