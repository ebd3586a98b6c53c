//! Reading threads and checkpoints.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::resume::{View, sibling_results};
use super::{Checkpoints, find_thread, is_visible, thread_not_found};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, CheckpointId, SessionRef, ThreadRef, UserId};
use crate::domain::interrupt::{Answer, Interrupt, InterruptState};
use crate::domain::json;
use crate::domain::log::{History, RowClass};
use crate::domain::message::Item;
use crate::domain::revision::Revision;
use crate::domain::thread::{
    Call, CallIdentity, CallState, Checkpoint, PendingCall, Thread, ToolResult,
};
use crate::domain::time::Timestamp;
use crate::service::caller::Caller;
use crate::service::history::{Histories, Target};
use crate::storage::entities::{
    call_key, checkpoint_key, checkpoint_prefix, interrupt_key, thread_prefix,
};
use crate::storage::typed::{
    StoredItem, cell_text, cell_value, cells, decode, items, load, load_at,
};
use crate::storage::{
    Abort, Direction, Error as StoreError, Index, Key, Kind, Query, Reads, Stretch,
};

/// The most interrupts that a thread's summary names.
const NAMED_INTERRUPTS: usize = 1_000;

/// A thread with what waits on it.
#[derive(Clone, Debug)]
pub struct ThreadSummary {
    /// The thread.
    pub thread: Thread,
    /// The commit that last changed it.
    pub revision: Revision,
    /// Its undecided interrupts.
    pub pending: Vec<crate::domain::id::InterruptId>,
    /// How many decisions were made and not acknowledged.
    pub unacknowledged: usize,
}

/// A checkpoint with all that it refers to.
#[derive(Clone, Debug)]
pub struct CheckpointContent {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The commit that made it.
    pub revision: Revision,
    /// Whether it is used up.
    pub spent: bool,
    /// Its session.
    pub session: SessionRef,
    /// The history in the view that was asked for: its first items.
    pub messages: Vec<StoredItem>,
    /// How many items the view has.
    pub message_count: u64,
    /// State keys and JSON texts, in order.
    pub state: Vec<(String, String)>,
    /// The calls that wait, with what was decided.
    pub pending: Vec<PendingView>,
    /// Results of the interrupted turn's other calls.
    pub siblings: Vec<Item>,
    /// The client's own bytes.
    pub payload: Option<Bytes>,
}

/// A checkpoint without its contents.
#[derive(Clone, Debug)]
pub struct CheckpointSummary {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The commit that made it.
    pub revision: Revision,
    /// Whether it is used up.
    pub spent: bool,
    /// Its session.
    pub session: SessionRef,
    /// How many bytes the payload has.
    pub payload_size: usize,
}

/// A call that waits, with what is known of it.
#[derive(Clone, Debug)]
pub struct PendingView {
    /// The call.
    pub call: PendingCall,
    /// Its digest.
    pub action_digest: String,
    /// Its key.
    pub execution_key: String,
    /// What may be done with it.
    pub standing: Standing,
    /// The interrupt that asks about it, or asked.
    pub interrupt: Interrupt,
    /// The commit that last changed the interrupt.
    pub interrupt_revision: Revision,
    /// The recorded result.
    pub result: Option<ToolResult>,
}

/// What may be done with a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Wait for a decision.
    Waiting,
    /// Gate it and run it.
    Ready,
    /// It was let through.
    Started,
    /// It has run.
    Done,
    /// It must not run.
    Refused,
    /// A person answered in its stead.
    Answered,
    /// A reviewer has to say what happened.
    InDoubt,
}

/// What may be done with a call, by its record and its interrupt.
fn standing(call: Option<&Call>, interrupt: &Interrupt) -> Standing {
    match call.map(|call| call.state) {
        Some(CallState::Started) => return Standing::Started,
        Some(CallState::Finished) => return Standing::Done,
        Some(CallState::InDoubt) => return Standing::InDoubt,
        Some(CallState::Retry) => return Standing::Ready,
        None => {}
    }
    match interrupt.state {
        InterruptState::Pending => Standing::Waiting,
        InterruptState::Expired | InterruptState::Cancelled | InterruptState::Superseded => {
            Standing::Refused
        }
        InterruptState::Resolved => match interrupt.resolution().map(|decision| &decision.answer) {
            Some(Answer::Approve { .. } | Answer::Edit { .. }) => Standing::Ready,
            Some(Answer::Respond { .. } | Answer::Choose { .. }) => Standing::Answered,
            Some(Answer::Reject { .. } | Answer::Skip | Answer::Suspend) | None => {
                Standing::Refused
            }
        },
    }
}

