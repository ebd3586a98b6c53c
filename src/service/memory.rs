//! Memories: load, append, replace, clear, configure, delete.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::Caller;
use super::cover::check_memory;
use super::engine::{Command, Done, Engine};
use super::history::{Histories, HistoryPage, Part, Target};
use super::listing::{Listed, Order, Position, page};
use super::seal::Purpose;
use super::session_write::{TOMBSTONE_TTL, WindowOf, new_memory, rebase, window_of};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, MemoryRef, UserId};
use crate::domain::log::{LogId, Origin, Transcript};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Memory, MemorySettings, Preconditions};
use crate::domain::thread::Token;
use crate::storage::entities::memory_key;
use crate::storage::overlay::Overlay;
use crate::storage::typed::{ChangeSet, EncodedItem, Loaded, load, load_at, transcript};
use crate::storage::{Abort, Direction, Index, Kind, Query, Reads};

/// What a write does to a memory.
#[derive(Debug, Serialize)]
pub enum MemoryWrite {
    /// Adds these, also if they repeat what is there, then keeps the newest.
    Append(Vec<EncodedItem>),
    /// Makes these the whole of it, in one step.
    Replace(Vec<EncodedItem>),
    /// Empties it.
    Clear,
    /// Sets how it is kept in bounds.
    Configure(MemorySettings),
}

/// Writes to a memory.
#[derive(Debug, Serialize)]
pub struct WriteMemory {
    /// The memory; made if absent.
    pub memory: MemoryRef,
    /// Whose it is, if it is somebody's.
    pub owner: Option<UserId>,
    /// What to do.
    pub write: MemoryWrite,
    /// On its existence and content.
    pub preconditions: Preconditions,
    /// The settings' etag that was seen, if one was sent.
    pub settings_etag: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log to give to a new memory.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What a write to a memory did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryWritten {
    /// The memory.
    pub memory: MemoryRef,
    /// The first `seq` that was written; 0 for none.
    pub first_seq: i64,
    /// How many items were written.
    pub written: u64,
    /// How many items the window dropped.
    pub dropped: u64,
}

#[async_trait]
impl Command for WriteMemory {
    const METHOD: &'static str = "MemoryService/Write";
    type Receipt = MemoryWritten;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<MemoryWritten, Abort> {
        let now = reads.now();
        let mut memory = self.open(reads).await?;
        let on_settings = Preconditions {
            etag: self.settings_etag,
            ..Preconditions::default()
        };
        on_settings.check("memory's settings", memory.value.settings_etag, 0)?;
        check_memory(reads, &memory.value, self.token.as_ref()).await?;
        let replaces = matches!(self.write, MemoryWrite::Replace(_) | MemoryWrite::Clear);
        if replaces
            && memory.value.generation.stored().is_some()
            && self.token.is_none()
            && !self.preconditions.allows_replacing()
        {
            return Err(Error::new(
                Reason::AlreadyExists,
                "the memory exists, and this call would replace what it holds; \
                 send its etag, its base_seq, a fencing_token, or overwrite",
            )
            .with("last_seq", memory.value.head.last_seq)
            .into());
        }
        if replaces && !memory.value.head.is_empty() {
            memory.value.head.skip_seq();
            changes.rebase(&mut memory.value.head, &Transcript::default())?;
        }
        let before = memory.value.head.last_seq;
        match &self.write {
            MemoryWrite::Append(items) | MemoryWrite::Replace(items) => {
                append(changes, &mut memory.value, items);
            }
            MemoryWrite::Clear => {}
            MemoryWrite::Configure(settings) => {
                memory.value.settings = settings.clone();
                memory.value.settings_etag = Stamp::THIS_COMMIT;
            }
        }
        let whole = memory.value.head.len();
        window(reads, changes, &mut memory.value).await?;
        if !matches!(self.write, MemoryWrite::Configure(_)) || whole != memory.value.head.len() {
            memory.value.etag = Stamp::THIS_COMMIT;
        }
        memory.value.updated_at = now;
        let written = u64::try_from(memory.value.head.last_seq - before).unwrap_or(0);
        let dropped = whole - memory.value.head.len();
        changes.update(&memory)?;
        Ok(MemoryWritten {
            memory: self.memory.clone(),
            first_seq: if written > 0 { before + 1 } else { 0 },
            written,
            dropped,
        })
    }
}

fn append(changes: &mut ChangeSet, memory: &mut Memory, items: &[EncodedItem]) {
    for item in items {
        changes.append_item(&mut memory.head, Origin::Said, item);
    }
}

/// Keeps what the window has room for.
async fn window(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    memory: &mut Memory,
) -> Result<(), Abort> {
    if memory.head.len() <= u64::from(memory.settings.max_messages) {
        return Ok(());
    }
    let history = memory.head.history();
    let mut overlay = Overlay::new(reads, changes);
    let kept = window_of(&mut overlay, &history, &memory.settings, WindowOf::Memory).await?;
    let current = transcript(&mut overlay, &history).await?;
    if kept != current {
        rebase(reads, changes, &mut memory.head, &kept).await?;
    }
    Ok(())
}

impl WriteMemory {
    /// Opens the memory: as it is stored, or new if it is absent.
    async fn open(&self, reads: &mut dyn Reads) -> Result<Loaded<Memory>, Abort> {
        let now = reads.now();
        let found = load::<Memory>(reads, &memory_key(&self.memory)).await?;
        let fresh = || Memory {
            owner: self.owner.clone(),
            ..new_memory(&self.memory, self.new_log, now)
        };
        let Some(mut found) = found else {
            if self.preconditions.must_exist {
                return Err(memory_not_found().into());
            }
            let fresh = Loaded::fresh(fresh());
            self.preconditions.check("memory", fresh.value.etag, 0)?;
            return Ok(fresh);
        };
        if let Some(deleted_at) = found.value.deleted_at {
            if self.preconditions.must_exist {
                return Err(memory_not_found().into());
            }
            if !self.preconditions.recreate && now < deleted_at.after(TOMBSTONE_TTL) {
                return Err(Error::new(
                    Reason::Deleted,
                    "the memory was deleted; send recreate to make it anew, or use another memory_id",
                )
                .into());
            }
            found.value = fresh();
            return Ok(found);
        }
        if self.preconditions.must_not_exist {
            return Err(Error::new(
                Reason::AlreadyExists,
                "the memory exists; drop must_not_exist to change it",
            )
            .into());
        }
        check_owner(&found.value, self.owner.as_ref())?;
        self.preconditions
            .check("memory", found.value.etag, found.value.head.last_seq)?;
        Ok(found)
    }
}

/// Refuses whoever names another owner than the memory's.
fn check_owner(memory: &Memory, owner: Option<&UserId>) -> Result<()> {
    match (&memory.owner, owner) {
        (Some(own), Some(named)) if own != named => Err(Error::new(
            Reason::PermissionDenied,
            "the memory belongs to another user",
        )),
        _ => Ok(()),
    }
}

/// The refusal of whoever names a memory that is not there.
#[must_use]
pub fn memory_not_found() -> Error {
    Error::new(
        Reason::MemoryNotFound,
        "there is no such memory; check agent_id and memory_id, or append to make it",
    )
}

/// Deletes a memory.
#[derive(Debug, Serialize)]
pub struct DeleteMemory {
    /// The memory.
    pub memory: MemoryRef,
    /// The etag that was seen, if one was sent.
    pub etag: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
}

#[async_trait]
impl Command for DeleteMemory {
    const METHOD: &'static str = "MemoryService/DeleteMemory";
    type Receipt = bool;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<bool, Abort> {
        let found = load::<Memory>(reads, &memory_key(&self.memory)).await?;
        let Some(mut memory) = found.filter(|found| found.value.deleted_at.is_none()) else {
            return Ok(false);
        };
        check_memory(reads, &memory.value, self.token.as_ref()).await?;
        let on_content = Preconditions {
            etag: self.etag,
            ..Preconditions::default()
        };
        on_content.check("memory", memory.value.etag, memory.value.head.last_seq)?;
        memory.value.deleted_at = Some(reads.now());
        memory.value.etag = Stamp::THIS_COMMIT;
        changes.update(&memory)?;
        Ok(true)
    }
}

/// A memory as it was at a revision, with the commit that last changed it.
#[derive(Debug)]
struct GetMemory {
    memory: MemoryRef,
    at: Revision,
}

#[async_trait]
impl Query for GetMemory {
    type Output = Option<Loaded<Memory>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let found = load_at::<Memory>(reads, &memory_key(&self.memory), self.at).await?;
        Ok(found.filter(|found| found.value.deleted_at.is_none()))
    }
}

