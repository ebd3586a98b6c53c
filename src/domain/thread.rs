//! Threads, their checkpoints and leases, and the tool calls that go through them.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::error::{Error, Reason, Result};
use super::id::{CheckpointId, ConsumerId, InterruptId, RunId, SessionRef, ThreadRef};
use super::log::{History, RowRef};
use super::revision::{Revision, Stamp};
use super::time::Timestamp;

/// The shortest lease.
pub const MIN_TTL: Duration = Duration::from_secs(5);
/// The longest lease.
pub const MAX_TTL: Duration = Duration::from_mins(10);
/// The lease of a caller that names no length.
pub const DEFAULT_TTL: Duration = Duration::from_mins(1);

/// A thread: the line of checkpoints of one conversation, and who may advance it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Which thread.
    pub key: ThreadRef,
    /// The session whose history it advances. Fixed when the thread is made.
    pub session: SessionRef,
    /// The commit that made it.
    pub generation: Stamp,
    /// The last change.
    pub etag: Stamp,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// The newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<CheckpointId>,
    /// Whether the newest checkpoint was used up by a commit of a later run.
    #[serde(default)]
    pub head_spent: bool,
    /// The run that is under way or suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The session's and the linked memory's etags after the last resume, which a
    /// later resume of the same checkpoint does not take for changes of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_etags: Option<(Stamp, Option<Stamp>)>,
    /// The right to advance the thread, until it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Set once it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// The right to advance a thread.
///
/// It is there until it is lost: by takeover, release, cancel or spend. Expiry
/// alone does not lose it, it only allows a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who holds it.
    pub consumer: ConsumerId,
    /// The fencing token: the commit that granted it.
    pub token: Stamp,
    /// The run it belongs to.
    pub run: RunId,
    /// How long it holds after each renewal.
    pub ttl: Duration,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// When another may take it over, by the store's clock.
    pub expires_at: Timestamp,
    /// The checkpoint it was resumed from, which its first commit spends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<CheckpointId>,
    /// The interrupts whose decisions are bound to this token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumed: Vec<InterruptId>,
    /// After a resume with the last turn cut off: the calls of that turn, which the
    /// model is expected to issue again under new ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reissued: Vec<Reissued>,
}

/// A call of a turn that was cut off, and the call that was issued in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reissued {
    /// The call in the turn that was cut off.
    pub original: CallIdentity,
    /// The model's id of the call that took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Thread {
    /// Grants the lease to `consumer`: a new one, or the one it has, renewed.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadLeased`] while another consumer's has not expired; nothing
    /// has changed then.
    pub fn grant(
        &mut self,
        consumer: &ConsumerId,
        new_run: RunId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Granted> {
        let expires_at = now.after(ttl);
        match &mut self.lease {
            Some(lease) if lease.consumer == *consumer => {
                lease.ttl = ttl;
                lease.expires_at = expires_at;
                return Ok(Granted::Renewed);
            }
            Some(lease) if !lease.is_expired(now) => return Err(lease.is_taken(&self.key, now)),
            Some(_) | None => {}
        }
        let run = *self.run.get_or_insert(new_run);
        let lost = self.lease.replace(Lease {
            consumer: consumer.clone(),
            token: Stamp::THIS_COMMIT,
            run,
            ttl,
            acquired_at: now,
            expires_at,
            resumed: None,
            consumed: Vec::new(),
            reissued: Vec::new(),
        });
        Ok(Granted::New { lost })
    }
}

/// What an acquisition did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// A new lease, with a new token.
    New {
        /// The one that was taken over.
        lost: Option<Lease>,
    },
    /// The consumer had it already.
    Renewed,
}

impl Lease {
    /// The refusal of whoever else wants the lease of `thread` now.
    #[must_use]
    pub fn is_taken(&self, thread: &ThreadRef, now: Timestamp) -> Error {
        Error::new(
            Reason::ThreadLeased,
            "another consumer advances this thread or another one of its session; wait until the lease ends",
        )
        .with("thread_id", &thread.thread)
        .with("holder", &self.consumer)
        .with("expire_time_us", self.expires_at.as_micros())
        .retry_after(self.expires_at.since(now))
    }

