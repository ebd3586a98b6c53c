//! The end of a run, in one commit.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::body::{BodyUpdate, check_linked, linked, linked_memory, write_body};
use super::write::open_to_replace;
use super::{Left, SessionView, Sessions};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{InterruptId, RunId, SessionRef, ThreadId, ThreadRef};
use crate::domain::interrupt::InterruptState;
use crate::domain::log::LogId;
use crate::domain::message::{Item, Role};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Preconditions, Session};
use crate::domain::state::StateUpdate;
use crate::domain::thread::{Thread, Token, check_token};
use crate::domain::timeline::{EntryKind, Link};
use crate::service::caller::Caller;
use crate::service::checkpoint::gate::LeaseEnd;
use crate::service::checkpoint::lease::end_lease;
use crate::service::checkpoint::resume::interrupts_pending;
use crate::service::engine::{Command, Done};
use crate::service::interrupt::open_interrupts;
use crate::service::session_write::{
    MessageWrite, push_entry, sync_memory, touch, write_messages, write_state,
};
use crate::storage::entities::thread_key;
use crate::storage::typed::{ChangeSet, EncodedItem, Loaded, load};
use crate::storage::{Abort, Query, Reads};

/// Ends a run.
#[derive(Debug, Serialize)]
pub struct CommitRun {
    /// The session.
    pub session: SessionRef,
    /// The thread of the run, if it has one.
    pub thread: Option<ThreadId>,
    /// The token of its lease.
    pub token: Option<Token>,
    /// The messages of the run, its last turn included.
    pub messages: MessageWrite,
    /// The label of the timeline's entry.
    pub label: String,
    /// The state.
    pub state: Option<StateUpdate>,
    /// Prompts, plugin states and the like.
    pub body: BodyUpdate,
    /// Whether to withdraw open interrupts instead of refusing.
    pub withdraw: bool,
    /// What came of the decisions that the run consumed.
    pub outcome: String,
    /// On the session's existence and content.
    pub preconditions: Preconditions,
    /// The log of a session that is new.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What the end of a run did.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunCommitted {
    /// The run; none without a thread.
    pub run: Option<RunId>,
    /// The `rev` of the timeline's entry.
    pub timeline_rev: i64,
    /// Interrupts that were acknowledged.
    pub acknowledged: Vec<InterruptId>,
    /// Interrupts that were withdrawn.
    pub withdrawn: Vec<InterruptId>,
    #[serde(skip)]
    left: Left,
}

#[async_trait]
impl Command for CommitRun {
    const METHOD: &'static str = "SessionService/CommitRun";
    type Receipt = RunCommitted;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<RunCommitted, Abort> {
        let now = reads.now();
        let token = self.token.as_ref();
        let thread = self.thread(reads).await?;
        let mut opened = open_to_replace(
            reads,
            &self.session,
            &self.preconditions,
            self.new_log,
            true,
            token,
        )
        .await?;
        let session = &mut opened.value;
        check_linked(reads, session, token).await?;

        let (acknowledged, withdrawn) = match &thread {
            Some(thread) => {
                self.settle_interrupts(reads, changes, caller, &thread.value, session)
                    .await?
            }
            None => (Vec::new(), Vec::new()),
        };
        write_messages(reads, changes, session, &self.messages, now).await?;
        if let Some(update) = &self.state {
            session.state =
                write_state(reads, changes, &mut session.head, session.state, update).await?;
        }
        write_body(reads, changes, session, &self.body).await?;
        touch(session, now);

        let run = match thread {
            Some(thread) => self.end(reads, changes, caller, thread, session).await?,
            None => None,
        };
        let timeline_rev = push_entry(
            changes,
            session,
            caller,
            EntryKind::Run,
            &self.label,
            run.map(Link::Run),
            now,
        )?;
        sync_memory(reads, changes, session).await?;
        changes.update(&opened)?;
        Ok(RunCommitted {
            run,
            timeline_rev,
            acknowledged,
            withdrawn,
            left: Some(Box::new(opened.value)),
        })
    }
}

impl CommitRun {
    /// The thread of the run, whose lease the caller proves to hold.
    async fn thread(&self, reads: &mut dyn Reads) -> Result<Option<Loaded<Thread>>, Abort> {
        let Some(thread) = &self.thread else {
            return Ok(None);
        };
        let key = ThreadRef {
            agent: self.session.agent.clone(),
            thread: thread.clone(),
        };
        if self.token.is_none() {
            return Err(Error::new(
                Reason::TokenRequired,
                "the run of a thread ends with its fencing token; acquire or resume the thread, then send it",
            )
            .at("fencing_token")
            .into());
        }
        let found = load::<Thread>(reads, &thread_key(&key)).await?;
        let found = found.filter(|thread| thread.value.deleted_at.is_none());
        let Some(found) = found else {
            return Err(Error::new(
                Reason::ThreadNotFound,
                "there is no such thread; check agent_id and thread_id",
            )
            .at("thread_id")
            .into());
        };
        check_token(Some(&found.value), self.token.as_ref())?;
        if found.value.session != self.session {
            return Err(Error::argument(
                "thread_id",
                "the thread belongs to another session; name that one",
            )
            .into());
        }
        Ok(Some(found))
    }

