//! Reading histories: of sessions, memories and checkpoints, in pages that stay as
//! they were.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::checkpoint::read::{find_checkpoint, view_of};
use super::checkpoint::resume::View;
use super::engine::Engine;
use super::seal::Purpose;
use super::session_write::session_not_found;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{CheckpointId, MemoryRef, SessionRef, ThreadRef, UserId};
use crate::domain::log::History;
use crate::domain::revision::Revision;
use crate::domain::session::{Memory, Session};
use crate::storage::entities::{memory_key, session_key};
use crate::storage::typed::{StoredItem, items, load_at};
use crate::storage::{Abort, Kind, Query, Reads};

/// The RPC whose page tokens continue every history.
const METHOD: &str = "ListMessages";

/// Whose history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Target {
    /// A session's.
    Session(SessionRef),
    /// A memory's.
    Memory(MemoryRef),
    /// A checkpoint's, in a view.
    Checkpoint {
        /// The thread.
        thread: ThreadRef,
        /// The checkpoint; `None` for the newest.
        checkpoint: Option<CheckpointId>,
        /// How much of the interrupted turn.
        view: View,
    },
}

/// Which part of a history, and from which end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The first index; absent means 0.
    pub from: Option<u64>,
    /// The index after the last; absent means the end.
    pub to: Option<u64>,
    /// Whether to read from the last backwards.
    pub newest_first: bool,
}

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    part: Part,
    at: Revision,
}

/// A page of a history.
#[derive(Clone, Debug)]
pub struct HistoryPage {
    /// The items, in the order that was asked for, with their indexes.
    pub items: Vec<(u64, StoredItem)>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// How many items the history has.
    pub total: u64,
    /// The owner's etag, sealed; empty for a checkpoint.
    pub etag: String,
    /// The owner's last `seq`; 0 for a checkpoint.
    pub last_seq: i64,
    /// The revision that the history is of.
    pub revision: Revision,
}

/// What was found of a history.
#[derive(Debug)]
struct Found {
    history: History,
    total: u64,
    etag: Option<Revision>,
    last_seq: i64,
    /// The user it belongs to, where the target does not name them.
    owner: Option<UserId>,
}

#[derive(Debug)]
struct ReadPage {
    target: Target,
    part: Part,
    at: Revision,
    limit: u64,
}

#[async_trait]
impl Query for ReadPage {
    type Output = (Found, Vec<(u64, StoredItem)>, Option<Part>, Revision);

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let newest = reads.revision().await?;
        let at = self.at.min(newest);
        let found = self.target.find(reads, at).await?;
        let from = self.part.from.unwrap_or(0).min(found.total);
        let to = self.part.to.unwrap_or(found.total).min(found.total);
        let length = to.saturating_sub(from).min(self.limit);
        let more = to.saturating_sub(from) > length;
        let first = if self.part.newest_first {
            to - length
        } else {
            from
        };
        let read = items(reads, &found.history, first, first + length).await?;
        let mut page: Vec<_> = (first..).zip(read).collect();
        let rest = if self.part.newest_first {
            page.reverse();
            Part {
                from: Some(from),
                to: Some(first),
                newest_first: true,
            }
        } else {
            Part {
                from: Some(first + length),
                to: Some(to),
                newest_first: false,
            }
        };
        Ok((found, page, more.then_some(rest), at))
    }
}

impl Target {
    async fn find(&self, reads: &mut dyn Reads, at: Revision) -> Result<Found, Abort> {
        match self {
            Self::Session(key) => {
                let session = load_at::<Session>(reads, &session_key(key), at).await?;
                let session = session
                    .filter(|found| found.value.deleted_at.is_none())
                    .ok_or_else(session_not_found)?
                    .value;
                Ok(Found {
                    history: session.head.history(),
                    total: session.head.len(),
                    etag: session.etag.stored(),
                    last_seq: session.head.last_seq,
                    owner: session.key.user,
                })
            }
            Self::Memory(key) => {
                let memory = load_at::<Memory>(reads, &memory_key(key), at).await?;
                let missing = || {
                    Error::new(
                        Reason::MemoryNotFound,
                        "there is no such memory; check the ids",
                    )
                };
                let memory = memory
                    .filter(|found| found.value.deleted_at.is_none())
                    .ok_or_else(missing)?
                    .value;
                Ok(Found {
                    history: memory.head.history(),
                    total: memory.head.len(),
                    etag: memory.etag.stored(),
                    last_seq: memory.head.last_seq,
                    owner: memory.owner,
                })
            }
            Self::Checkpoint {
                thread,
                checkpoint,
                view,
            } => {
                let found = find_checkpoint(reads, thread, *checkpoint).await?;
                let (history, total) = view_of(&found.checkpoint, *view);
                Ok(Found {
                    history,
                    total,
                    etag: None,
                    last_seq: 0,
                    owner: found.session.user,
                })
            }
        }
    }

    /// What the etag of the owner is sealed for.
    fn sealed_for(&self) -> Option<(Kind, crate::storage::Key)> {
        match self {
            Self::Session(key) => Some((Kind::Session, session_key(key))),
            Self::Memory(key) => Some((Kind::Memory, memory_key(key))),
            Self::Checkpoint { .. } => None,
        }
    }
}

/// Reads histories.
#[derive(Clone, Debug)]
pub struct Histories {
    engine: Engine,
}

impl Histories {
    /// Reads histories of an engine's store.
    #[must_use]
    pub const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// A page of a history. A token says all but the target.
    ///
    /// # Errors
    ///
    /// [`Reason::SessionNotFound`], [`Reason::MemoryNotFound`],
    /// [`Reason::CheckpointMissing`], [`Reason::PageTokenInvalid`].
    pub async fn page(
        &self,
        caller: &Caller,
        target: Target,
        part: Part,
        at: Revision,
        limit: usize,
        token: &str,
    ) -> Result<HistoryPage> {
        let sealer = self.engine.sealer();
        let position = sealer.open_page::<Position>(&caller.tenant, METHOD, &target, token)?;
        let Position { part, at } = position.unwrap_or(Position { part, at });
        let read = ReadPage {
            target: target.clone(),
            part,
            at,
            limit: limit as u64,
        };
        let (found, items, rest, at) = self.engine.read(&caller.tenant, read).await?;
        // A memory without owner is open to all users of its agent.
        let open = matches!(target, Target::Memory(_)) && found.owner.is_none();
        if !open {
            caller.check_user(found.owner.as_ref())?;
        }
        let next = rest
            .map(|part| sealer.seal_page(&caller.tenant, METHOD, &target, &Position { part, at }));
        let etag = target
            .sealed_for()
            .zip(found.etag)
            .map(|((kind, key), etag)| {
                sealer.seal_revision(&caller.tenant, Purpose::Etag, kind, &key, etag)
            });
        Ok(HistoryPage {
            items,
            next: next.unwrap_or_default(),
            total: found.total,
            etag: etag.unwrap_or_default(),
            last_seq: found.last_seq,
            revision: at,
        })
    }

    /// The token that continues a history of which the first `shown` items were
    /// answered; empty when that was all.
    #[must_use]
    pub fn rest(
        &self,
        caller: &Caller,
        target: &Target,
        shown: u64,
        total: u64,
        at: Revision,
    ) -> String {
        if shown >= total {
            return String::new();
        }
        let part = Part {
            from: Some(shown),
            to: Some(total),
            newest_first: false,
        };
        self.engine
            .sealer()
            .seal_page(&caller.tenant, METHOD, target, &Position { part, at })
    }
}
