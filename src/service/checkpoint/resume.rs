//! Resume: one worker takes over where a run stopped, with what people decided.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::lease::{LeaseGrant, check_still_held, take_lease};
use super::save::memory_etag;
use super::{Checkpoints, find_thread, is_visible};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{CheckpointId, ConsumerId, InterruptId, RunId, ThreadRef};
use crate::domain::interrupt::{Consumption, InterruptState};
use crate::domain::json;
use crate::domain::log::RowRef;
use crate::domain::message::Item;
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::Session;
use crate::domain::state::StateMode;
use crate::domain::thread::{CallIdentity, Checkpoint, Granted, Reissued, Thread};
use crate::domain::timeline::{EntryKind, Link};
use crate::service::caller::Caller;
use crate::service::engine::{Command, Done};
use crate::service::interrupt::{GivenAnswer, check_answers, decide, open_interrupts};
use crate::service::session_write::{push_entry, sync_memory};
use crate::storage::entities::{checkpoint_key, session_key};
use crate::storage::typed::{ChangeSet, cells, items, load, transcript};
use crate::storage::{Abort, Error as StoreError, Reads};

/// The most items of a cut-off turn that are looked at for calls.
const TURN: u64 = 1_000;

/// How much of the interrupted turn a worker gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// The history ends before the turn: the model issues the call again.
    Cut,
    /// The whole history: the worker runs the stored call.
    Full,
}

/// Resumes a thread.
#[derive(Clone, Debug, Serialize)]
pub struct Resume {
    /// The thread.
    pub thread: ThreadRef,
    /// The checkpoint; absent for the newest.
    pub checkpoint: Option<CheckpointId>,
    /// Who resumes.
    pub consumer: ConsumerId,
    /// For how long.
    pub ttl: Duration,
    /// How much of the interrupted turn.
    pub view: View,
    /// How the checkpoint's state meets the session's.
    pub state_mode: StateMode,
    /// Resume although session or memory have changed since the checkpoint.
    pub overwrite: bool,
    /// Resume although some interrupts are undecided.
    pub allow_partial: bool,
    /// Resume although the checkpoint is spent.
    pub allow_replay: bool,
    /// Answers to record first, which takes the reviewer role.
    pub answers: Vec<GivenAnswer>,
    /// The run to go on with, for a thread that has none.
    #[serde(skip)]
    pub new_run: RunId,
}

/// What a resume granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The lease.
    pub grant: LeaseGrant,
    /// The checkpoint it goes on from.
    pub checkpoint: CheckpointId,
    /// How much of the interrupted turn.
    pub view: View,
    /// The `rev` of the timeline entry.
    pub timeline_rev: i64,
}

#[async_trait]
impl Command for Resume {
    const METHOD: &'static str = "CheckpointService/ResumeThread";
    type Receipt = Resumed;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Resumed, Abort> {
        let thread = find_thread(reads, &self.thread).await?;
        let mut thread = thread
            .filter(|thread| is_visible(caller, &thread.value.session))
            .ok_or_else(missing)?;
        let id = self.checkpoint.or(thread.value.head).ok_or_else(missing)?;
        let found = load::<Checkpoint>(reads, &checkpoint_key(&self.thread, id)).await?;
        let checkpoint = found
            .filter(|found| found.value.generation == thread.value.generation)
            .ok_or_else(missing)?
            .value;
        let session = load::<Session>(reads, &session_key(&thread.value.session)).await?;
        let mut session =
            session.ok_or_else(|| StoreError::Internal("a thread has no session".into()))?;

        let wanted = (&self.consumer, self.new_run, self.ttl);
        let granted = take_lease(reads, changes, caller, &mut thread, &mut session, wanted).await?;
        if granted == Granted::Renewed
            && thread
                .value
                .lease
                .as_ref()
                .is_some_and(|lease| lease.resumed == Some(id))
        {
            // The holder asks again: it has what it asked for.
            changes.update(&thread)?;
            changes.update(&session)?;
            return self.resumed(&thread.value, &session.value, id);
        }
        self.check_resumable(reads, changes, &thread.value, &session.value, &checkpoint)
            .await?;
        for answer in &self.answers {
            decide(reads, changes, caller, Some(&mut session), answer).await?;
        }
        self.consume(reads, changes, &mut thread.value).await?;
        self.restore(reads, changes, &mut session.value, &checkpoint)
            .await?;
        if self.view == View::Cut {
            expect_again(reads, &mut thread.value, &checkpoint).await?;
        }
        let label = self.thread.thread.as_str();
        push_entry(
            changes,
            &mut session.value,
            caller,
            EntryKind::Resume,
            label,
            Some(Link::Checkpoint(id)),
            reads.now(),
        )?;
        if let Some(lease) = &mut thread.value.lease {
            lease.resumed = Some(id);
        }
        thread.value.resume_etags = Some((
            session.value.etag,
            memory_etag(reads, changes, &session.value).await?,
        ));
        changes.update(&thread)?;
        changes.update(&session)?;
        self.resumed(&thread.value, &session.value, id)
    }

