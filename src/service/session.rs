//! Sessions: save, load, list, append, the end of a run, delete.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::Caller;
use super::checkpoint::gate::LeaseEnd;
use super::checkpoint::lease::end_lease;
use super::checkpoint::resume::interrupts_pending;
use super::cover::{check_session, covering_thread};
use super::engine::{Command, Done, Engine};
use super::history::{Histories, HistoryPage, Part, Target};
use super::interrupt::{open_interrupts, pending_of_session, withdraw};
use super::listing::{self, Order, Position};
use super::seal::Purpose;
use super::session_write::{
    MessageWrite, open_session, push_entry, session_not_found, sync_memory, touch, write_messages,
    write_state,
};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{
    AgentId, InterruptId, MemoryId, MemoryRef, RunId, SessionId, SessionRef, ThreadRef, UserId,
};
use crate::domain::interrupt::InterruptState;
use crate::domain::json;
use crate::domain::log::{Cell, LogId};
use crate::domain::message::{Content, Item};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Listing, Memory, Preconditions, Session, field};
use crate::domain::state::{StateMode, StateUpdate};
use crate::domain::thread::{Thread, Token, check_token};
use crate::domain::time::Timestamp;
use crate::domain::timeline::{EntryKind, Link, run_label};
use crate::storage::entities::{memory_key, session_key, thread_key};
use crate::storage::typed::{
    ChangeSet, EncodedItem, Loaded, StoredItem, cell_text, cells, items, load, load_at,
};
use crate::storage::{Abort, Direction, Error as StoreError, Index, Kind, Query, Reads};

/// What stands beside the history and the state. Absent keeps what is stored;
/// present and empty empties it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldsUpdate {
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The instructions.
    pub instructions: Option<String>,
    /// All plugin states: names and JSON texts, in order.
    pub plugin_states: Option<Vec<(String, String)>>,
    /// All of the pending input.
    pub pending_input: Option<Vec<Item>>,
    /// Metadata stored with the body: JSON text.
    pub state_metadata: Option<String>,
    /// The format of the client's data.
    pub format_version: Option<i64>,
    /// See [`Session::evidence_scope_digest`].
    pub evidence_scope_digest: Option<String>,
    /// See [`Session::task_scope_digest`].
    pub task_scope_digest: Option<String>,
}

impl FieldsUpdate {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Writes what is present, and says whether anything changed.
    async fn apply(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        session: &mut Session,
    ) -> Result<bool, Abort> {
        let before = session.clone();
        for (name, text) in [
            (field::SYSTEM_PROMPT, &self.system_prompt),
            (field::INSTRUCTIONS, &self.instructions),
            (field::STATE_METADATA, &self.state_metadata),
        ] {
            if let Some(text) = text {
                set_field(
                    changes,
                    session,
                    name,
                    (!text.is_empty()).then(|| Bytes::copy_from_slice(text.as_bytes())),
                );
            }
        }
        if let Some(items) = &self.pending_input {
            let value = if items.is_empty() {
                None
            } else {
                let text = serde_json::to_vec(items)
                    .map_err(|error| StoreError::Internal(error.to_string()))?;
                Some(Bytes::from(text))
            };
            set_field(changes, session, field::PENDING_INPUT, value);
        }
        if let Some(states) = &self.plugin_states {
            let update = StateUpdate {
                mode: StateMode::Replace,
                entries: states.clone(),
                delete_keys: Vec::new(),
            };
            session.plugin_states = write_state(
                reads,
                changes,
                &mut session.head,
                session.plugin_states,
                &update,
            )
            .await?;
            session.working_memory_count = working_memory_count(states);
        }
        if self.format_version.is_some() {
            session.format_version = self.format_version;
        }
        for (stored, given) in [
            (
                &mut session.evidence_scope_digest,
                &self.evidence_scope_digest,
            ),
            (&mut session.task_scope_digest, &self.task_scope_digest),
        ] {
            if let Some(given) = given {
                *stored = (!given.is_empty()).then(|| given.clone());
            }
        }
        Ok(*session != before)
    }
}

fn set_field(changes: &mut ChangeSet, session: &mut Session, name: &str, value: Option<Bytes>) {
    let stored = session.fields.iter().position(|cell| cell.name == name);
    let Some(value) = value else {
        session.fields.retain(|cell| cell.name != name);
        return;
    };
    let before = stored.and_then(|at| session.fields.get(at)).cloned();
    let cell: Cell = changes.write_cell(&mut session.head, name, &value, before.as_ref());
    session.fields.retain(|cell| cell.name != name);
    session.fields.push(cell);
}

