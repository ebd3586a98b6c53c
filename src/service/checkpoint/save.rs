//! Saving, suspending and pausing: each makes a checkpoint in one commit.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Checkpoints;
use super::gate::LeaseEnd;
use super::lease::{end_lease, open_thread};
use crate::domain::cut::{Interrupted, Match, cut_all};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{CheckpointId, InterruptId, MemoryRef, RunId, SessionRef, ThreadRef};
use crate::domain::interrupt::{InterruptSpec, check_distinct};
use crate::domain::json;
use crate::domain::log::{History, LogId};
use crate::domain::message::Item;
use crate::domain::revision::Stamp;
use crate::domain::session::{Memory, Preconditions, Session};
use crate::domain::state::StateUpdate;
use crate::domain::thread::{
    CallIdentity, Checkpoint, CheckpointKind, PendingCall, Thread, Token, check_token,
};
use crate::domain::timeline::{EntryKind, Link};
use crate::service::caller::Caller;
use crate::service::cover::check_session;
use crate::service::engine::{Command, Done};
use crate::service::interrupt::{Asking, ask, within};
use crate::service::session_write::{
    MessageWrite, open_session, push_entry, write_messages, write_state,
};
use crate::storage::entities::memory_key;
use crate::storage::overlay::Overlay;
use crate::storage::typed::{ChangeSet, EncodedItem, Loaded, items};
use crate::storage::{Abort, Error as StoreError, Reads};

/// How many items are read at a time when looking for the interrupted turn.
const PAGE: u64 = 64;

/// What a checkpoint is made of.
#[derive(Debug, Serialize)]
pub struct Draft {
    /// The thread; made if absent.
    pub thread: ThreadRef,
    /// Its session; made if absent.
    pub session: Option<SessionRef>,
    /// What is added to the session's history, or replaces it.
    pub messages: MessageWrite,
    /// The same messages, for finding turns and results in them.
    #[serde(skip)]
    pub written: Vec<Item>,
    /// What changes in the session's state for the checkpoint.
    pub state: Option<StateUpdate>,
    /// The client's own bytes.
    pub payload: Option<Bytes>,
    /// Their media type.
    pub payload_type: String,
    /// The format of payload and state.
    pub format_version: Option<i64>,
    /// The head must still be this; `Some(None)` means that there must be none.
    #[expect(
        clippy::option_option,
        reason = "no expectation differs from expecting no checkpoint"
    )]
    pub expected_parent: Option<Option<CheckpointId>>,
    /// The worker's token.
    pub token: Option<Token>,
    /// On existence, and on the session's content.
    pub preconditions: Preconditions,
    /// The id to give to the checkpoint.
    #[serde(skip)]
    pub id: CheckpointId,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
    /// The run to begin if none is under way.
    #[serde(skip)]
    pub new_run: RunId,
}

/// What a checkpoint's commit made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The thread.
    pub thread: ThreadRef,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The interrupts, in the order they were given.
    pub interrupts: Vec<InterruptId>,
    /// The `rev` of the last timeline entry that the commit wrote; 0 for none.
    pub timeline_rev: i64,
}

/// Thread and session while a checkpoint is being made.
struct Work {
    thread: Loaded<Thread>,
    session: Loaded<Session>,
}