    async fn check_replay(
        &self,
        reads: &mut dyn Reads,
        receipt: &Resumed,
        made: Revision,
    ) -> Result<(), Abort> {
        check_still_held(
            reads,
            &receipt.grant.thread,
            receipt.grant.token.revision(made),
        )
        .await
    }
}

fn missing() -> Error {
    Error::new(
        Reason::CheckpointMissing,
        "there is nothing to resume: no such thread, or it has no such checkpoint; check the ids, or start a run with AcquireThread",
    )
}

impl Resume {
    fn resumed(
        &self,
        thread: &Thread,
        session: &Session,
        checkpoint: CheckpointId,
    ) -> Result<Resumed, Abort> {
        let lease = thread
            .lease
            .as_ref()
            .ok_or_else(|| StoreError::Internal("a granted lease is missing".into()))?;
        Ok(Resumed {
            grant: LeaseGrant::new(thread, lease, session),
            checkpoint,
            view: self.view,
            timeline_rev: session.timeline_rev,
        })
    }

    /// Whether the checkpoint may be resumed from, as session and memory are now.
    async fn check_resumable(
        &self,
        reads: &mut dyn Reads,
        changes: &ChangeSet,
        thread: &Thread,
        session: &Session,
        checkpoint: &Checkpoint,
    ) -> Result<(), Abort> {
        let spent = thread.head != Some(checkpoint.id) || thread.head_spent;
        if spent && !self.allow_replay {
            return Err(Error::new(
                Reason::CheckpointSpent,
                "a later commit has used this checkpoint up; resume the newest, or send allow_replay to run it again",
            )
            .with("head_checkpoint_id", thread.head.map(|head| head.to_string()).unwrap_or_default())
            .into());
        }
        if self.overwrite {
            return Ok(());
        }
        let memory = memory_etag(reads, changes, session).await?;
        let as_saved = session.etag == checkpoint.session_etag && memory == checkpoint.memory_etag;
        let as_resumed = thread.resume_etags == Some((session.etag, memory));
        if as_saved || as_resumed {
            return Ok(());
        }
        Err(Error::new(
            Reason::Conflict,
            "the session or its memory has changed since the checkpoint; look at it, then send overwrite to resume all the same",
        )
        .into())
    }

    /// Binds the decisions of the thread's interrupts to the new token.
    async fn consume(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        thread: &mut Thread,
    ) -> Result<(), Abort> {
        let now = reads.now();
        let mut pending = Vec::new();
        let mut consumed = Vec::new();
        for mut interrupt in open_interrupts(reads, changes, &self.thread).await? {
            match interrupt.value.state {
                InterruptState::Pending => pending.push(interrupt.value.id),
                InterruptState::Resolved | InterruptState::Expired => {
                    interrupt.value.consumption = Some(Consumption {
                        consumer: self.consumer.clone(),
                        token: thread
                            .lease
                            .as_ref()
                            .map_or(Stamp::THIS_COMMIT, |lease| lease.token),
                        at: now,
                        expires_at: None,
                        acknowledged_at: None,
                        outcome: String::new(),
                    });
                    interrupt.value.updated_at = now;
                    consumed.push(interrupt.value.id);
                    changes.update(&interrupt)?;
                }
                InterruptState::Cancelled | InterruptState::Superseded => {}
            }
        }
        if !pending.is_empty() && !self.allow_partial {
            return Err(interrupts_pending(&pending).into());
        }
        if let Some(lease) = &mut thread.lease {
            lease.consumed = consumed;
        }
        Ok(())
    }