/// The history of a checkpoint in a view: the history, and how much of it.
#[must_use]
pub fn view_of(checkpoint: &Checkpoint, view: View) -> (History, u64) {
    let length = match (view, checkpoint.cut) {
        (View::Cut, Some(cut)) => cut,
        (View::Cut | View::Full, _) => checkpoint.history.len(),
    };
    (checkpoint.history, length)
}

fn checkpoint_missing() -> Error {
    Error::new(
        Reason::CheckpointMissing,
        "there is no such checkpoint; check the ids",
    )
}

/// Finds a checkpoint and how it stands; `None` for the newest.
///
/// # Errors
///
/// [`Reason::CheckpointMissing`].
pub async fn find_checkpoint(
    reads: &mut dyn Reads,
    thread: &ThreadRef,
    id: Option<CheckpointId>,
) -> Result<CheckpointSummary, Abort> {
    let missing = checkpoint_missing;
    let found = find_thread(reads, thread).await?.ok_or_else(missing)?.value;
    let id = id.or(found.head).ok_or_else(missing)?;
    let checkpoint = load::<Checkpoint>(reads, &checkpoint_key(thread, id))
        .await?
        .ok_or_else(missing)?;
    if checkpoint.value.generation != found.generation {
        return Err(missing().into());
    }
    summarize(reads, &found, checkpoint.value, checkpoint.revision).await
}

async fn summarize(
    reads: &mut dyn Reads,
    thread: &Thread,
    checkpoint: Checkpoint,
    revision: Revision,
) -> Result<CheckpointSummary, Abort> {
    let payload_size = match checkpoint.payload {
        Some(at) => reads
            .rows(at.log, RowClass::Cell, at.number, at.number)
            .await?
            .first()
            .map_or(0, |row| row.body.len()),
        None => 0,
    };
    Ok(CheckpointSummary {
        spent: thread.head != Some(checkpoint.id) || thread.head_spent,
        session: thread.session.clone(),
        checkpoint,
        revision,
        payload_size,
    })
}

/// A checkpoint with its contents.
#[derive(Debug)]
pub struct GetCheckpoint {
    /// The thread.
    pub thread: ThreadRef,
    /// The checkpoint; `None` for the newest.
    pub checkpoint: Option<CheckpointId>,
    /// How much of the interrupted turn.
    pub view: View,
    /// How many items at most.
    pub page: u64,
    /// As the interrupts and calls were at this revision.
    pub at: Revision,
}

#[async_trait]
impl Query for GetCheckpoint {
    type Output = CheckpointContent;

    async fn run(&self, reads: &mut dyn Reads) -> Result<CheckpointContent, Abort> {
        let CheckpointSummary {
            checkpoint,
            revision,
            spent,
            session,
            ..
        } = find_checkpoint(reads, &self.thread, self.checkpoint).await?;
        let (history, message_count) = view_of(&checkpoint, self.view);
        let messages = items(reads, &history, 0, message_count.min(self.page)).await?;
        let mut state = Vec::new();
        for cell in cells(reads, checkpoint.state).await? {
            state.push((cell.name, cell_text(reads, cell.at).await?));
        }
        let mut pending = Vec::new();
        for call in &checkpoint.pending {
            pending.push(self.pending(reads, &checkpoint, call).await?);
        }
        let siblings = match checkpoint.cut {
            Some(cut) if self.view == View::Cut => {
                let turn = items(reads, &history, cut, history.len()).await?;
                sibling_results(
                    &turn
                        .into_iter()
                        .map(|stored| stored.item)
                        .collect::<Vec<_>>(),
                )
            }
            Some(_) | None => Vec::new(),
        };
        let payload = match checkpoint.payload {
            Some(at) => Some(cell_value(reads, at).await?),
            None => None,
        };
        Ok(CheckpointContent {
            checkpoint,
            revision,
            spent,
            session,
            messages,
            message_count,
            state,
            pending,
            siblings,
            payload,
        })
    }
}