/// Memories of an agent and a user, or of all, the last changed first.
#[derive(Debug)]
struct ListMemories {
    agent: Option<AgentId>,
    user: Option<UserId>,
    limit: usize,
    from: Option<Position>,
}

#[async_trait]
impl Query for ListMemories {
    type Output = Listed<Memory>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let order = Order {
            index: Index::MemoryUpdated,
            prefix: Bytes::new(),
            direction: Direction::Forward,
        };
        let matches = |memory: &Memory| {
            self.agent
                .as_ref()
                .is_none_or(|agent| memory.key.agent == *agent)
                && (self.user.is_none() || memory.owner == self.user)
        };
        page::<Memory>(reads, &order, self.from.as_ref(), self.limit, matches).await
    }
}

/// A page of memories, each with the commit that last changed it.
#[derive(Clone, Debug)]
pub struct MemoryPage {
    /// The memories.
    pub items: Vec<(Memory, Revision)>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the list is of.
    pub revision: Revision,
}

/// Use cases of memories.
#[derive(Clone, Debug)]
pub struct Memories {
    engine: Engine,
    histories: Histories,
}

impl Memories {
    /// Use cases that run on `engine`.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            histories: Histories::new(engine.clone()),
            engine,
        }
    }

    /// A log for a new memory.
    #[must_use]
    pub fn new_log(&self) -> LogId {
        LogId(self.engine.new_id())
    }

    /// A memory's etag, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_etag(&self, caller: &Caller, memory: &MemoryRef, etag: &str) -> Option<Revision> {
        self.open(caller, Purpose::Etag, memory, etag)
    }

    /// The etag of a memory's settings, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_settings_etag(
        &self,
        caller: &Caller,
        memory: &MemoryRef,
        etag: &str,
    ) -> Option<Revision> {
        self.open(caller, Purpose::ListingEtag, memory, etag)
    }

    fn open(
        &self,
        caller: &Caller,
        purpose: Purpose,
        memory: &MemoryRef,
        etag: &str,
    ) -> Option<Revision> {
        let open = || {
            let key = memory_key(memory);
            self.engine
                .sealer()
                .open_revision(&caller.tenant, purpose, Kind::Memory, &key, etag)
        };
        (!etag.is_empty()).then(open)
    }

    /// The etags of a memory's content and of its settings, to send.
    #[must_use]
    pub fn seal_etags(
        &self,
        caller: &Caller,
        memory: &Memory,
        stored: Revision,
    ) -> (String, String) {
        let key = memory_key(&memory.key);
        let seal = |purpose, etag: Stamp| {
            let etag = etag.revision(stored);
            self.engine
                .sealer()
                .seal_revision(&caller.tenant, purpose, Kind::Memory, &key, etag)
        };
        (
            seal(Purpose::Etag, memory.etag),
            seal(Purpose::ListingEtag, memory.settings_etag),
        )
    }

    /// Writes to a memory.
    ///
    /// # Errors
    ///
    /// [`Reason::MemoryNotFound`], [`Reason::AlreadyExists`], [`Reason::Deleted`],
    /// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`],
    /// [`Reason::PreconditionRequired`], [`Reason::TokenRequired`],
    /// [`Reason::Fenced`].
    pub async fn write(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        write: WriteMemory,
    ) -> Result<Done<MemoryWritten>> {
        self.engine.submit(caller, request_id, write).await
    }

    /// Deletes a memory, and says whether it was there.
    ///
    /// # Errors
    ///
    /// [`Reason::EtagMismatch`], [`Reason::TokenRequired`], [`Reason::Fenced`].
    pub async fn delete(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        delete: DeleteMemory,
    ) -> Result<Done<bool>> {
        self.engine.submit(caller, request_id, delete).await
    }

    /// A memory as it was at a revision, with the commit that last changed it.
    ///
    /// # Errors
    ///
    /// [`Reason::MemoryNotFound`], [`Reason::PermissionDenied`] when it belongs to
    /// another user than the caller's key.
    pub async fn get(
        &self,
        caller: &Caller,
        memory: MemoryRef,
        at: Revision,
    ) -> Result<(Memory, Revision)> {
        let found = self
            .engine
            .read(&caller.tenant, GetMemory { memory, at })
            .await?
            .ok_or_else(memory_not_found)?;
        check_owner(&found.value, caller.user.as_ref())?;
        Ok((found.value, found.revision))
    }

    /// The current history of a memory: its first page. One that was never written
    /// is empty.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`] when it belongs to another user.
    pub async fn load(
        &self,
        caller: &Caller,
        memory: MemoryRef,
        owner: Option<&UserId>,
        limit: usize,
    ) -> Result<HistoryPage> {
        let get = GetMemory {
            memory: memory.clone(),
            at: Revision::LATEST,
        };
        let Some(found) = self.engine.read(&caller.tenant, get).await? else {
            return Ok(HistoryPage {
                items: Vec::new(),
                next: String::new(),
                total: 0,
                etag: String::new(),
                last_seq: 0,
                revision: Revision::ZERO,
            });
        };
        check_owner(&found.value, owner.or(caller.user.as_ref()))?;
        let at = Revision::LATEST;
        self.histories
            .page(
                caller,
                Target::Memory(memory),
                Part::default(),
                at,
                limit,
                "",
            )
            .await
    }

    /// A page of memories, the last changed first.
    ///
    /// # Errors
    ///
    /// [`Reason::PageTokenInvalid`].
    pub async fn list(
        &self,
        caller: &Caller,
        agent: Option<AgentId>,
        user: Option<UserId>,
        limit: usize,
        token: &str,
    ) -> Result<MemoryPage> {
        const METHOD: &str = "ListMemories";
        let filter = (&agent, &user);
        let sealer = self.engine.sealer();
        let from = sealer.open_page::<Position>(&caller.tenant, METHOD, &filter, token)?;
        let list = ListMemories {
            agent: agent.clone(),
            user: user.clone(),
            limit,
            from,
        };
        let listed = self.engine.read(&caller.tenant, list).await?;
        let next = listed
            .next
            .map(|next| sealer.seal_page(&caller.tenant, METHOD, &filter, &next));
        let revised = |found: Loaded<Memory>| (found.value, found.revision);
        Ok(MemoryPage {
            items: listed.items.into_iter().map(revised).collect(),
            next: next.unwrap_or_default(),
            revision: listed.at,
        })
    }
}