    /// Whether another consumer may take it over.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }
}

/// A fencing token, as a caller presents it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The thread it was granted for; `None` for a string that is no token.
    pub thread: Option<ThreadRef>,
    /// The commit that granted it.
    pub revision: Revision,
}

impl Token {
    /// A string that is no token: it fits no lease.
    pub const UNKNOWN: Self = Self {
        thread: None,
        revision: Revision::new(-1),
    };

    /// Whether it is the current token of `thread`.
    #[must_use]
    pub fn is_current(&self, thread: &ThreadRef, lease: &Lease) -> bool {
        self.thread.as_ref() == Some(thread) && lease.token.is(self.revision)
    }
}

/// Checks the token of a write to a thread, its session or its memory.
///
/// `covering` is the thread whose lease covers what is written, if there is one.
///
/// # Errors
///
/// [`Reason::TokenRequired`] when there is a lease and no token;
/// [`Reason::Fenced`] when the token is not the lease's, also when there is none.
pub fn check_token(covering: Option<&Thread>, token: Option<&Token>) -> Result<()> {
    let lease = covering.and_then(|thread| Some((thread, thread.lease.as_ref()?)));
    match (lease, token) {
        (None, None) => Ok(()),
        (Some((thread, lease)), Some(token)) if token.is_current(&thread.key, lease) => Ok(()),
        (Some((thread, lease)), None) => Err(Error::new(
            Reason::TokenRequired,
            "a run holds the lease; send its fencing token, or wait until the run ends",
        )
        .with("thread_id", &thread.key.thread)
        .with("expire_time_us", lease.expires_at.as_micros())
        .with("run_id", lease.run)),
        (_, Some(_)) => Err(Error::new(
            Reason::Fenced,
            "this fencing token is no longer the thread's; stop, and acquire or resume the thread to go on",
        )),
    }
}

/// How a checkpoint came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointKind {
    /// Saved while the run goes on.
    Saved,
    /// The run waits for people.
    Suspended,
    /// The run was paused, with nobody to wait for.
    Paused,
}

/// What a suspended or paused run needs to go on. Written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Which checkpoint.
    pub id: CheckpointId,
    /// Of which thread.
    pub thread: ThreadRef,
    /// Of which generation of the thread.
    pub generation: Stamp,
    /// The checkpoint before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CheckpointId>,
    /// How it came to be.
    pub kind: CheckpointKind,
    /// When.
    pub created_at: Timestamp,
    /// In which run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The history, the whole of the last turn included.
    pub history: History,
    /// Where the turn with the interrupted call begins; see `domain::cut`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
    /// The node with the state's cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RowRef>,
    /// The calls that wait, in the order they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingCall>,
    /// The client's own bytes, never looked into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<RowRef>,
    /// The media type of the payload, as the client named it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub payload_type: String,
    /// The format of payload and state, as the client numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format_version: Option<i64>,
    /// The session's etag when it was made, so that a resume sees later changes.
    pub session_etag: Stamp,
    /// The linked memory's etag when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_etag: Option<Stamp>,
}

/// A tool call that waits for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCall {
    /// The model's id of the call.
    pub tool_call_id: String,
    /// The tool.
    pub tool: String,
    /// JSON text of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_json: Option<String>,
    /// Which repetition of the same id, tool and arguments in the run; from 0.
    #[serde(default)]
    pub ordinal: u32,
    /// The interrupt that asks about it.
    pub interrupt: InterruptId,
}

/// Where a gated call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// A gate said PROCEED: the tool may have run.
    Started,
    /// Its result is recorded.
    Finished,
    /// It was started under a lease that is lost: nobody knows whether it ran.
    InDoubt,
    /// A reviewer, or an admin's policy, lets it run again under the same key.
    Retry,
}

