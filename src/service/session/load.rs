//! Loading a session with its body, at one revision.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::body::{Body, MemoryLink, linked, linked_memory, read_body, relink};
use super::{SessionView, Sessions};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, SessionRef, UserId};
use crate::domain::log::LogId;
use crate::domain::revision::Revision;
use crate::domain::session::{Preconditions, Session};
use crate::domain::thread::Token;
use crate::service::caller::{Caller, Role};
use crate::service::cover::check_session;
use crate::service::engine::Command;
use crate::service::history::Target;
use crate::service::session_write::{
    MessageWrite, open_session, session_not_found, touch, write_messages,
};
use crate::storage::entities::session_key;
use crate::storage::typed::{ChangeSet, EncodedItem, Loaded, StoredItem, items, load_at};
use crate::storage::{Abort, Query, Reads};

/// What a caller expects of a stored session. Absent parts expect nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expectations {
    /// The format versions that the caller can read.
    pub format_versions: Vec<i64>,
    /// The agent that stored it.
    pub agent: Option<AgentId>,
    /// The user that it belongs to.
    pub user: Option<UserId>,
    /// The digest of the evidence scope.
    pub evidence_scope_digest: Option<String>,
    /// The digest of the task scope.
    pub task_scope_digest: Option<String>,
}

impl Expectations {
    /// Compares a stored session with what is expected.
    ///
    /// # Errors
    ///
    /// [`Reason::RestoreRejected`], naming the first mismatch.
    pub fn check(&self, session: &Session) -> Result<()> {
        let Self {
            format_versions,
            agent,
            user,
            evidence_scope_digest,
            task_scope_digest,
        } = self;
        let is_readable = format_versions.is_empty()
            || session
                .format_version
                .is_some_and(|version| format_versions.contains(&version));
        let is_or_absent = |expected: &Option<String>, stored: &Option<String>| {
            expected.is_none() || expected == stored
        };
        let mismatch = if !is_readable {
            "format_version"
        } else if agent
            .as_ref()
            .is_some_and(|agent| *agent != session.key.agent)
        {
            "agent_id"
        } else if user.is_some() && *user != session.key.user {
            "user_id"
        } else if !is_or_absent(evidence_scope_digest, &session.evidence_scope_digest) {
            "evidence_scope_digest"
        } else if !is_or_absent(task_scope_digest, &session.task_scope_digest) {
            "task_scope_digest"
        } else {
            return Ok(());
        };
        Err(Error::new(
            Reason::RestoreRejected,
            format!(
                "the stored session has another {mismatch} than expected; nothing was changed, \
                 load another session or expect what is stored"
            ),
        )
        .with("mismatch", mismatch))
    }
}

/// What a load writes before it reads, where the caller asked for that.
#[derive(Debug, Serialize)]
pub struct Prepare {
    /// The session.
    pub session: SessionRef,
    /// What is expected of it.
    pub expectations: Expectations,
    /// Written if session and linked memory are new.
    pub seed: Vec<EncodedItem>,
    /// The memory to link.
    pub memory: MemoryLink,
    /// On the session's existence and content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log of a session that is new.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What a preparation did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepared {
    /// Whether the seed was written.
    seeded: bool,
}

#[async_trait]
impl Command for Prepare {
    const METHOD: &'static str = "SessionService/LoadSession";
    type Receipt = Prepared;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Prepared, Abort> {
        let now = reads.now();
        let mut opened =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        let session = &mut opened.value;
        let is_new = session.generation.stored().is_none();
        if !is_new {
            self.expectations.check(session)?;
        }
        let token = self.token.as_ref();
        let has_etag = self.preconditions.etag.is_some();
        let mut is_touched = relink(reads, changes, session, &self.memory, has_etag, token).await?;
        let memory = linked_memory(reads, session, Revision::LATEST).await?;
        let is_empty = memory.is_none_or(|memory| memory.value.head.is_empty());
        let seeded = is_new && is_empty && !self.seed.is_empty();
        if seeded {
            let write = MessageWrite::Append(self.seed.clone());
            is_touched |= write_messages(reads, changes, session, &write, now)
                .await?
                .changed;
        }
        if is_touched {
            check_session(reads, session, token).await?;
            touch(session, now);
            changes.update(&opened)?;
        }
        Ok(Prepared { seeded })
    }
}