    /// Acknowledges the decisions that this run acted on, and sees that nobody is
    /// still asked.
    async fn settle_interrupts(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        caller: &Caller,
        thread: &Thread,
        session: &mut Session,
    ) -> Result<(Vec<InterruptId>, Vec<InterruptId>), Abort> {
        let now = reads.now();
        let token = thread.lease.as_ref().map(|lease| lease.token);
        let open = open_interrupts(reads, changes, &thread.key).await?;
        let pending: Vec<_> = open
            .iter()
            .filter(|interrupt| interrupt.value.state == InterruptState::Pending)
            .map(|interrupt| interrupt.value.id)
            .collect();
        if !pending.is_empty() && !self.withdraw {
            return Err(interrupts_pending(&pending).into());
        }
        let mut acknowledged = Vec::new();
        let mut withdrawn = Vec::new();
        for mut interrupt in open {
            let id = interrupt.value.id;
            if interrupt.value.cancel(now) {
                withdrawn.push(id);
                push_entry(
                    changes,
                    session,
                    caller,
                    EntryKind::Decision,
                    "CANCEL",
                    Some(Link::Interrupt(id)),
                    now,
                )?;
            } else if let Some(consumption) = &mut interrupt.value.consumption
                && token == Some(consumption.token)
            {
                consumption.acknowledged_at = Some(now);
                consumption.outcome.clone_from(&self.outcome);
                interrupt.value.updated_at = now;
                acknowledged.push(id);
            } else {
                continue;
            }
            changes.update(&interrupt)?;
        }
        Ok((acknowledged, withdrawn))
    }

    /// Ends the lease of the thread and spends its checkpoint; answers with the run.
    async fn end(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        caller: &Caller,
        mut thread: Loaded<Thread>,
        session: &mut Session,
    ) -> Result<Option<RunId>, Abort> {
        let run = thread.value.lease.as_ref().map(|lease| lease.run);
        let written = self.results()?;
        let end = LeaseEnd::Committed { written: &written };
        end_lease(reads, changes, caller, &mut thread.value, session, &end).await?;
        thread.value.head_spent = thread.value.head.is_some();
        thread.value.run = None;
        thread.value.resume_etags = None;
        thread.value.etag = Stamp::THIS_COMMIT;
        changes.update(&thread)?;
        Ok(run)
    }

    /// The results of tools among the messages of the run.
    fn results(&self) -> Result<Vec<Item>, Abort> {
        let sent = match &self.messages {
            MessageWrite::Keep => &[],
            MessageWrite::Append(sent) | MessageWrite::Replace(sent) => sent.as_slice(),
        };
        let results = sent
            .iter()
            .filter(|item| item.sketch().role == Some(Role::Tool))
            .map(EncodedItem::item)
            .collect::<Result<_, _>>()?;
        Ok(results)
    }
}

/// The etag of the memory that a session links, at a revision.
#[derive(Debug)]
struct MemoryEtag {
    session: Session,
    at: Revision,
}

#[async_trait]
impl Query for MemoryEtag {
    type Output = Option<Revision>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let memory = linked_memory(reads, &self.session, self.at).await?;
        Ok(memory.and_then(|memory| memory.value.etag.stored()))
    }
}

impl Sessions {
    /// Ends a run. Answers with the session, and with the etag of its linked
    /// memory, sealed; empty when it links none.
    ///
    /// # Errors
    ///
    /// As [`Sessions::save`]; [`Reason::ThreadNotFound`],
    /// [`Reason::InterruptsPending`].
    pub async fn commit_run(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        commit: CommitRun,
    ) -> Result<(SessionView, String, Done<RunCommitted>)> {
        let key = commit.session.clone();
        let mut done = self.submit(caller, request_id, commit).await?;
        let left = done.receipt.left.take();
        let view = self.after(caller, &key, left, done.revision).await?;
        let memory_etag = match linked(&view.session) {
            None => String::new(),
            Some(memory) => {
                let query = MemoryEtag {
                    session: view.session.clone(),
                    at: done.revision,
                };
                let etag = self.engine.read(&caller.tenant, query).await?;
                etag.map(|etag| self.seal_memory_etag(caller, &memory, etag))
                    .unwrap_or_default()
            }
        };
        Ok((view, memory_etag, done))
    }
}