/// A tool call that a gate let through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which call.
    pub identity: CallIdentity,
    /// What the agent hands to the side effect as its idempotency key.
    pub execution_key: String,
    /// The arguments it was let through with, JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_json: Option<String>,
    /// The tool's name.
    pub tool: String,
    /// Where it stands.
    pub state: CallState,
    /// The token it was last started under.
    pub token: Stamp,
    /// The decision's interrupt, if a person was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<InterruptId>,
    /// The interrupt that asks a reviewer what happened, while in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<InterruptId>,
    /// Whether a lost lease lets it run again, by an admin's policy.
    #[serde(default)]
    pub retry_on_lost_consumer: bool,
    /// The recorded result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ToolResult>,
    /// When it was last started.
    pub started_at: Timestamp,
    /// When its result was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// What it said.
    pub content: ResultContent,
    /// Whether it failed.
    #[serde(default)]
    pub is_error: bool,
}

/// The content of a tool's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultContent {
    /// Text.
    Text(String),
    /// Blocks.
    Blocks(Vec<super::message::Block>),
    /// JSON text.
    Json(String),
}

/// What makes a tool call that call and no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallIdentity {
    /// The thread.
    pub thread: ThreadRef,
    /// The run.
    pub run: RunId,
    /// The model's id of the call.
    pub tool_call_id: String,
    /// The digest of tool and arguments as the model gave them, hexadecimal; see
    /// `domain::json::action_digest`.
    pub action_digest: String,
    /// Which repetition; from 0.
    pub ordinal: u32,
}

impl CallIdentity {
    /// What the agent hands to the side effect as its idempotency key: the same for
    /// the same call, whoever runs it and however often it is asked for.
    ///
    /// `tenant` is part of it, so that two tenants who share a payment account do
    /// not share keys.
    #[must_use]
    pub fn execution_key(&self, tenant: &super::id::Tenant) -> String {
        use sha2::{Digest as _, Sha256};

        let mut hash = Sha256::new();
        hash.update(b"adjourn execution key 1");
        let ordinal = self.ordinal.to_be_bytes();
        let parts: [&[u8]; 7] = [
            tenant.as_str().as_bytes(),
            self.thread.agent.as_str().as_bytes(),
            self.thread.thread.as_str().as_bytes(),
            self.run.as_uuid().as_bytes(),
            self.tool_call_id.as_bytes(),
            self.action_digest.as_bytes(),
            &ordinal,
        ];
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize()
            .iter()
            .take(16)
            .fold(String::from("ek_"), |mut digits, byte| {
                use std::fmt::Write as _;
                // Writing to a string cannot fail.
                let _ = write!(digits, "{byte:02x}");
                digits
            })
    }
}

/// What a tool's rule says of its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// It runs.
    #[default]
    Free,
    /// A person is asked.
    Hold,
    /// It never runs.
    Forbid,
}

/// A rule of an admin about one tool of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRule {
    /// The tool.
    pub tool: String,
    /// What is done with its calls.
    pub mode: ToolMode,
    /// The answers that are allowed where it is held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<super::interrupt::DecisionKind>,
    /// How its interrupts must be answered.
    #[serde(default)]
    pub policy: super::interrupt::Policy,
    /// Whether the agent's own callback may decide.
    #[serde(default)]
    pub agent_may_decide: bool,
}

/// The rules about an agent's tools. A tool without a rule is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRules {
    /// Whose.
    pub agent: super::id::AgentId,
    /// The last change; the revision that decisions by these rules carry.
    pub etag: Stamp,
    /// At most one for each tool.
    pub rules: Vec<ToolRule>,
}

impl ToolRules {
    /// The rule for a tool, if there is one.
    #[must_use]
    pub fn rule(&self, tool: &str) -> Option<&ToolRule> {
        self.rules.iter().find(|rule| rule.tool == tool)
    }
}