/// How many entries the plugin state of working memory has, in either spelling of
/// its name.
fn working_memory_count(states: &[(String, String)]) -> u64 {
    let state = states
        .iter()
        .find(|(name, _)| name == "working_memory" || name == "workingMemory");
    let entries = state.and_then(|(_, text)| {
        let members = json::members(text).ok()?;
        members
            .into_iter()
            .find(|(name, _)| name == "entries")
            .map(|(_, entries)| entries)
    });
    entries
        .and_then(|entries| serde_json::from_str::<Vec<serde::de::IgnoredAny>>(entries).ok())
        .map_or(0, |entries| entries.len() as u64)
}

/// What lists show. Absent keeps what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ListingUpdate {
    /// A title; empty removes it.
    pub title: Option<String>,
    /// A description; empty removes it.
    pub description: Option<String>,
    /// All tags.
    pub tags: Option<Vec<String>>,
    /// Anything else: a JSON object.
    pub extra_json: Option<String>,
    /// Whether the extra object is merged with the stored one, member by member.
    pub merge_extra: bool,
    /// Members of the extra object to remove.
    pub delete_extra: Vec<String>,
}

impl ListingUpdate {
    fn apply(&self, listing: &mut Listing) -> Result<bool> {
        let before = listing.clone();
        for (stored, given) in [
            (&mut listing.title, &self.title),
            (&mut listing.description, &self.description),
        ] {
            if let Some(given) = given {
                *stored = (!given.is_empty()).then(|| given.clone());
            }
        }
        if let Some(tags) = &self.tags {
            listing.tags.clone_from(tags);
        }
        let stored = listing.metadata_json.clone();
        let merged = match (&self.extra_json, self.merge_extra) {
            (Some(given), true) => Some(merge_objects(
                stored.as_deref(),
                Some(given),
                &self.delete_extra,
            )?),
            (Some(given), false) => Some(given.clone()),
            (None, _) if !self.delete_extra.is_empty() => {
                Some(merge_objects(stored.as_deref(), None, &self.delete_extra)?)
            }
            (None, _) => stored,
        };
        listing.metadata_json = merged;
        Ok(*listing != before)
    }
}

/// The members of one JSON object over those of another, each as it was written.
fn merge_objects(base: Option<&str>, over: Option<&str>, delete: &[String]) -> Result<String> {
    let members = |text: Option<&str>| -> Result<Vec<(String, String)>> {
        let Some(text) = text else {
            return Ok(Vec::new());
        };
        let found = json::members(text)
            .map_err(|error| Error::new(Reason::JsonInvalid, error.to_string()))?;
        Ok(found
            .into_iter()
            .map(|(name, value)| (name.into_owned(), value.to_owned()))
            .collect())
    };
    let mut merged = members(base)?;
    merged.retain(|(name, _)| !delete.contains(name));
    for (name, value) in members(over)? {
        match merged.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => merged.push((name, value)),
        }
    }
    let spelled = |(name, value): &(String, String)| {
        let name = serde_json::to_string(name).unwrap_or_default();
        format!("{name}:{value}")
    };
    Ok(format!(
        "{{{}}}",
        merged.iter().map(spelled).collect::<Vec<_>>().join(",")
    ))
}

/// Links a memory to a session.
fn link(session: &mut Session, memory: Option<&MemoryId>, seen: bool) -> Result<bool> {
    let Some(memory) = memory else {
        return Ok(false);
    };
    if session.memory_id.as_ref() == Some(memory) {
        return Ok(false);
    }
    if session.memory_id.is_some() && !seen {
        return Err(Error::new(
            Reason::PreconditionRequired,
            "the session links another memory; send the session's etag to change that",
        )
        .at("memory_id"));
    }
    session.memory_id = Some(memory.clone());
    Ok(true)
}

/// Saves a session: what is present replaces what is stored.
#[derive(Debug, Serialize)]
pub struct Save {
    /// The session; made if absent.
    pub session: SessionRef,
    /// All of the history.
    pub messages: Option<Vec<EncodedItem>>,
    /// The state, replaced or merged as it says.
    pub state: Option<StateUpdate>,
    /// What stands beside them.
    pub fields: FieldsUpdate,
    /// What lists show.
    pub listing: Option<ListingUpdate>,
    /// The memory to link.
    pub memory: Option<MemoryId>,
    /// On its existence and content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What a save wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The session.
    pub session: SessionRef,
    /// How many items were sent and stored already.
    pub matched: u64,
    /// How many items were written.
    pub written: u64,
}

