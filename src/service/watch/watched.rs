//! What can be watched: interrupts, and timelines.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use super::Event;
use super::tail::Tails;
use super::{CHUNK, Watches};
use crate::domain::id::{AgentId, InterruptId, SessionRef, UserId};
use crate::domain::interrupt::Interrupt;
use crate::domain::revision::Revision;
use crate::domain::session::Session;
use crate::domain::timeline::{Entry, EntryKind};
use crate::service::interrupt::{Filter, ListOrder};
use crate::service::listing::{self, Position};
use crate::storage::entities::timeline_prefix;
use crate::storage::typed::{Loaded, decode, load_at};
use crate::storage::{Abort, Direction, Entity, FeedEntry, Kind, Reads, Stretch};

/// A record that matches, with its place among those that do.
pub type Placed<T> = (Vec<u8>, Loaded<T>);

/// What can be watched.
#[async_trait]
pub trait Watched: Debug + Clone + Serialize + Send + Sync + 'static {
    /// The records.
    type Item: Entity;

    /// What is said when something is gone.
    type Gone: Clone + Debug + Send + Sync + 'static;

    /// What cursors are for, so that one of another kind of watch is refused.
    const NAME: &'static str;

    /// The kinds of record whose changes are read.
    const KINDS: &'static [Kind];

    /// Whether a record is one of them.
    fn matches(&self, item: &Self::Item) -> bool;

    /// Whether something that is gone was one of them.
    fn had(&self, gone: &Self::Gone) -> bool;

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
    ) -> Result<Vec<Placed<Self::Item>>, Abort>;

    /// What a change of the feed is, whatever the filter.
    ///
    /// # Errors
    ///
    /// [`Abort::Store`] from `reads`.
    async fn change(
        reads: &mut dyn Reads,
        entry: &FeedEntry,
    ) -> Result<Option<Change<Self>>, Abort>;

    /// The narrowest interest that covers all of them.
    fn interest(&self) -> Interest;

    /// Everybody whom a change may interest.
    fn interested(change: &Change<Self>) -> Vec<Interest>;

    /// The tails that read for this kind of watch.
    fn tails(watches: &Watches) -> &Tails<Self>;

    /// What a change is for this watch; `None` when it is nothing.
    fn judge(&self, change: &Change<Self>) -> Option<Event<Self::Item, Self::Gone>> {
        match change {
            Change::Put { now, .. } if self.matches(now) => Some(Event::Changed(Arc::clone(now))),
            Change::Put { now, before } => before
                .as_ref()
                .filter(|before| self.matches(before))
                .map(|_| Event::Left(Arc::clone(now))),
            Change::Gone(gone) => self.had(gone).then(|| Event::Deleted(gone.clone())),
        }
    }
}

/// One change, decoded once for all who watch.
#[derive(Clone, Debug)]
pub enum Change<W: Watched> {
    /// A record was written.
    Put {
        /// As it is now.
        now: Arc<W::Item>,
        /// As it was, if it was there and can change at all.
        before: Option<Arc<W::Item>>,
    },
    /// Something is gone.
    Gone(W::Gone),
}

/// What wakes a stream. Everything that a stream may have to say is covered by its
/// one interest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Whatever happens.
    All,
    /// What happens to an agent.
    Agent(AgentId),
    /// What happens to sessions with this id.
    Session(String),
    /// What happens to threads with this id.
    Thread(String),
    /// What happens to an interrupt.
    Interrupt(InterruptId),
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
    /// Interrupts are not removed.
    type Gone = Infallible;
    const NAME: &'static str = "WatchInterrupts";
    const KINDS: &'static [Kind] = &[Kind::Interrupt];

    fn matches(&self, item: &Interrupt) -> bool {
        self.filter.matches(item)
    }

    fn had(&self, gone: &Infallible) -> bool {
        match *gone {}
    }

    async fn list(
        &self,
        reads: &mut dyn Reads,
        after: Option<Vec<u8>>,
        at: Revision,
    ) -> Result<Vec<Placed<Interrupt>>, Abort> {
        let order = self.filter.order(ListOrder::Oldest);
        let from = Position {
            after: after.unwrap_or_default(),
            at,
        };
        let matches = |item: &Interrupt| self.matches(item);
        let listed = listing::page(reads, &order, Some(&from), CHUNK, matches).await?;
        let place = |item: &Loaded<Interrupt>| {
            let mut entries = item.value.index().into_iter();
            entries
                .find(|entry| entry.index == order.index && entry.place.starts_with(&order.prefix))
                .map(|entry| entry.place.to_vec())
                .unwrap_or_default()
        };
        let placed = listed.items.into_iter().map(|item| (place(&item), item));
        Ok(placed.collect())
    }

    async fn change(
        reads: &mut dyn Reads,
        entry: &FeedEntry,
    ) -> Result<Option<Change<Self>>, Abort> {
        let now: Loaded<Interrupt> = decode(reads.tenant(), &entry.key, &entry.version)?;
        let before = previous::<Interrupt>(reads, entry).await?;
        Ok(Some(Change::Put {
            now: Arc::new(now.value),
            before: before.map(|before| Arc::new(before.value)),
        }))
    }

    fn interest(&self) -> Interest {
        let Filter {
            agent,
            session,
            thread,
            ..
        } = &self.filter;
        if let Some(thread) = thread {
            Interest::Thread(thread.clone())
        } else if let Some(session) = session {
            Interest::Session(session.clone())
        } else if let Some(agent) = agent {
            Interest::Agent(agent.clone())
        } else {
            Interest::All
        }
    }

    fn interested(change: &Change<Self>) -> Vec<Interest> {
        // Agent, session and thread of an interrupt never change.
        let Change::Put { now, .. } = change else {
            return Vec::new();
        };
        let mut interested = vec![
            Interest::All,
            Interest::Agent(now.agent.clone()),
            Interest::Interrupt(now.id),
        ];
        interested.extend(
            now.session
                .as_ref()
                .map(|session| Interest::Session(session.session.to_string())),
        );
        interested.extend(
            now.thread
                .as_ref()
                .map(|thread| Interest::Thread(thread.thread.to_string())),
        );
        interested
    }

    fn tails(watches: &Watches) -> &Tails<Self> {
        &watches.interrupts
    }
}