impl Draft {
    /// Opens thread and session, and writes the messages.
    async fn open(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Work, Abort> {
        let mut thread = open_thread(
            reads,
            caller,
            &self.thread,
            self.session.as_ref(),
            &self.preconditions,
        )
        .await?;
        check_token(Some(&thread.value), self.token.as_ref())?;
        if let Some(expected) = &self.expected_parent
            && *expected != thread.value.head
        {
            return Err(Error::new(
                Reason::Conflict,
                "the thread has another newest checkpoint than expected; read it, then decide again",
            )
            .with("head_checkpoint_id", thread.value.head.map(|head| head.to_string()).unwrap_or_default())
            .into());
        }
        // What the preconditions say of existence is said of the thread.
        let on_session = Preconditions {
            must_exist: false,
            must_not_exist: false,
            ..self.preconditions.clone()
        };
        let mut session =
            open_session(reads, &thread.value.session, &on_session, self.new_log).await?;
        check_session(reads, &session.value, self.token.as_ref()).await?;
        if matches!(self.messages, MessageWrite::Replace(_))
            && !session.is_fresh()
            && self.token.is_none()
            && !self.preconditions.allows_replacing()
        {
            return Err(
                Error::precondition_required("fencing_token, etag, base_seq, overwrite").into(),
            );
        }
        let now = reads.now();
        write_messages(reads, changes, &mut session.value, &self.messages, now).await?;
        thread.value.run.get_or_insert(self.new_run);
        Ok(Work { thread, session })
    }

    /// Stores the checkpoint and makes it the thread's head.
    async fn close(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        work: &mut Work,
        kind: CheckpointKind,
        pending: Vec<PendingCall>,
        cut: Option<u64>,
    ) -> Result<(), Abort> {
        let now = reads.now();
        let session = &mut work.session.value;
        let state = match &self.state {
            Some(update) => {
                write_state(reads, changes, &mut session.head, session.state, update).await?
            }
            None => session.state,
        };
        let payload = self.payload.as_ref().map(|payload| {
            changes
                .write_cell(&mut session.head, "payload", payload, None)
                .at
        });
        let memory_etag = memory_etag(reads, changes, session).await?;
        changes.update(&work.session)?;
        let thread = &mut work.thread.value;
        let checkpoint = Checkpoint {
            id: self.id,
            thread: thread.key.clone(),
            generation: thread.generation,
            parent: thread.head,
            kind,
            created_at: now,
            run: thread.run,
            history: work.session.value.head.history(),
            cut,
            state,
            pending,
            payload,
            payload_type: self.payload_type.clone(),
            format_version: self.format_version,
            session_etag: work.session.value.etag,
            memory_etag,
        };
        changes.insert(&checkpoint)?;
        thread.head = Some(self.id);
        thread.head_spent = false;
        thread.resume_etags = None;
        thread.updated_at = now;
        thread.etag = Stamp::THIS_COMMIT;
        if let Some(lease) = &mut thread.lease {
            lease.resumed = Some(self.id);
        }
        changes.update(&work.thread)?;
        Ok(())
    }

    /// Where the turn with the interrupted calls begins, if it is found.
    async fn find_cut(
        &self,
        reads: &mut dyn Reads,
        changes: &ChangeSet,
        history: &History,
        pending: &[PendingCall],
    ) -> Result<Option<u64>, Abort> {
        if pending.is_empty() {
            return Ok(None);
        }
        let wanted = || {
            pending.iter().map(|call| Interrupted {
                call_id: Some(&call.tool_call_id),
                tool: &call.tool,
                args: call.args_json.as_deref(),
            })
        };
        // The turn is nearly always among what was just written, or the newest items.
        let mut newest: Vec<Item> = Vec::new();
        let mut start = history.len();
        loop {
            let found = cut_all(&newest, wanted());
            if found.matched == Match::CallId || (found.matched == Match::Action && start == 0) {
                return Ok(Some(start + found.kept as u64));
            }
            if start == 0 {
                return Ok(None);
            }
            let from = start.saturating_sub(PAGE);
            let mut overlay = Overlay::new(reads, changes);
            let mut page: Vec<Item> = items(&mut overlay, history, from, start)
                .await?
                .into_iter()
                .map(|stored| stored.item)
                .collect();
            page.append(&mut newest);
            newest = page;
            start = from;
        }
    }
}

/// The etag of the memory that a session links.
pub(super) async fn memory_etag(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    session: &Session,
) -> Result<Option<Stamp>, Abort> {
    let Some(memory) = &session.memory_id else {
        return Ok(None);
    };
    let key = memory_key(&MemoryRef {
        agent: session.key.agent.clone(),
        memory: memory.clone(),
    });
    Ok(changes
        .load::<Memory>(reads, &key)
        .await?
        .map(|memory| memory.value.etag))
}

/// Makes a checkpoint while the run goes on.
#[derive(Debug, Serialize)]
pub struct Save(pub Draft);

#[async_trait]
impl Command for Save {
    const METHOD: &'static str = "CheckpointService/SaveCheckpoint";
    type Receipt = Saved;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Saved, Abort> {
        let draft = &self.0;
        let mut work = draft.open(caller, reads, changes).await?;
        draft
            .close(
                reads,
                changes,
                &mut work,
                CheckpointKind::Saved,
                Vec::new(),
                None,
            )
            .await?;
        Ok(Saved {
            thread: draft.thread.clone(),
            checkpoint: draft.id,
            interrupts: Vec::new(),
            timeline_rev: 0,
        })
    }
}

/// Stops a run with nobody to wait for.
#[derive(Debug, Serialize)]
pub struct Pause(pub Draft);

#[async_trait]
impl Command for Pause {
    const METHOD: &'static str = "CheckpointService/PauseThread";
    type Receipt = Saved;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Saved, Abort> {
        let draft = &self.0;
        let mut work = draft.open(caller, reads, changes).await?;
        let end = LeaseEnd::Committed {
            written: &draft.written,
        };
        end_lease(
            reads,
            changes,
            caller,
            &mut work.thread.value,
            &mut work.session.value,
            &end,
        )
        .await?;
        let label = draft.thread.thread.as_str();
        let link = Some(Link::Checkpoint(draft.id));
        push_entry(
            changes,
            &mut work.session.value,
            caller,
            EntryKind::Pause,
            label,
            link,
            reads.now(),
        )?;
        draft
            .close(
                reads,
                changes,
                &mut work,
                CheckpointKind::Paused,
                Vec::new(),
                None,
            )
            .await?;
        Ok(Saved {
            thread: draft.thread.clone(),
            checkpoint: draft.id,
            interrupts: Vec::new(),
            timeline_rev: work.session.value.timeline_rev,
        })
    }
}

/// Stops a run until people have answered.
#[derive(Debug, Serialize)]
pub struct Suspend {
    /// The checkpoint.
    pub draft: Draft,
    /// The questions. Each that is about a tool call names it.
    pub interrupts: Vec<InterruptSpec>,
    /// Ids for the interrupts, one for each.
    #[serde(skip)]
    pub interrupt_ids: Vec<InterruptId>,
}

#[async_trait]
impl Command for Suspend {
    const METHOD: &'static str = "CheckpointService/SuspendThread";
    type Receipt = Saved;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Saved, Abort> {
        let draft = &self.draft;
        let mut work = draft.open(caller, reads, changes).await?;
        let end = LeaseEnd::Committed {
            written: &draft.written,
        };
        end_lease(
            reads,
            changes,
            caller,
            &mut work.thread.value,
            &mut work.session.value,
            &end,
        )
        .await?;
        let run = work.thread.value.run.unwrap_or(draft.new_run);
        let (interrupts, pending) = self.ask(caller, reads, changes, &mut work, run).await?;
        let history = work.session.value.head.history();
        let cut = draft.find_cut(reads, changes, &history, &pending).await?;
        draft
            .close(
                reads,
                changes,
                &mut work,
                CheckpointKind::Suspended,
                pending,
                cut,
            )
            .await?;
        Ok(Saved {
            thread: draft.thread.clone(),
            checkpoint: draft.id,
            interrupts,
            timeline_rev: work.session.value.timeline_rev,
        })
    }
}

impl Suspend {
    /// Makes the interrupts and the calls that wait for them.
    async fn ask(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        work: &mut Work,
        run: RunId,
    ) -> Result<(Vec<InterruptId>, Vec<PendingCall>), Abort> {
        let (mut interrupts, mut pending) = (Vec::new(), Vec::new());
        for (spec, id) in self.interrupts.iter().zip(&self.interrupt_ids) {
            let mut asking = Asking {
                agent: self.draft.thread.agent.clone(),
                session: Some(work.session.value.key.clone()),
                thread: Some(self.draft.thread.clone()),
                run: Some(run),
                checkpoint: Some(self.draft.id),
                execution_key: None,
            };
            let call = spec.action.as_ref().map(|action| CallIdentity {
                thread: self.draft.thread.clone(),
                run,
                tool_call_id: action.tool_call_id.clone(),
                action_digest: json::action_digest_hex(&action.tool, action.args_json.as_deref()),
                ordinal: action.ordinal,
            });
            asking.execution_key = call.as_ref().map(|call| call.execution_key(reads.tenant()));
            let session = Some(&mut work.session.value);
            let asked = ask(reads, changes, caller, session, spec, *id, &asking)
                .await
                .map_err(|abort| within(abort, &format!("interrupts[{}]", interrupts.len())))?;
            if let (Some(action), Some(call)) = (&spec.action, call) {
                pending.push(PendingCall {
                    tool_call_id: call.tool_call_id,
                    tool: action.tool.clone(),
                    args_json: action.args_json.clone(),
                    ordinal: call.ordinal,
                    interrupt: asked.id,
                });
            }
            interrupts.push(asked.id);
        }
        Ok((interrupts, pending))
    }