#[async_trait]
impl Command for Save {
    const METHOD: &'static str = "SessionService/SaveSession";
    type Receipt = Saved;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Saved, Abort> {
        let now = reads.now();
        let mut session =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        check_session(reads, &session.value, self.token.as_ref()).await?;
        let replaces = self.messages.is_some()
            || self
                .state
                .as_ref()
                .is_some_and(|state| state.mode == StateMode::Replace)
            || !self.fields.is_empty();
        if replaces
            && !session.is_fresh()
            && self.token.is_none()
            && !self.preconditions.allows_replacing()
        {
            return Err(
                Error::precondition_required("etag, base_seq, fencing_token, overwrite").into(),
            );
        }
        let before = session.value.head.last_seq;
        let mut changed = link(
            &mut session.value,
            self.memory.as_ref(),
            self.preconditions.etag.is_some(),
        )?;
        if let Some(items) = &self.messages {
            let write = MessageWrite::Replace(items.clone());
            changed |= write_messages(reads, changes, &mut session.value, &write, now).await?;
        }
        if let Some(update) = &self.state {
            let current = session.value.state;
            let state =
                write_state(reads, changes, &mut session.value.head, current, update).await?;
            changed |= state != current;
            session.value.state = state;
        }
        changed |= self
            .fields
            .apply(reads, changes, &mut session.value)
            .await?;
        if changed {
            session.value.etag = Stamp::THIS_COMMIT;
        }
        // A save is a save, also of what is stored already.
        session.value.saved_at = now;
        if let Some(listing) = &self.listing
            && listing.apply(&mut session.value.listing)?
        {
            session.value.listing_etag = Stamp::THIS_COMMIT;
        }
        changes.update(&session)?;
        let written = u64::try_from(session.value.head.last_seq - before).unwrap_or(0);
        let sent = self.messages.as_ref().map_or(0, |items| items.len() as u64);
        Ok(Saved {
            session: self.session.clone(),
            matched: sent.saturating_sub(written),
            written,
        })
    }
}

/// Adds messages to a session.
#[derive(Debug, Serialize)]
pub struct Append {
    /// The session; made if absent.
    pub session: SessionRef,
    /// What to add.
    pub messages: Vec<EncodedItem>,
    /// On its existence and content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What an append wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// The session as the append left it. Small, and so kept whole.
    pub session: Session,
    /// The first `seq` that was written.
    pub first_seq: i64,
}

#[async_trait]
impl Command for Append {
    const METHOD: &'static str = "SessionService/AppendMessages";
    type Receipt = Appended;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Appended, Abort> {
        let now = reads.now();
        let mut session =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        check_session(reads, &session.value, self.token.as_ref()).await?;
        let first_seq = session.value.head.last_seq + 1;
        let write = MessageWrite::Append(self.messages.clone());
        write_messages(reads, changes, &mut session.value, &write, now).await?;
        changes.update(&session)?;
        Ok(Appended {
            session: session.value,
            first_seq,
        })
    }
}

/// Ends a run.
#[derive(Debug, Serialize)]
pub struct CommitRun {
    /// The session; made if absent.
    pub session: SessionRef,
    /// The thread of the run, if it has one.
    pub thread: Option<ThreadRef>,
    /// The run's token.
    pub token: Option<Token>,
    /// What the run adds to the history, or the whole of it.
    pub messages: MessageWrite,
    /// The same messages, for finding results of tool calls in them.
    #[serde(skip)]
    pub written: Vec<Item>,
    /// What the run was asked.
    pub input: Option<Content>,
    /// What changes in the state.
    pub state: Option<StateUpdate>,
    /// What stands beside them.
    pub fields: FieldsUpdate,
    /// Withdraw the interrupts that nobody has answered.
    pub withdraw: bool,
    /// The outcome that the consumed interrupts are acknowledged with.
    pub outcome: String,
    /// On its existence and content.
    pub preconditions: Preconditions,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
    /// The id of a run without a thread.
    #[serde(skip)]
    pub new_run: RunId,
}