impl GetCheckpoint {
    async fn pending(
        &self,
        reads: &mut dyn Reads,
        checkpoint: &Checkpoint,
        call: &PendingCall,
    ) -> Result<PendingView, Abort> {
        let interrupt =
            load_at::<Interrupt>(reads, &interrupt_key(call.interrupt), self.at).await?;
        let interrupt = interrupt
            .ok_or_else(|| StoreError::Internal("a pending call has no interrupt".into()))?;
        let action_digest = json::action_digest_hex(&call.tool, call.args_json.as_deref());
        let run = checkpoint
            .run
            .ok_or_else(|| StoreError::Internal("a suspended checkpoint has no run".into()))?;
        let identity = CallIdentity {
            thread: self.thread.clone(),
            run,
            tool_call_id: call.tool_call_id.clone(),
            action_digest: action_digest.clone(),
            ordinal: call.ordinal,
        };
        let record = load_at::<Call>(reads, &call_key(&identity), self.at)
            .await?
            .map(|record| record.value);
        Ok(PendingView {
            call: call.clone(),
            execution_key: identity.execution_key(reads.tenant()),
            action_digest,
            standing: standing(record.as_ref(), &interrupt.value),
            interrupt_revision: interrupt.revision,
            interrupt: interrupt.value,
            result: record.and_then(|record| record.result),
        })
    }
}

/// Finds a checkpoint without its contents.
#[derive(Debug)]
pub struct GetSummary {
    /// The thread.
    pub thread: ThreadRef,
    /// The checkpoint; `None` for the newest.
    pub checkpoint: Option<CheckpointId>,
}

#[async_trait]
impl Query for GetSummary {
    type Output = CheckpointSummary;

    async fn run(&self, reads: &mut dyn Reads) -> Result<CheckpointSummary, Abort> {
        find_checkpoint(reads, &self.thread, self.checkpoint).await
    }
}

/// The checkpoints of a thread, newest first.
#[derive(Debug)]
struct ListCheckpoints {
    thread: ThreadRef,
    unspent_only: bool,
    limit: usize,
    /// The key of the last one of the page before.
    after: Option<Vec<u8>>,
    /// Nothing that was made after this revision.
    until: Revision,
}

/// Where a page of a list that only grows ended.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    after: Vec<u8>,
    until: Revision,
}

#[async_trait]
impl Query for ListCheckpoints {
    type Output = (Vec<CheckpointSummary>, Option<Position>, Revision);

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let thread = find_thread(reads, &self.thread)
            .await?
            .ok_or_else(thread_not_found)?
            .value;
        let until = self.until.min(reads.revision().await?);
        // Ids are made in the order of time, so the keys of a thread's checkpoints
        // are too.
        let mut stretch = Stretch {
            prefix: checkpoint_prefix(&self.thread),
            after: self.after.clone().map(Bytes::from),
            direction: Direction::Backward,
            limit: self.limit + 1,
        };
        let mut found = Vec::new();
        loop {
            let page = reads.records(Kind::Checkpoint, &stretch, until).await?;
            let Some((last, _)) = page.last() else { break };
            stretch.after = Some(Bytes::copy_from_slice(last.as_bytes()));
            let whole = page.len() < stretch.limit;
            for (key, version) in page {
                let checkpoint = decode::<Checkpoint>(reads.tenant(), &key, &version)?;
                if checkpoint.value.generation != thread.generation {
                    continue;
                }
                let summary =
                    summarize(reads, &thread, checkpoint.value, checkpoint.revision).await?;
                if !(self.unspent_only && summary.spent) {
                    found.push((key, summary));
                }
            }
            if whole || found.len() > self.limit {
                break;
            }
        }
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let position = found.last().filter(|_| more).map(|(key, _)| Position {
            after: key.as_bytes().to_vec(),
            until,
        });
        Ok((
            found.into_iter().map(|(_, summary)| summary).collect(),
            position,
            until,
        ))
    }
}

/// A thread with what waits on it.
#[derive(Debug)]
struct GetThread {
    thread: ThreadRef,
    at: Revision,
}

#[async_trait]
impl Query for GetThread {
    type Output = ThreadSummary;

    async fn run(&self, reads: &mut dyn Reads) -> Result<ThreadSummary, Abort> {
        let key = crate::storage::entities::thread_key(&self.thread);
        let found = load_at::<Thread>(reads, &key, self.at).await?;
        let found = found
            .filter(|found| found.value.deleted_at.is_none())
            .ok_or_else(thread_not_found)?;
        thread_summary(reads, found.value, found.revision).await
    }
}