    /// Checks what needs no store.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`].
    pub fn check(&self) -> Result<()> {
        if self.interrupts.is_empty() {
            return Err(Error::argument(
                "interrupts",
                "must not be empty; a run that waits for nobody is paused with PauseThread",
            ));
        }
        check_distinct(&self.interrupts)?;
        let calls: Vec<_> = self
            .interrupts
            .iter()
            .map(|spec| {
                spec.action
                    .as_ref()
                    .map(|action| (&action.tool_call_id, action.ordinal))
            })
            .collect();
        for (at, call) in calls.iter().enumerate() {
            let Some((id, _)) = call else { continue };
            if id.is_empty() {
                return Err(Error::argument(
                    format!("interrupts[{at}].action.tool_call_id"),
                    "must name the call",
                ));
            }
            if calls.iter().take(at).any(|earlier| earlier == call) {
                return Err(Error::argument(
                    format!("interrupts[{at}].action"),
                    "another interrupt asks about this call; tell repeated calls apart by ordinal",
                ));
            }
        }
        Ok(())
    }
}

impl Checkpoints {
    /// Makes a checkpoint while the run goes on.
    ///
    /// # Errors
    ///
    /// [`Reason::TokenRequired`], [`Reason::Fenced`], [`Reason::Conflict`],
    /// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`], [`Reason::Deleted`],
    /// [`Reason::ThreadNotFound`], [`Reason::PreconditionRequired`].
    pub async fn save(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        draft: Draft,
    ) -> Result<Done<Saved>> {
        self.engine.submit(caller, request_id, Save(draft)).await
    }