/// What the end of a run wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCommitted {
    /// The session.
    pub session: SessionRef,
    /// The run.
    pub run: RunId,
    /// The `rev` of the timeline entry.
    pub timeline_rev: i64,
    /// The interrupts whose decisions were acknowledged.
    pub acknowledged: Vec<InterruptId>,
    /// The interrupts that were withdrawn.
    pub withdrawn: Vec<InterruptId>,
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
        let mut thread = self.thread(reads).await?;
        let mut session =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        check_session(reads, &session.value, self.token.as_ref()).await?;
        if thread.is_none() && !session.is_fresh() && !self.preconditions.allows_replacing() {
            return Err(Error::precondition_required(
                "thread_id with fencing_token, etag, base_seq, overwrite",
            )
            .into());
        }
        let run = thread
            .as_ref()
            .and_then(|thread| thread.value.run)
            .unwrap_or(self.new_run);
        let (mut acknowledged, mut withdrawn) = (Vec::new(), Vec::new());
        if let Some(thread) = &mut thread {
            (acknowledged, withdrawn) = self
                .settle_interrupts(reads, changes, &thread.value)
                .await?;
            let end = LeaseEnd::Committed {
                written: &self.written,
            };
            end_lease(
                reads,
                changes,
                caller,
                &mut thread.value,
                &mut session.value,
                &end,
            )
            .await?;
            thread.value.head_spent = true;
            thread.value.run = None;
            thread.value.resume_etags = None;
            thread.value.updated_at = now;
            thread.value.etag = Stamp::THIS_COMMIT;
            changes.update(thread)?;
        }
        write_messages(reads, changes, &mut session.value, &self.messages, now).await?;
        if let Some(update) = &self.state {
            let current = session.value.state;
            session.value.state =
                write_state(reads, changes, &mut session.value.head, current, update).await?;
        }
        self.fields
            .apply(reads, changes, &mut session.value)
            .await?;
        touch(&mut session.value, now);
        sync_memory(reads, changes, &session.value).await?;
        let label = self.input.as_ref().map(run_label).unwrap_or_default();
        let timeline_rev = push_entry(
            changes,
            &mut session.value,
            caller,
            EntryKind::Run,
            &label,
            Some(Link::Run(run)),
            now,
        )?;
        changes.update(&session)?;
        Ok(RunCommitted {
            session: self.session.clone(),
            run,
            timeline_rev,
            acknowledged,
            withdrawn,
        })
    }
}

impl CommitRun {
    async fn thread(&self, reads: &mut dyn Reads) -> Result<Option<Loaded<Thread>>, Abort> {
        let Some(key) = &self.thread else {
            return Ok(None);
        };
        let found = load::<Thread>(reads, &thread_key(key)).await?;
        let missing = || {
            Error::new(
                Reason::ThreadNotFound,
                "there is no such thread; acquire it before the run",
            )
        };
        let found = found
            .filter(|found| found.value.deleted_at.is_none())
            .ok_or_else(missing)?;
        check_token(Some(&found.value), self.token.as_ref())?;
        if found.value.lease.is_none() {
            let message =
                "a run of a thread ends under its lease; acquire or resume the thread first";
            return Err(Error::new(Reason::TokenRequired, message)
                .at("fencing_token")
                .into());
        }
        if found.value.session != self.session {
            return Err(
                Error::argument("thread_id", "the thread belongs to another session").into(),
            );
        }
        Ok(Some(found))
    }

    /// Acknowledges what the run consumed, and withdraws or refuses what is open.
    async fn settle_interrupts(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
        thread: &Thread,
    ) -> Result<(Vec<InterruptId>, Vec<InterruptId>), Abort> {
        let now = reads.now();
        let mut open = Vec::new();
        let mut acknowledged = Vec::new();
        for mut interrupt in open_interrupts(reads, changes, &thread.key).await? {
            if interrupt.value.state == InterruptState::Pending {
                open.push(interrupt);
            } else if let Some(consumption) = &mut interrupt.value.consumption {
                consumption.acknowledged_at = Some(now);
                consumption.outcome.clone_from(&self.outcome);
                interrupt.value.updated_at = now;
                acknowledged.push(interrupt.value.id);
                changes.update(&interrupt)?;
            }
        }
        if !open.is_empty() && !self.withdraw {
            let ids: Vec<_> = open.iter().map(|interrupt| interrupt.value.id).collect();
            return Err(interrupts_pending(&ids)
                .with("hint", "send withdraw to cancel them")
                .into());
        }
        Ok((acknowledged, withdraw(changes, open, now)?))
    }
}