/// Where the messages of a loaded session come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredFrom {
    /// The stored session.
    Session,
    /// The linked memory, since the session has none.
    Memory,
    /// The seed that this call wrote.
    Seed,
    /// Nothing is there.
    New,
}

/// What was read.
#[derive(Debug)]
struct Found {
    session: Option<Loaded<Session>>,
    body: Body,
    from: RestoredFrom,
    target: Target,
    messages: Vec<StoredItem>,
    total: u64,
    at: Revision,
}

#[derive(Debug)]
struct Read {
    session: SessionRef,
    expectations: Expectations,
    must_exist: bool,
    at: Revision,
    limit: u64,
}

#[async_trait]
impl Query for Read {
    type Output = Found;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let at = reads.revision().await?.min(self.at);
        let session = load_at::<Session>(reads, &session_key(&self.session), at).await?;
        let session = session.filter(|session| session.value.deleted_at.is_none());
        let target = Target::Session(self.session.clone());
        let Some(session) = session else {
            if self.must_exist {
                return Err(session_not_found().into());
            }
            return Ok(Found {
                session: None,
                body: Body::default(),
                from: RestoredFrom::New,
                target,
                messages: Vec::new(),
                total: 0,
                at,
            });
        };
        self.expectations.check(&session.value)?;
        let mut from = RestoredFrom::Session;
        let mut history = session.value.head.history();
        let mut source = target;
        if history.is_empty()
            && let Some(key) = linked(&session.value)
            && let Some(memory) = linked_memory(reads, &session.value, at).await?
            && !memory.value.head.is_empty()
        {
            from = RestoredFrom::Memory;
            history = memory.value.head.history();
            source = Target::Memory(key);
        }
        let messages = items(reads, &history, 0, self.limit.min(history.len())).await?;
        Ok(Found {
            body: read_body(reads, &session.value).await?,
            session: Some(session),
            from,
            target: source,
            messages,
            total: history.len(),
            at,
        })
    }
}

/// A session with its body, and the first page of its messages.
#[derive(Clone, Debug)]
pub struct LoadedSession {
    /// The session; `None` if there is none.
    pub session: Option<SessionView>,
    /// Its body.
    pub body: Body,
    /// The first messages.
    pub messages: Vec<StoredItem>,
    /// The token that continues them; empty if those are all.
    pub next: String,
    /// Where they come from.
    pub from: RestoredFrom,
    /// The revision that was read.
    pub revision: Revision,
}

/// How to load a session.
#[derive(Debug)]
pub struct Load {
    /// What to write before, and what is expected.
    pub prepare: Prepare,
    /// The revision to read; `None` for the newest.
    pub at: Option<Revision>,
    /// The most messages to answer.
    pub limit: usize,
}

impl Sessions {
    /// Loads a session, after seeding or linking it where that was asked for.
    ///
    /// # Errors
    ///
    /// [`Reason::RestoreRejected`], [`Reason::SessionNotFound`];
    /// [`Reason::ArgumentInvalid`] and [`Reason::PermissionDenied`] for a load that
    /// would write and may not; and as [`Sessions::save`].
    pub async fn load(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        load: Load,
    ) -> Result<LoadedSession> {
        let Load { prepare, at, limit } = load;
        let mut read = Read {
            session: prepare.session.clone(),
            expectations: prepare.expectations.clone(),
            must_exist: prepare.preconditions.must_exist,
            at: at.unwrap_or(Revision::LATEST),
            limit: limit as u64,
        };
        let mut seeded = false;
        if !prepare.seed.is_empty() || prepare.memory != MemoryLink::Keep {
            caller.require(&[Role::Agent])?;
            if request_id.is_none() {
                return Err(Error::argument(
                    "request_id",
                    "is required with seed_messages and memory_id",
                ));
            }
            if at.is_some() {
                return Err(Error::argument(
                    "at_revision",
                    "cannot go with seed_messages or memory_id",
                ));
            }
            let done = self.submit(caller, request_id, prepare).await?;
            seeded = done.receipt.seeded;
            read.at = done.revision;
        }
        let found = self.engine.read(&caller.tenant, read).await?;
        let shown = found.messages.len() as u64;
        Ok(LoadedSession {
            next: self
                .histories
                .rest(caller, &found.target, shown, found.total, found.at),
            session: found
                .session
                .map(|session| self.view(caller, session.value, session.revision)),
            body: found.body,
            messages: found.messages,
            from: if seeded {
                RestoredFrom::Seed
            } else {
                found.from
            },
            revision: found.at,
        })
    }
}