/// Adds what waits on a thread.
async fn thread_summary(
    reads: &mut dyn Reads,
    thread: Thread,
    revision: Revision,
) -> Result<ThreadSummary, Abort> {
    let stretch = Stretch {
        prefix: thread_prefix(&thread.key),
        after: None,
        direction: Direction::Forward,
        limit: NAMED_INTERRUPTS,
    };
    let (mut pending, mut unacknowledged) = (Vec::new(), 0);
    for hit in reads.index(Index::InterruptThread, &stretch).await? {
        let Some(interrupt) = load::<Interrupt>(reads, &hit.key).await? else {
            continue;
        };
        match interrupt.value.state {
            InterruptState::Pending => pending.push(interrupt.value.id),
            InterruptState::Resolved | InterruptState::Expired => unacknowledged += 1,
            InterruptState::Cancelled | InterruptState::Superseded => {}
        }
    }
    Ok(ThreadSummary {
        thread,
        revision,
        pending,
        unacknowledged,
    })
}

/// Which threads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ThreadFilter {
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of sessions of this user.
    pub user: Option<UserId>,
    /// Of sessions with this id.
    pub session: Option<String>,
    /// With undecided interrupts, or without.
    pub open_interrupts: Option<bool>,
    /// Leased, or not.
    pub leased: Option<bool>,
}

impl ThreadFilter {
    fn matches(&self, summary: &ThreadSummary) -> bool {
        let thread = &summary.thread;
        self.agent
            .as_ref()
            .is_none_or(|agent| thread.key.agent == *agent)
            && self
                .user
                .as_ref()
                .is_none_or(|user| thread.session.user.as_ref() == Some(user))
            && self
                .session
                .as_deref()
                .is_none_or(|session| thread.session.session.as_str() == session)
            && self
                .open_interrupts
                .is_none_or(|open| summary.pending.is_empty() != open)
            && self
                .leased
                .is_none_or(|leased| thread.lease.is_some() == leased)
    }
}

/// Threads, latest change first, as they were at a revision.
#[derive(Debug)]
struct ListThreads {
    filter: ThreadFilter,
    limit: usize,
    /// Change time and key of the last one of the page before.
    after: Option<(Timestamp, Vec<u8>)>,
    at: Revision,
}

/// Where a page of threads ended.
#[derive(Debug, Serialize, Deserialize)]
struct ThreadPosition {
    after: (Timestamp, Vec<u8>),
    at: Revision,
}

#[async_trait]
impl Query for ListThreads {
    type Output = (Vec<ThreadSummary>, Option<ThreadPosition>, Revision);

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let at = self.at.min(reads.revision().await?);
        let after = self.after.clone();
        let mut found: Vec<(Timestamp, Key, ThreadSummary)> = Vec::new();
        let mut stretch = Stretch {
            prefix: Bytes::new(),
            after: None,
            direction: Direction::Forward,
            limit: SCAN,
        };
        // Every thread stands under its key in the version of the page's revision,
        // whatever has happened to it since.
        loop {
            let page = reads.records(Kind::Thread, &stretch, at).await?;
            let Some((last, _)) = page.last() else { break };
            stretch.after = Some(Bytes::copy_from_slice(last.as_bytes()));
            let whole = page.len() < stretch.limit;
            for (key, version) in page {
                let thread = decode::<Thread>(reads.tenant(), &key, &version)?;
                if thread.value.deleted_at.is_some() {
                    continue;
                }
                let place = (thread.value.updated_at, key.as_bytes().to_vec());
                let beyond = after.as_ref().is_none_or(|after| {
                    place.0 < after.0 || (place.0 == after.0 && place.1 > after.1)
                });
                if !beyond {
                    continue;
                }
                let summary = thread_summary(reads, thread.value, thread.revision).await?;
                if self.filter.matches(&summary) {
                    found.push((place.0, key, summary));
                }
            }
            if whole {
                break;
            }
        }
        found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let position = found
            .last()
            .filter(|_| more)
            .map(|(time, key, _)| ThreadPosition {
                after: (*time, key.as_bytes().to_vec()),
                at,
            });
        Ok((
            found.into_iter().map(|(_, _, summary)| summary).collect(),
            position,
            at,
        ))
    }
}