/// Changes what lists show of a session.
#[derive(Debug, Serialize)]
pub struct Update {
    /// The session.
    pub session: SessionRef,
    /// What to change.
    pub listing: ListingUpdate,
    /// The listing etag that was seen, if one was sent.
    pub seen: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
}

#[async_trait]
impl Command for Update {
    const METHOD: &'static str = "SessionService/UpdateSession";
    type Receipt = SessionRef;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<SessionRef, Abort> {
        let found = load::<Session>(reads, &session_key(&self.session)).await?;
        let mut session = found
            .filter(|found| found.value.deleted_at.is_none())
            .ok_or_else(session_not_found)?;
        // A title is no business of a run: only a token that is named is checked.
        if self.token.is_some() {
            check_session(reads, &session.value, self.token.as_ref()).await?;
        }
        if self
            .seen
            .is_some_and(|seen| !session.value.listing_etag.is(seen))
        {
            return Err(Error::new(
                Reason::EtagMismatch,
                "the listing has changed; read it again",
            )
            .into());
        }
        if self.listing.apply(&mut session.value.listing)? {
            session.value.listing_etag = Stamp::THIS_COMMIT;
            changes.update(&session)?;
        }
        Ok(self.session.clone())
    }
}

/// Deletes a session.
#[derive(Debug, Serialize)]
pub struct Delete {
    /// The session.
    pub session: SessionRef,
    /// The etag that was seen, if one was sent.
    pub etag: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
}

/// What a deletion did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Whether it was there.
    pub existed: bool,
    /// The interrupts that were withdrawn with it.
    pub withdrawn: Vec<InterruptId>,
}

#[async_trait]
impl Command for Delete {
    const METHOD: &'static str = "SessionService/DeleteSession";
    type Receipt = Deleted;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Deleted, Abort> {
        let now = reads.now();
        let found = load::<Session>(reads, &session_key(&self.session)).await?;
        let Some(mut session) = found.filter(|found| found.value.deleted_at.is_none()) else {
            return Ok(Deleted {
                existed: false,
                withdrawn: Vec::new(),
            });
        };
        check_session(reads, &session.value, self.token.as_ref()).await?;
        let on_content = Preconditions {
            etag: self.etag,
            ..Preconditions::default()
        };
        on_content.check("session", session.value.etag, session.value.head.last_seq)?;
        let agent = self.session.agent.clone();
        if let Some(mut thread) =
            covering_thread(reads, &agent, session.value.leased_by.clone().as_ref()).await?
        {
            end_lease(
                reads,
                changes,
                caller,
                &mut thread.value,
                &mut session.value,
                &LeaseEnd::Lost,
            )
            .await?;
            thread.value.run = None;
            changes.update(&thread)?;
        }
        let pending = pending_of_session(reads, changes, &self.session).await?;
        let withdrawn = withdraw(changes, pending, now)?;
        session.value.deleted_at = Some(now);
        session.value.etag = Stamp::THIS_COMMIT;
        changes.update(&session)?;
        Ok(Deleted {
            existed: true,
            withdrawn,
        })
    }
}

/// Makes a session with messages to begin with, if it is new and so is its memory;
/// or links a memory to it.
#[derive(Debug, Serialize)]
pub struct Seed {
    /// The session.
    pub session: SessionRef,
    /// The messages.
    pub messages: Vec<EncodedItem>,
    /// The memory to link.
    pub memory: Option<MemoryId>,
    /// On its content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
}

#[async_trait]
impl Command for Seed {
    const METHOD: &'static str = "SessionService/LoadSession";
    /// Whether the messages were written.
    type Receipt = bool;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<bool, Abort> {
        let now = reads.now();
        let mut session =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        let linked = link(
            &mut session.value,
            self.memory.as_ref(),
            self.preconditions.etag.is_some(),
        )?;
        let memory_is_new = match &session.value.memory_id {
            Some(memory) => {
                let key = memory_key(&MemoryRef {
                    agent: self.session.agent.clone(),
                    memory: memory.clone(),
                });
                load::<Memory>(reads, &key)
                    .await?
                    .is_none_or(|memory| memory.value.head.is_empty())
            }
            None => true,
        };
        let seeds = session.is_fresh() && memory_is_new && !self.messages.is_empty();
        if !seeds && !linked {
            return Ok(false);
        }
        check_session(reads, &session.value, self.token.as_ref()).await?;
        if seeds {
            let write = MessageWrite::Append(self.messages.clone());
            write_messages(reads, changes, &mut session.value, &write, now).await?;
            sync_memory(reads, changes, &session.value).await?;
        }
        if linked {
            session.value.etag = Stamp::THIS_COMMIT;
        }
        changes.update(&session)?;
        Ok(seeds)
    }
}