    /// Stops a run with nobody to wait for.
    ///
    /// # Errors
    ///
    /// As [`Self::save`].
    pub async fn pause(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        draft: Draft,
    ) -> Result<Done<Saved>> {
        self.engine.submit(caller, request_id, Pause(draft)).await
    }

    /// Stops a run until people have answered.
    ///
    /// # Errors
    ///
    /// As [`Self::save`], and those of a question that makes no sense.
    pub async fn suspend(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        suspend: Suspend,
    ) -> Result<Done<Saved>> {
        suspend.check()?;
        self.engine.submit(caller, request_id, suspend).await
    }

    /// A draft's ids, made before it runs.
    #[must_use]
    pub fn draft_ids(&self) -> (CheckpointId, LogId, RunId) {
        (
            CheckpointId::from_uuid(self.engine.new_id()),
            LogId(self.engine.new_id()),
            RunId::from_uuid(self.engine.new_id()),
        )
    }

    /// The items, encoded.
    ///
    /// # Errors
    ///
    /// [`Reason::Internal`] when one cannot be spelled as JSON, which is a bug.
    pub fn encode(items: &[Item]) -> Result<Vec<EncodedItem>> {
        let encoded: Result<_, StoreError> = items.iter().map(EncodedItem::new).collect();
        encoded.map_err(|error| crate::service::engine::explain(error.into()))
    }

    /// An id for an interrupt.
    #[must_use]
    pub fn interrupt_id(&self) -> InterruptId {
        InterruptId::from_uuid(self.engine.new_id())
    }
}