    /// Sets history, state and memory to the checkpoint's.
    async fn restore(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        session: &mut Session,
        checkpoint: &Checkpoint,
    ) -> Result<(), Abort> {
        let mut changed = false;
        let keep = match (self.view, checkpoint.cut) {
            (View::Cut, Some(cut)) => cut,
            (View::Cut | View::Full, _) => checkpoint.history.len(),
        };
        let whole = keep == checkpoint.history.len();
        if !(whole && session.head.history() == checkpoint.history) {
            let wanted = transcript(reads, &checkpoint.history).await?.slice(0, keep);
            if wanted != transcript(reads, &session.head.history()).await? {
                session.head.skip_seq();
                changes.rebase(&mut session.head, &wanted)?;
                changed = true;
            }
        }
        if session.state != checkpoint.state {
            let state = self
                .restored_state(reads, changes, session, checkpoint.state)
                .await?;
            changed |= state != session.state;
            session.state = state;
        }
        if changed {
            session.etag = Stamp::THIS_COMMIT;
            session.saved_at = reads.now();
            sync_memory(reads, changes, session).await?;
        }
        Ok(())
    }

    async fn restored_state(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        session: &mut Session,
        saved: Option<RowRef>,
    ) -> Result<Option<RowRef>, Abort> {
        match self.state_mode {
            StateMode::Replace => Ok(saved),
            StateMode::Merge => {
                let current = cells(reads, session.state).await?;
                let saved_cells = cells(reads, saved).await?;
                let mut merged = current.clone();
                for cell in saved_cells {
                    match merged.iter_mut().find(|other| other.name == cell.name) {
                        Some(other) => *other = cell,
                        None => merged.push(cell),
                    }
                }
                if merged == current {
                    return Ok(session.state);
                }
                Ok(changes.write_cells(&mut session.head, &merged)?)
            }
        }
    }
}

/// The refusal of whoever goes on while questions are open.
#[must_use]
pub fn interrupts_pending(pending: &[InterruptId]) -> Error {
    let ids: Vec<String> = pending.iter().take(20).map(ToString::to_string).collect();
    Error::new(
        Reason::InterruptsPending,
        format!(
            "{} interrupts of the thread are undecided; wait for the decisions",
            pending.len()
        ),
    )
    .with("interrupt_ids", ids.join(","))
}

/// Notes the calls of the turn that is cut off, which the model will issue again.
async fn expect_again(
    reads: &mut dyn Reads,
    thread: &mut Thread,
    checkpoint: &Checkpoint,
) -> Result<(), Abort> {
    let (Some(cut), Some(lease)) = (checkpoint.cut, &mut thread.lease) else {
        return Ok(());
    };
    let end = checkpoint.history.len().min(cut.saturating_add(TURN));
    let turn = items(reads, &checkpoint.history, cut, end).await?;
    let messages = turn.iter().filter_map(|stored| stored.item.as_message());
    let mut again: Vec<Reissued> = Vec::new();
    for call in messages.flat_map(crate::domain::message::Message::tool_calls) {
        let action_digest = json::action_digest_hex(&call.name, call.args_json.as_deref());
        let same = |one: &&Reissued| {
            one.original.tool_call_id == call.id && one.original.action_digest == action_digest
        };
        let repeats = again.iter().filter(same).count();
        let original = CallIdentity {
            thread: thread.key.clone(),
            run: lease.run,
            tool_call_id: call.id.clone(),
            action_digest,
            ordinal: u32::try_from(repeats).unwrap_or(u32::MAX),
        };
        again.push(Reissued { original, by: None });
    }
    lease.reissued = again;
    Ok(())
}

/// The items of the interrupted turn's other calls: results that a worker under
/// [`View::Cut`] gets beside the history.
#[must_use]
pub fn sibling_results(turn: &[Item]) -> Vec<Item> {
    turn.iter()
        .filter(|item| {
            item.as_message()
                .is_some_and(|message| message.role == crate::domain::message::Role::Tool)
        })
        .cloned()
        .collect()
}

impl Checkpoints {
    /// Resumes a thread, waiting up to `wait` for its lease to be free.
    ///
    /// # Errors
    ///
    /// [`Reason::CheckpointMissing`], [`Reason::CheckpointSpent`],
    /// [`Reason::ThreadLeased`], [`Reason::InterruptsPending`],
    /// [`Reason::Conflict`]; with answers also those of a decision.
    pub async fn resume(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        resume: Resume,
        wait: Duration,
    ) -> Result<Done<Resumed>> {
        check_answers(&self.engine, caller, &resume.answers, true).await?;
        self.waiting(caller, wait, || {
            self.engine.submit(caller, request_id, resume.clone())
        })
        .await
    }

    /// A run id for a thread that has none.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        RunId::from_uuid(self.engine.new_id())
    }
}