/// All of a session, as it was at a revision.
#[derive(Clone, Debug)]
pub struct SessionContent {
    /// The session.
    pub session: Session,
    /// The commit that last changed it.
    pub revision: Revision,
    /// The first items of the history.
    pub messages: Vec<StoredItem>,
    /// State keys and JSON texts, in order.
    pub state: Vec<(String, String)>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The instructions.
    pub instructions: Option<String>,
    /// Plugin names and JSON texts, in order.
    pub plugin_states: Vec<(String, String)>,
    /// The pending input.
    pub pending_input: Vec<Item>,
    /// Metadata stored with the body.
    pub state_metadata: Option<String>,
}

#[derive(Debug)]
struct ReadContent {
    session: SessionRef,
    at: Revision,
    page: u64,
}

#[async_trait]
impl Query for ReadContent {
    type Output = Option<SessionContent>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let found = load_at::<Session>(reads, &session_key(&self.session), self.at).await?;
        let Some(found) = found.filter(|found| found.value.deleted_at.is_none()) else {
            return Ok(None);
        };
        let session = found.value;
        let history = session.head.history();
        let messages = items(reads, &history, 0, history.len().min(self.page)).await?;
        let mut content = SessionContent {
            revision: found.revision,
            messages,
            state: named(reads, session.state).await?,
            system_prompt: None,
            instructions: None,
            plugin_states: named(reads, session.plugin_states).await?,
            pending_input: Vec::new(),
            state_metadata: None,
            session,
        };
        for cell in content.session.fields.clone() {
            let text = cell_text(reads, cell.at).await?;
            match cell.name.as_str() {
                field::SYSTEM_PROMPT => content.system_prompt = Some(text),
                field::INSTRUCTIONS => content.instructions = Some(text),
                field::STATE_METADATA => content.state_metadata = Some(text),
                field::PENDING_INPUT => {
                    content.pending_input =
                        serde_json::from_str(&text).map_err(|error| StoreError::Corrupt {
                            kind: crate::storage::Corrupt::Record(Kind::Session),
                            key: self.session.session.to_string(),
                            problem: format!("the pending input cannot be read: {error}"),
                        })?;
                }
                _ => {}
            }
        }
        Ok(Some(content))
    }
}

/// Named values, in order.
async fn named(
    reads: &mut dyn Reads,
    at: Option<crate::domain::log::RowRef>,
) -> Result<Vec<(String, String)>, Abort> {
    let mut values = Vec::new();
    for cell in cells(reads, at).await? {
        values.push((cell.name, cell_text(reads, cell.at).await?));
    }
    Ok(values)
}

#[derive(Debug)]
struct GetSession {
    session: SessionRef,
    at: Revision,
}

#[async_trait]
impl Query for GetSession {
    type Output = Option<Loaded<Session>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let found = load_at::<Session>(reads, &session_key(&self.session), self.at).await?;
        Ok(found.filter(|found| found.value.deleted_at.is_none()))
    }
}

/// Which sessions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SessionFilter {
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of this user.
    pub user: Option<UserId>,
    /// With one of these tags; empty means any.
    pub tags: Vec<String>,
    /// With this text in the title.
    pub title: String,
    /// Made at or after this.
    pub created_from: Option<Timestamp>,
    /// Made at or before this.
    pub created_to: Option<Timestamp>,
    /// Saved at or after this.
    pub saved_from: Option<Timestamp>,
    /// Saved at or before this.
    pub saved_to: Option<Timestamp>,
}

impl SessionFilter {
    fn matches(&self, session: &Session) -> bool {
        let listing = &session.listing;
        let title = || listing.title.as_deref().unwrap_or_default().to_lowercase();
        self.agent
            .as_ref()
            .is_none_or(|agent| session.key.agent == *agent)
            && self
                .user
                .as_ref()
                .is_none_or(|user| session.key.user.as_ref() == Some(user))
            && (self.tags.is_empty() || self.tags.iter().any(|tag| listing.tags.contains(tag)))
            && (self.title.is_empty() || title().contains(&self.title.to_lowercase()))
            && self
                .created_from
                .is_none_or(|from| session.created_at >= from)
            && self.created_to.is_none_or(|to| session.created_at <= to)
            && self.saved_from.is_none_or(|from| session.saved_at >= from)
            && self.saved_to.is_none_or(|to| session.saved_at <= to)
    }
}

