//! Timelines: listing, and entries of clients.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::Caller;
use super::engine::{Command, Done, Engine};
use super::session_write::session_not_found;
use crate::domain::error::Result;
use crate::domain::id::SessionRef;
use crate::domain::revision::Revision;
use crate::domain::session::Session;
use crate::domain::timeline::{Entry, EntryKind};
use crate::storage::entities::{session_key, timeline_key, timeline_prefix};
use crate::storage::typed::{ChangeSet, decode, load, load_at};
use crate::storage::{Abort, Direction, Error as StoreError, Kind, Query, Reads, Stretch};

/// How many entries are read at a time.
const CHUNK: usize = 256;

/// Which entries of a session.
#[derive(Clone, Debug, Serialize)]
pub struct EntryFilter {
    /// The session.
    pub session: SessionRef,
    /// Of one of these kinds; empty means any.
    pub kinds: Vec<EntryKind>,
    /// From this `rev` on.
    pub from: Option<i64>,
    /// Up to this `rev`.
    pub to: Option<i64>,
    /// The newest first.
    pub newest_first: bool,
}

/// Where a page ended.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    rev: i64,
    at: Revision,
}

#[derive(Debug)]
struct ListEntries {
    filter: EntryFilter,
    limit: usize,
    position: Option<Position>,
}

/// A page of entries.
#[derive(Debug)]
struct Listed {
    entries: Vec<(Entry, Revision)>,
    next: Option<Position>,
    at: Revision,
}

#[async_trait]
impl Query for ListEntries {
    type Output = Listed;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Listed, Abort> {
        let newest = reads.revision().await?;
        let at = self
            .position
            .as_ref()
            .map_or(newest, |position| position.at);
        let key = |rev: i64| {
            Some(bytes::Bytes::copy_from_slice(
                timeline_key(&self.filter.session, rev).as_bytes(),
            ))
        };
        let after = match (&self.position, self.filter.newest_first) {
            (Some(position), _) => key(position.rev),
            (None, false) => self
                .filter
                .from
                .and_then(|from| key(from.saturating_sub(1).max(0))),
            (None, true) => self
                .filter
                .to
                .and_then(|to| key(to.saturating_add(1).max(0))),
        };
        let direction = if self.filter.newest_first {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let prefix = timeline_prefix(&self.filter.session);
        let mut stretch = Stretch {
            prefix,
            after,
            direction,
            limit: CHUNK,
        };
        let mut entries = Vec::new();
        'pages: loop {
            let page = reads.records(Kind::TimelineEntry, &stretch, at).await?;
            let whole = page.len() < CHUNK;
            stretch.after = page
                .last()
                .map(|(key, _)| bytes::Bytes::copy_from_slice(key.as_bytes()));
            for (key, version) in page {
                let entry = decode::<Entry>(reads.tenant(), &key, &version)?;
                let rev = entry.value.rev;
                if self.filter.from.is_some_and(|from| rev < from)
                    || self.filter.to.is_some_and(|to| rev > to)
                {
                    continue;
                }
                if self.filter.kinds.is_empty() || self.filter.kinds.contains(&entry.value.kind) {
                    entries.push((entry.value, entry.revision));
                    if entries.len() > self.limit {
                        break 'pages;
                    }
                }
            }
            if whole {
                break;
            }
        }
        let more = entries.len() > self.limit;
        entries.truncate(self.limit);
        let next = entries
            .last()
            .filter(|_| more)
            .map(|(entry, _)| Position { rev: entry.rev, at });
        Ok(Listed { entries, next, at })
    }
}

/// Adds an entry of a client's own.
#[derive(Debug, Serialize)]
pub struct AppendEntry {
    /// The session.
    pub session: SessionRef,
    /// For people.
    pub label: String,
    /// More about it: a JSON object.
    pub data_json: Option<String>,
}

#[async_trait]
impl Command for AppendEntry {
    const METHOD: &'static str = "TimelineService/AppendEntry";
    type Receipt = (SessionRef, i64);

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<(SessionRef, i64), Abort> {
        let session = load::<Session>(reads, &session_key(&self.session)).await?;
        let mut session = session
            .filter(|session| session.value.deleted_at.is_none())
            .ok_or_else(session_not_found)?;
        session.value.timeline_rev += 1;
        let rev = session.value.timeline_rev;
        changes.insert(&Entry {
            session: self.session.clone(),
            rev,
            kind: EntryKind::Custom,
            label: self.label.clone(),
            at: reads.now(),
            principal: caller.principal.clone(),
            link: None,
            data_json: self.data_json.clone(),
        })?;
        changes.update(&session)?;
        Ok((self.session.clone(), rev))
    }
}

#[derive(Debug)]
struct GetEntry {
    session: SessionRef,
    rev: i64,
}

#[async_trait]
impl Query for GetEntry {
    type Output = Entry;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Entry, Abort> {
        let entry = load_at::<Entry>(
            reads,
            &timeline_key(&self.session, self.rev),
            Revision::LATEST,
        )
        .await?;
        let missing = || StoreError::Internal("a timeline entry is missing".into());
        Ok(entry.ok_or_else(missing)?.value)
    }
}

/// A page of entries, each with the commit that wrote it.
#[derive(Clone, Debug)]
pub struct EntryPage {
    /// The entries.
    pub items: Vec<(Entry, Revision)>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the list is of.
    pub revision: Revision,
}

/// Use cases of timelines.
#[derive(Clone, Debug)]
pub struct Timelines {
    engine: Engine,
}

impl Timelines {
    /// Use cases that run on `engine`.
    #[must_use]
    pub const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// A page of a session's entries. One that never was has none.
    ///
    /// # Errors
    ///
    /// [`crate::domain::error::Reason::PageTokenInvalid`].
    pub async fn list(
        &self,
        caller: &Caller,
        filter: EntryFilter,
        limit: usize,
        token: &str,
    ) -> Result<EntryPage> {
        const METHOD: &str = "ListEntries";
        let sealer = self.engine.sealer();
        let position = sealer.open_page::<Position>(&caller.tenant, METHOD, &filter, token)?;
        let list = ListEntries {
            filter: filter.clone(),
            limit,
            position,
        };
        let Listed { entries, next, at } = self.engine.read(&caller.tenant, list).await?;
        let next = next.map(|next| sealer.seal_page(&caller.tenant, METHOD, &filter, &next));
        Ok(EntryPage {
            items: entries,
            next: next.unwrap_or_default(),
            revision: at,
        })
    }

    /// Adds an entry of a client's own.
    ///
    /// # Errors
    ///
    /// [`crate::domain::error::Reason::SessionNotFound`].
    pub async fn append(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        append: AppendEntry,
    ) -> Result<Done<Entry>> {
        let Done {
            revision,
            at,
            receipt: (session, rev),
            replayed,
        } = self.engine.submit(caller, request_id, append).await?;
        let entry = self
            .engine
            .read(&caller.tenant, GetEntry { session, rev })
            .await?;
        Ok(Done {
            revision,
            at,
            receipt: entry,
            replayed,
        })
    }
}