/// A watch of a session's timeline, or of all that a caller may see.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineWatch {
    /// The session; `None` for all.
    pub session: Option<SessionRef>,
    /// Sessions of this agent only.
    pub agent: Option<AgentId>,
    /// Sessions of this user only.
    pub user: Option<UserId>,
    /// Entries of one of these kinds; empty means any.
    pub kinds: Vec<EntryKind>,
}

impl TimelineWatch {
    fn covers(&self, session: &SessionRef) -> bool {
        self.session.as_ref().is_none_or(|only| only == session)
            && self
                .agent
                .as_ref()
                .is_none_or(|agent| *agent == session.agent)
            && (self.user.is_none() || self.user == session.user)
    }
}

#[async_trait]
impl Watched for TimelineWatch {
    type Item = Entry;
    /// The session whose timeline ended with it.
    type Gone = SessionRef;
    const NAME: &'static str = "WatchTimeline";
    const KINDS: &'static [Kind] = &[Kind::TimelineEntry, Kind::Session];

    fn matches(&self, item: &Entry) -> bool {
        self.covers(&item.session) && (self.kinds.is_empty() || self.kinds.contains(&item.kind))
    }

    fn had(&self, gone: &SessionRef) -> bool {
        self.covers(gone)
    }

    async fn list(
        &self,
        reads: &mut dyn Reads,
        after: Option<Vec<u8>>,
        at: Revision,
    ) -> Result<Vec<Placed<Entry>>, Abort> {
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
            let mut page = VecDeque::from(reads.records(Kind::TimelineEntry, &stretch, at).await?);
            let whole = page.len() < CHUNK;
            stretch.after = page
                .back()
                .map(|(key, _)| bytes::Bytes::copy_from_slice(key.as_bytes()));
            let mut found = Vec::new();
            while let Some((key, version)) = page.pop_front() {
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

    async fn change(
        reads: &mut dyn Reads,
        entry: &FeedEntry,
    ) -> Result<Option<Change<Self>>, Abort> {
        if entry.kind == Kind::TimelineEntry {
            let now: Loaded<Entry> = decode(reads.tenant(), &entry.key, &entry.version)?;
            // Entries are written once.
            return Ok(Some(Change::Put {
                now: Arc::new(now.value),
                before: None,
            }));
        }
        let session: Loaded<Session> = decode(reads.tenant(), &entry.key, &entry.version)?;
        if session.value.deleted_at.is_none() {
            return Ok(None);
        }
        let before = previous::<Session>(reads, entry).await?;
        let was_there = before.is_some_and(|before| before.value.deleted_at.is_none());
        Ok(was_there.then_some(Change::Gone(session.value.key)))
    }

    fn interest(&self) -> Interest {
        if let Some(session) = &self.session {
            Interest::Session(session.session.to_string())
        } else if let Some(agent) = &self.agent {
            Interest::Agent(agent.clone())
        } else {
            Interest::All
        }
    }

    fn interested(change: &Change<Self>) -> Vec<Interest> {
        let session = match change {
            Change::Put { now, .. } => &now.session,
            Change::Gone(session) => session,
        };
        vec![
            Interest::All,
            Interest::Agent(session.agent.clone()),
            Interest::Session(session.session.to_string()),
        ]
    }

    fn tails(watches: &Watches) -> &Tails<Self> {
        &watches.timelines
    }
}

/// The version before the one that a change wrote.
async fn previous<T: Entity>(
    reads: &mut dyn Reads,
    entry: &FeedEntry,
) -> Result<Option<Loaded<T>>, Abort> {
    let before = Revision::new(entry.version.revision.get() - 1);
    Ok(load_at::<T>(reads, &entry.key, before).await?)
}