#[derive(Debug)]
struct ListSessions {
    filter: SessionFilter,
    limit: usize,
    from: Option<Position>,
}

#[async_trait]
impl Query for ListSessions {
    type Output = listing::Listed<Session>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let order = Order {
            index: Index::SessionSaved,
            prefix: Bytes::new(),
            direction: Direction::Forward,
        };
        let matches = |session: &Session| self.filter.matches(session);
        listing::page(reads, &order, self.from.as_ref(), self.limit, matches).await
    }
}

/// A page of sessions, each with the commit that last changed it.
#[derive(Clone, Debug)]
pub struct SessionPage {
    /// The sessions.
    pub items: Vec<(Session, Revision)>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the list is of.
    pub revision: Revision,
}

/// Use cases of sessions.
#[derive(Clone, Debug)]
pub struct Sessions {
    engine: Engine,
    histories: Histories,
}

impl Sessions {
    /// Use cases that run on `engine`.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            histories: Histories::new(engine.clone()),
            engine,
        }
    }

    /// A log for a new session.
    #[must_use]
    pub fn new_log(&self) -> LogId {
        LogId(self.engine.new_id())
    }

    /// A run id for a run without a thread.
    #[must_use]
    pub fn new_run(&self) -> RunId {
        RunId::from_uuid(self.engine.new_id())
    }

    /// An id for a session whose maker names none.
    ///
    /// # Errors
    ///
    /// Never: a UUID is a well-formed id.
    pub fn new_session_id(&self) -> Result<SessionId> {
        let text = self.engine.new_id().to_string();
        text.parse()
            .map_err(|_| Error::new(Reason::Internal, "a new id is not well formed"))
    }

    /// The items, encoded.
    ///
    /// # Errors
    ///
    /// [`Reason::Internal`] when one cannot be spelled as JSON, which is a bug.
    pub fn encode(&self, items: &[Item]) -> Result<Vec<EncodedItem>> {
        let encoded: Result<_, StoreError> = items.iter().map(EncodedItem::new).collect();
        encoded.map_err(|error| super::engine::explain(error.into()))
    }

    fn open_as(
        &self,
        caller: &Caller,
        purpose: Purpose,
        session: &SessionRef,
        etag: &str,
    ) -> Option<Revision> {
        let key = session_key(session);
        let open = || {
            self.engine
                .sealer()
                .open_revision(&caller.tenant, purpose, Kind::Session, &key, etag)
        };
        (!etag.is_empty()).then(open)
    }

    /// A session's etag, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_etag(&self, caller: &Caller, session: &SessionRef, etag: &str) -> Option<Revision> {
        self.open_as(caller, Purpose::Etag, session, etag)
    }

    /// A session's listing etag, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_listing_etag(
        &self,
        caller: &Caller,
        session: &SessionRef,
        etag: &str,
    ) -> Option<Revision> {
        self.open_as(caller, Purpose::ListingEtag, session, etag)
    }

    /// A session's etag and listing etag, to send.
    #[must_use]
    pub fn seal_etags(
        &self,
        caller: &Caller,
        session: &Session,
        stored: Revision,
    ) -> (String, String) {
        let key = session_key(&session.key);
        let seal = |purpose, stamp: Stamp| {
            let sealer = self.engine.sealer();
            sealer.seal_revision(
                &caller.tenant,
                purpose,
                Kind::Session,
                &key,
                stamp.revision(stored),
            )
        };
        (
            seal(Purpose::Etag, session.etag),
            seal(Purpose::ListingEtag, session.listing_etag),
        )
    }

    /// Saves a session.
    ///
    /// # Errors
    ///
    /// [`Reason::SessionNotFound`], [`Reason::AlreadyExists`], [`Reason::Deleted`],
    /// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`],
    /// [`Reason::PreconditionRequired`], [`Reason::TokenRequired`],
    /// [`Reason::Fenced`].
    pub async fn save(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        save: Save,
    ) -> Result<Done<Saved>> {
        self.engine.submit(caller, request_id, save).await
    }

    /// Adds messages to a session.
    ///
    /// # Errors
    ///
    /// As [`Self::save`].
    pub async fn append(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        append: Append,
    ) -> Result<Done<Appended>> {
        self.engine.submit(caller, request_id, append).await
    }

    /// Ends a run.
    ///
    /// # Errors
    ///
    /// As [`Self::save`], and [`Reason::ThreadNotFound`],
    /// [`Reason::InterruptsPending`].
    pub async fn commit_run(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        commit: CommitRun,
    ) -> Result<Done<RunCommitted>> {
        self.engine.submit(caller, request_id, commit).await
    }

    /// Changes what lists show of a session.
    ///
    /// # Errors
    ///
    /// [`Reason::SessionNotFound`], [`Reason::EtagMismatch`], [`Reason::Fenced`].
    pub async fn update(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        update: Update,
    ) -> Result<Done<SessionRef>> {
        self.engine.submit(caller, request_id, update).await
    }

    /// Deletes a session and withdraws its interrupts.
    ///
    /// # Errors
    ///
    /// [`Reason::EtagMismatch`], [`Reason::TokenRequired`], [`Reason::Fenced`].
    pub async fn delete(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        delete: Delete,
    ) -> Result<Done<Deleted>> {
        self.engine.submit(caller, request_id, delete).await
    }

    /// Seeds a new session or links a memory, and says whether it was seeded.
    ///
    /// # Errors
    ///
    /// As [`Self::save`].
    pub async fn seed(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        seed: Seed,
    ) -> Result<Done<bool>> {
        self.engine.submit(caller, request_id, seed).await
    }

    /// A session as it was at a revision, with the commit that last changed it.
    ///
    /// # Errors
    ///
    /// [`Reason::SessionNotFound`].
    pub async fn get(
        &self,
        caller: &Caller,
        session: SessionRef,
        at: Revision,
    ) -> Result<(Session, Revision)> {
        let found = self
            .engine
            .read(&caller.tenant, GetSession { session, at })
            .await?;
        let found = found.ok_or_else(session_not_found)?;
        Ok((found.value, found.revision))
    }

    /// All of a session as it was at a revision; `None` when it was not.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn content(
        &self,
        caller: &Caller,
        session: SessionRef,
        at: Revision,
        page: usize,
    ) -> Result<Option<SessionContent>> {
        let read = ReadContent {
            session,
            at,
            page: page as u64,
        };
        self.engine.read(&caller.tenant, read).await
    }

    /// The history of the session's memory: its first page; `None` when there is
    /// no memory or nothing in it.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn memory_history(
        &self,
        caller: &Caller,
        memory: MemoryRef,
        page: usize,
    ) -> Result<Option<HistoryPage>> {
        let at = Revision::LATEST;
        let read = self
            .histories
            .page(
                caller,
                Target::Memory(memory),
                Part::default(),
                at,
                page,
                "",
            )
            .await;
        match read {
            Ok(page) if page.total > 0 => Ok(Some(page)),
            Ok(_) => Ok(None),
            Err(error) if error.reason == Reason::MemoryNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The token that continues a session's history of which the first items were
    /// answered with `content`.
    #[must_use]
    pub fn messages_token(&self, caller: &Caller, content: &SessionContent) -> String {
        let target = Target::Session(content.session.key.clone());
        let (shown, total) = (content.messages.len() as u64, content.session.head.len());
        self.histories
            .rest(caller, &target, shown, total, content.revision)
    }

    /// A page of sessions, saved last first.
    ///
    /// # Errors
    ///
    /// [`Reason::PageTokenInvalid`].
    pub async fn list(
        &self,
        caller: &Caller,
        filter: SessionFilter,
        limit: usize,
        token: &str,
    ) -> Result<SessionPage> {
        const METHOD: &str = "ListSessions";
        let sealer = self.engine.sealer();
        let from = sealer.open_page::<Position>(&caller.tenant, METHOD, &filter, token)?;
        let list = ListSessions {
            filter: filter.clone(),
            limit,
            from,
        };
        let listed = self.engine.read(&caller.tenant, list).await?;
        let next = listed
            .next
            .map(|next| sealer.seal_page(&caller.tenant, METHOD, &filter, &next));
        Ok(SessionPage {
            items: listed
                .items
                .into_iter()
                .map(|loaded| (loaded.value, loaded.revision))
                .collect(),
            next: next.unwrap_or_default(),
            revision: listed.at,
        })
    }

    /// Reads histories.
    #[must_use]
    pub const fn histories(&self) -> &Histories {
        &self.histories
    }
}