/// How many threads are read at a time.
const SCAN: usize = 1_000;

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the whole list is of.
    pub revision: Revision,
}

impl Checkpoints {
    /// A checkpoint with its contents.
    ///
    /// # Errors
    ///
    /// [`Reason::CheckpointMissing`].
    pub async fn get_checkpoint(
        &self,
        caller: &Caller,
        get: GetCheckpoint,
    ) -> Result<CheckpointContent> {
        let found = self.engine.read(&caller.tenant, get).await?;
        if is_visible(caller, &found.session) {
            Ok(found)
        } else {
            Err(checkpoint_missing())
        }
    }

    /// A checkpoint without its contents.
    ///
    /// # Errors
    ///
    /// [`Reason::CheckpointMissing`].
    pub async fn checkpoint_summary(
        &self,
        caller: &Caller,
        get: GetSummary,
    ) -> Result<CheckpointSummary> {
        let found = self.engine.read(&caller.tenant, get).await?;
        if is_visible(caller, &found.session) {
            Ok(found)
        } else {
            Err(checkpoint_missing())
        }
    }

    /// The checkpoints of a thread, newest first.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`], [`Reason::PageTokenInvalid`].
    pub async fn list_checkpoints(
        &self,
        caller: &Caller,
        thread: ThreadRef,
        unspent_only: bool,
        limit: usize,
        token: &str,
    ) -> Result<Page<CheckpointSummary>> {
        const METHOD: &str = "ListCheckpoints";
        let filter = (thread.clone(), unspent_only);
        let sealer = self.engine.sealer();
        let position = sealer.open_page::<Position>(&caller.tenant, METHOD, &filter, token)?;
        let (after, until) = position.map_or((None, Revision::LATEST), |position| {
            (Some(position.after), position.until)
        });
        let list = ListCheckpoints {
            thread,
            unspent_only,
            limit,
            after,
            until,
        };
        let (items, position, revision) = self.engine.read(&caller.tenant, list).await?;
        if items.iter().any(|item| !is_visible(caller, &item.session)) {
            return Err(thread_not_found());
        }
        let next =
            position.map(|position| sealer.seal_page(&caller.tenant, METHOD, &filter, &position));
        Ok(Page {
            items,
            next: next.unwrap_or_default(),
            revision,
        })
    }

    /// A thread with what waits on it.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`].
    pub async fn get_thread(
        &self,
        caller: &Caller,
        thread: ThreadRef,
        at: Revision,
    ) -> Result<ThreadSummary> {
        let found = self
            .engine
            .read(&caller.tenant, GetThread { thread, at })
            .await?;
        if is_visible(caller, &found.thread.session) {
            Ok(found)
        } else {
            Err(thread_not_found())
        }
    }

    /// Threads, latest change first.
    ///
    /// # Errors
    ///
    /// [`Reason::PageTokenInvalid`].
    pub async fn list_threads(
        &self,
        caller: &Caller,
        filter: ThreadFilter,
        limit: usize,
        token: &str,
    ) -> Result<Page<ThreadSummary>> {
        const METHOD: &str = "ListThreads";
        let sealer = self.engine.sealer();
        let position =
            sealer.open_page::<ThreadPosition>(&caller.tenant, METHOD, &filter, token)?;
        let (after, at) = position.map_or((None, Revision::LATEST), |position| {
            (Some(position.after), position.at)
        });
        let list = ListThreads {
            filter: filter.clone(),
            limit,
            after,
            at,
        };
        let (items, position, revision) = self.engine.read(&caller.tenant, list).await?;
        let next =
            position.map(|position| sealer.seal_page(&caller.tenant, METHOD, &filter, &position));
        Ok(Page {
            items,
            next: next.unwrap_or_default(),
            revision,
        })
    }

    /// The token that continues the history of a checkpoint whose first items were
    /// answered with `content`.
    #[must_use]
    pub fn messages_token(
        &self,
        caller: &Caller,
        content: &CheckpointContent,
        view: View,
    ) -> String {
        let target = Target::Checkpoint {
            thread: content.checkpoint.thread.clone(),
            checkpoint: Some(content.checkpoint.id),
            view,
        };
        let shown = content.messages.len() as u64;
        Histories::new(self.engine.clone()).rest(
            caller,
            &target,
            shown,
            content.message_count,
            Revision::LATEST,
        )
    }
}
