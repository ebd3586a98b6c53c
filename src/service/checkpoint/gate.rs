//! The gate: what a worker asks right before a tool runs, and what happens to
//! calls whose worker is gone.
//!
//! No server can know whether a tool ran. So a call that was let through and not
//! finished when its lease is lost is in doubt: people see it, and no successor
//! runs it until one of them says so.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Checkpoints, get_thread};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{InterruptId, ThreadRef};
use crate::domain::interrupt::{
    Action, Answer, DecisionKind, Interrupt, InterruptKind, InterruptState, Policy, PolicyRequest,
};
use crate::domain::json;
use crate::domain::message::{Content, Item, Role};
use crate::domain::revision::Revision;
use crate::domain::session::Session;
use crate::domain::thread::{
    Call, CallIdentity, CallState, Checkpoint, Lease, PendingCall, ResultContent, Thread, Token,
    ToolMode, ToolResult, ToolRules, check_token,
};
use crate::domain::time::Timestamp;
use crate::service::caller::{Caller, Role as CallerRole};
use crate::service::engine::{Command, Done};
use crate::storage::entities::{
    call_key, checkpoint_key, interrupt_key, session_key, thread_prefix, tool_rules_key,
};
use crate::storage::typed::{ChangeSet, Loaded, load, load_at};
use crate::storage::{Abort, Direction, Error as StoreError, Index, Query, Reads, Stretch};

/// The answers that are allowed where a request holds a call and no rule says which.
pub const DEFAULT_ALLOWED: [DecisionKind; 3] = [
    DecisionKind::Approve,
    DecisionKind::Edit,
    DecisionKind::Reject,
];

/// More open calls than a thread ever has.
const ALL_CALLS: usize = 10_000;

/// Asks whether a tool call may run.
#[derive(Debug, Serialize)]
pub struct Gate {
    /// The thread.
    pub thread: ThreadRef,
    /// The worker's token.
    pub token: Option<Token>,
    /// The model's id of the call.
    pub tool_call_id: String,
    /// The tool.
    pub tool: String,
    /// JSON text of the arguments, as the model gave them.
    pub args_json: Option<String>,
    /// Which repetition of the same call in the run; from 0.
    pub ordinal: u32,
    /// Hold the call, at least as strictly as this.
    pub requested_policy: Option<PolicyRequest>,
}

/// What a gate answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gated {
    /// Run it, with these arguments and this key.
    Proceed {
        /// JSON text of the arguments.
        args_json: Option<String>,
        /// The idempotency key of the side effect.
        execution_key: String,
        /// The interrupt whose decision lets it through.
        decided_by: Option<InterruptId>,
    },
    /// It has run; this was the result.
    Done {
        /// The recorded result.
        result: ToolResult,
        /// Its key.
        execution_key: String,
    },
    /// Do not run it; a person answered in its stead.
    Respond {
        /// The interrupt with the answer.
        interrupt: InterruptId,
        /// The answer.
        answer: Answer,
    },
    /// Do not run it, and tell the model this.
    Reject {
        /// For the model.
        feedback: String,
        /// Why.
        cause: RejectCause,
        /// The interrupt, if a person was asked.
        interrupt: Option<InterruptId>,
    },
    /// Ask a person: suspend with this action.
    Interrupt {
        /// The action to ask about.
        action: Box<Action>,
        /// The answers to allow.
        allowed: Vec<DecisionKind>,
        /// The policy to ask under.
        policy: Policy,
        /// The interrupt that asks already, if one does.
        asked: Option<InterruptId>,
    },
    /// It was started by a worker that is gone. A reviewer has to say what happened.
    InDoubt {
        /// The interrupt that asks them.
        interrupt: Option<InterruptId>,
        /// The call's key.
        execution_key: String,
    },
}

/// Why a call must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectCause {
    /// A person said no.
    Rejected,
    /// A person said to go on without.
    Skipped,
    /// Nobody answered in time.
    Expired,
    /// The question was withdrawn.
    Cancelled,
    /// A rule says no.
    Forbidden,
}

#[async_trait]
impl Command for Gate {
    const METHOD: &'static str = "CheckpointService/GateToolCall";
    type Receipt = Gated;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Gated, Abort> {
        let mut thread = get_thread(reads, caller, &self.thread).await?;
        check_token(Some(&thread.value), self.token.as_ref())?;
        let Some(lease) = thread.value.lease.clone() else {
            return Err(lease_lost().into());
        };
        let identity = self.identity(&mut thread, &lease, changes)?;

        if let Some(call) = load::<Call>(reads, &call_key(&identity)).await? {
            return Ok(Self::known(call, &lease, reads.now(), changes)?);
        }
        let waiting = self.waiting(reads, &lease, &identity).await?;
        let (args_json, decided_by, policy) = match waiting {
            Some(interrupt) => match decided(&interrupt) {
                Ok(args_json) => (args_json, Some(interrupt.id), interrupt.policy.clone()),
                Err(refused) => return Ok(refused),
            },
            None => match self.by_rule(reads, &identity).await? {
                Ok(policy) => (self.args_json.clone(), None, policy),
                Err(refused) => return Ok(refused),
            },
        };
        let call = Call {
            execution_key: identity.execution_key(reads.tenant()),
            identity,
            args_json,
            tool: self.tool.clone(),
            state: CallState::Started,
            token: lease.token,
            decided_by,
            doubt: None,
            retry_on_lost_consumer: policy.retry_on_lost_consumer,
            result: None,
            started_at: reads.now(),
            finished_at: None,
        };
        changes.insert(&call)?;
        Ok(proceed(&call))
    }
}

impl Gate {
    /// The call that this is: itself, or the one of a cut-off turn that it was
    /// issued in the place of.
    fn identity(
        &self,
        thread: &mut Loaded<Thread>,
        lease: &Lease,
        changes: &mut ChangeSet,
    ) -> Result<CallIdentity, Abort> {
        let action_digest = json::action_digest_hex(&self.tool, self.args_json.as_deref());
        let own = CallIdentity {
            thread: self.thread.clone(),
            run: lease.run,
            tool_call_id: self.tool_call_id.clone(),
            action_digest,
            ordinal: self.ordinal,
        };
        let same_action = |original: &CallIdentity| original.action_digest == own.action_digest;
        let position = lease
            .reissued
            .iter()
            .position(|one| {
                same_action(&one.original) && one.by.as_deref() == Some(&self.tool_call_id)
            })
            .or_else(|| {
                lease
                    .reissued
                    .iter()
                    .position(|one| one.original == own && one.by.is_none())
            })
            .or_else(|| {
                lease
                    .reissued
                    .iter()
                    .position(|one| same_action(&one.original) && one.by.is_none())
            });
        let Some(position) = position else {
            return Ok(own);
        };
        let found = thread
            .value
            .lease
            .as_mut()
            .and_then(|lease| lease.reissued.get_mut(position));
        let Some(found) = found else { return Ok(own) };
        let original = found.original.clone();
        if found.by.is_none() {
            found.by = Some(self.tool_call_id.clone());
            changes.update(thread)?;
        }
        Ok(original)
    }

    /// What to say of a call that was let through before.
    fn known(
        mut call: Loaded<Call>,
        lease: &Lease,
        now: Timestamp,
        changes: &mut ChangeSet,
    ) -> Result<Gated, StoreError> {
        match call.value.state {
            CallState::Finished => {}
            CallState::Started if call.value.token == lease.token => {
                return Ok(proceed(&call.value));
            }
            // Started under a lease that was lost without anybody saying so: a bug
            // would have to be about, and doubt is the safe side.
            CallState::InDoubt | CallState::Started => return Ok(in_doubt(&call.value)),
            CallState::Retry => {
                call.value.state = CallState::Started;
                call.value.token = lease.token;
                call.value.started_at = now;
                changes.update(&call)?;
                return Ok(proceed(&call.value));
            }
        }
        let result = call
            .value
            .result
            .ok_or_else(|| StoreError::Internal("a finished call has no result".into()))?;
        Ok(Gated::Done {
            result,
            execution_key: call.value.execution_key,
        })
    }

    /// The interrupt that asked about the call before the run was resumed.
    async fn waiting(
        &self,
        reads: &mut dyn Reads,
        lease: &Lease,
        identity: &CallIdentity,
    ) -> Result<Option<Interrupt>, Abort> {
        let Some(id) = lease.resumed else {
            return Ok(None);
        };
        let Some(checkpoint) = load::<Checkpoint>(reads, &checkpoint_key(&self.thread, id)).await?
        else {
            return Ok(None);
        };
        let pending = checkpoint
            .value
            .pending
            .iter()
            .find(|pending| is_call(pending, identity));
        let Some(pending) = pending else {
            return Ok(None);
        };
        let interrupt = load::<Interrupt>(reads, &interrupt_key(pending.interrupt)).await?;
        let interrupt = interrupt
            .ok_or_else(|| StoreError::Internal("a pending call has no interrupt".into()))?;
        Ok(Some(interrupt.value))
    }

    /// What an admin's rules say, and what the worker asks for beyond them: the
    /// policy to run under, or why not to run.
    async fn by_rule(
        &self,
        reads: &mut dyn Reads,
        identity: &CallIdentity,
    ) -> Result<Result<Policy, Gated>, Abort> {
        let rules = load::<ToolRules>(reads, &tool_rules_key(&self.thread.agent)).await?;
        let rule = rules
            .as_ref()
            .and_then(|rules| rules.value.rule(&self.tool));
        let mode = rule.map_or(ToolMode::Free, |rule| rule.mode);
        match mode {
            ToolMode::Forbid => Ok(Err(Gated::Reject {
                feedback: format!(
                    "The tool {} is not allowed here. Do not call it again.",
                    self.tool
                ),
                cause: RejectCause::Forbidden,
                interrupt: None,
            })),
            ToolMode::Free if self.requested_policy.is_none() => {
                Ok(Ok(rule.map(|rule| rule.policy.clone()).unwrap_or_default()))
            }
            ToolMode::Free | ToolMode::Hold => {
                let stored = rule.map(|rule| rule.policy.clone()).unwrap_or_default();
                let policy = match &self.requested_policy {
                    Some(requested) => stored.tightened(requested, "requested_policy")?,
                    None => stored,
                };
                let allowed = match rule {
                    Some(rule) if !rule.allowed.is_empty() => rule.allowed.clone(),
                    _ => DEFAULT_ALLOWED.to_vec(),
                };
                let action = Action {
                    digest: identity.action_digest.clone(),
                    execution_key: identity.execution_key(reads.tenant()),
                    ordinal: self.ordinal,
                    tool_call_id: self.tool_call_id.clone(),
                    args_json: self.args_json.clone(),
                    ..Action::of(&self.tool)
                };
                Ok(Err(Gated::Interrupt {
                    action: Box::new(action),
                    allowed,
                    policy,
                    asked: None,
                }))
            }
        }
    }
}

/// Whether a call of a checkpoint is the one with this identity.
fn is_call(pending: &PendingCall, identity: &CallIdentity) -> bool {
    pending.tool_call_id == identity.tool_call_id
        && pending.ordinal == identity.ordinal
        && json::action_digest_hex(&pending.tool, pending.args_json.as_deref())
            == identity.action_digest
}

/// The arguments that a decision lets a call run with, or why it must not run.
fn decided(interrupt: &Interrupt) -> Result<Option<String>, Gated> {
    let reject = |feedback: String, cause| Gated::Reject {
        feedback,
        cause,
        interrupt: Some(interrupt.id),
    };
    let action = interrupt.action.as_ref();
    let tool = action.map_or("the tool", |action| action.tool.as_str());
    match interrupt.state {
        InterruptState::Pending => Err(Gated::Interrupt {
            action: Box::new(action.cloned().unwrap_or_else(|| Action::of(tool))),
            allowed: interrupt.allowed.clone(),
            policy: interrupt.policy.clone(),
            asked: Some(interrupt.id),
        }),
        InterruptState::Expired => Err(reject(
            format!("Nobody decided on {tool} in time, so it was not run."),
            RejectCause::Expired,
        )),
        InterruptState::Cancelled | InterruptState::Superseded => Err(reject(
            format!("The question about {tool} was withdrawn, so it was not run."),
            RejectCause::Cancelled,
        )),
        InterruptState::Resolved => match interrupt.resolution().map(|decision| &decision.answer) {
            Some(Answer::Approve { .. }) => Ok(action.and_then(|action| action.args_json.clone())),
            Some(Answer::Edit { args_json }) => Ok(Some(args_json.clone())),
            Some(Answer::Reject { reason }) if reason.is_empty() => Err(reject(
                format!("User rejected {tool}. Do not retry this tool call."),
                RejectCause::Rejected,
            )),
            Some(Answer::Reject { reason }) => Err(reject(reason.clone(), RejectCause::Rejected)),
            Some(answer @ (Answer::Respond { .. } | Answer::Choose { .. })) => {
                Err(Gated::Respond {
                    interrupt: interrupt.id,
                    answer: answer.clone(),
                })
            }
            Some(Answer::Skip) => Err(reject(
                format!("User skipped {tool}. Go on without it."),
                RejectCause::Skipped,
            )),
            Some(Answer::Suspend) | None => Err(reject(
                format!("There is no decision on {tool}, so it was not run."),
                RejectCause::Cancelled,
            )),
        },
    }
}

fn proceed(call: &Call) -> Gated {
    Gated::Proceed {
        args_json: call.args_json.clone(),
        execution_key: call.execution_key.clone(),
        decided_by: call.decided_by,
    }
}

fn in_doubt(call: &Call) -> Gated {
    Gated::InDoubt {
        interrupt: call.doubt,
        execution_key: call.execution_key.clone(),
    }
}

fn lease_lost() -> Error {
    Error::new(
        Reason::LeaseLost,
        "the lease is lost; stop, and acquire or resume the thread to go on",
    )
}

/// Records the result of a call.
#[derive(Debug, Serialize)]
pub struct Finish {
    /// The thread.
    pub thread: ThreadRef,
    /// The worker's token.
    pub token: Option<Token>,
    /// The call.
    pub execution_key: String,
    /// What the tool answered.
    pub result: ToolResult,
}

#[async_trait]
impl Command for Finish {
    const METHOD: &'static str = "CheckpointService/FinishToolCall";
    type Receipt = CallIdentity;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<CallIdentity, Abort> {
        let thread = get_thread(reads, caller, &self.thread).await?;
        check_token(Some(&thread.value), self.token.as_ref())?;
        let Some(lease) = &thread.value.lease else {
            return Err(lease_lost().into());
        };
        let mut call = find_call(reads, &self.thread, &self.execution_key).await?;
        match call.value.state {
            CallState::Finished if call.value.result.as_ref() == Some(&self.result) => {
                return Ok(call.value.identity);
            }
            CallState::Finished => {
                return Err(Error::new(
                    Reason::Conflict,
                    "the call has another result already; gate it again to see which",
                )
                .into());
            }
            CallState::Started if call.value.token == lease.token => {}
            CallState::Started | CallState::InDoubt => {
                return Err(Error::new(
                    Reason::InDoubt,
                    "the call was started under a lease that is lost; a reviewer has to say what happened",
                )
                .into());
            }
            CallState::Retry => {
                return Err(Error::argument(
                    "execution_key",
                    "the call is to be gated again before it runs",
                )
                .into());
            }
        }
        call.value.state = CallState::Finished;
        call.value.result = Some(self.result.clone());
        call.value.finished_at = Some(reads.now());
        changes.update(&call)?;
        Ok(call.value.identity)
    }
}

/// The call of a thread that has a key.
async fn find_call(
    reads: &mut dyn Reads,
    thread: &ThreadRef,
    execution_key: &str,
) -> Result<Loaded<Call>, Abort> {
    // The prefix ends with the separator already.
    let prefix = [&thread_prefix(thread), execution_key.as_bytes()].concat();
    let stretch = Stretch {
        prefix: prefix.clone().into(),
        after: None,
        direction: Direction::Forward,
        limit: 1,
    };
    let hit = reads
        .index(Index::CallKey, &stretch)
        .await?
        .into_iter()
        .find(|hit| *hit.place == *prefix);
    let call = match hit {
        Some(hit) => load::<Call>(reads, &hit.key).await?,
        None => None,
    };
    Ok(call.ok_or_else(|| {
        Error::argument(
            "execution_key",
            "no call of this thread has it; gate the call first",
        )
    })?)
}

/// What became of the lease of a thread, for the calls that it started.
#[derive(Debug)]
pub enum LeaseEnd<'a> {
    /// The worker went on without: a started call whose result it wrote into the
    /// history has run, any other is in doubt.
    Committed {
        /// What the worker wrote.
        written: &'a [Item],
    },
    /// The worker is gone, or stopped.
    Lost,
}

/// Settles the calls that a lease started, now that it ends: each is finished, in
/// doubt, or free to run again.
///
/// `session` takes the timeline entries; it is the caller's to store.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn settle_calls(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    thread: &Thread,
    session: &mut Session,
    end: &LeaseEnd<'_>,
) -> Result<(), Abort> {
    let stretch = Stretch {
        prefix: thread_prefix(&thread.key),
        after: None,
        direction: Direction::Forward,
        limit: ALL_CALLS,
    };
    for hit in reads.index(Index::CallOpen, &stretch).await? {
        let Some(mut call) = load::<Call>(reads, &hit.key).await? else {
            continue;
        };
        if call.value.state != CallState::Started {
            continue;
        }
        let now = reads.now();
        let written = match end {
            LeaseEnd::Committed { written } => {
                result_in(written, &call.value.identity.tool_call_id)
            }
            LeaseEnd::Lost => None,
        };
        if let Some(result) = written {
            call.value.state = CallState::Finished;
            call.value.result = Some(result);
            call.value.finished_at = Some(now);
        } else if call.value.retry_on_lost_consumer {
            call.value.state = CallState::Retry;
        } else {
            let interrupt = doubt(&call.value, session, caller, now);
            call.value.state = CallState::InDoubt;
            call.value.doubt = Some(interrupt.id);
            changes.insert(&interrupt)?;
            crate::service::session_write::push_entry(
                changes,
                session,
                caller,
                crate::domain::timeline::EntryKind::Interrupt,
                &format!("in doubt: {}", call.value.tool),
                Some(crate::domain::timeline::Link::Interrupt(interrupt.id)),
                now,
            )?;
        }
        changes.update(&call)?;
    }
    Ok(())
}

/// The result of a call among what a worker wrote into the history.
fn result_in(written: &[Item], tool_call_id: &str) -> Option<ToolResult> {
    written
        .iter()
        .rev()
        .filter_map(Item::as_message)
        .find_map(|message| {
            let answers =
                message.role == Role::Tool && message.tool_call_id.as_deref() == Some(tool_call_id);
            let content = match &message.content {
                Content::Text(text) => ResultContent::Text(text.clone()),
                Content::Blocks(blocks) => ResultContent::Blocks(blocks.clone()),
            };
            answers.then_some(ToolResult {
                content,
                is_error: false,
            })
        })
}

/// The question to a reviewer about a call that nobody knows the fate of.
///
/// Its id is made from the call's key, so that an operation that runs again asks
/// the same question.
fn doubt(call: &Call, session: &Session, caller: &Caller, now: Timestamp) -> Interrupt {
    let name = format!("{}:{}", call.execution_key, call.started_at.as_micros());
    let id = InterruptId::from_uuid(doubt_id(&name, now));
    Interrupt {
        session: Some(session.key.clone()),
        thread: Some(call.identity.thread.clone()),
        run: Some(call.identity.run),
        reason: "adjourn:in_doubt".to_owned(),
        title: format!("Did {} run?", call.tool),
        message: "Its worker was lost after the call was let through and before its result was recorded. \
                  Find out whether it took effect, then say RETRY or MARK_DONE."
            .to_owned(),
        action: Some(Action {
            tool_call_id: call.identity.tool_call_id.clone(),
            ordinal: call.identity.ordinal,
            args_json: call.args_json.clone(),
            digest: json::action_digest_hex(&call.tool, call.args_json.as_deref()),
            execution_key: call.execution_key.clone(),
            ..Action::of(&call.tool)
        }),
        allowed: vec![DecisionKind::Approve, DecisionKind::Respond],
        doubt: Some(call.identity.clone()),
        ..Interrupt::new(id, call.identity.thread.agent.clone(), InterruptKind::Approval, caller.principal.clone(), now)
    }
}

/// A UUID version 7 of `now` whose other bits come from a name.
fn doubt_id(name: &str, now: Timestamp) -> Uuid {
    use sha2::{Digest as _, Sha256};

    let mut bits = [0; 10];
    for (to, from) in bits.iter_mut().zip(Sha256::digest(name)) {
        *to = from;
    }
    uuid::Builder::from_unix_timestamp_millis(now.as_micros().unsigned_abs() / 1000, &bits)
        .into_uuid()
}

/// A reviewer says what happened to a call in doubt.
#[derive(Debug, Serialize)]
pub struct ResolveInDoubt {
    /// The interrupt that asks.
    pub interrupt: InterruptId,
    /// The etag of what they saw.
    pub seen: Revision,
    /// The result to record; `None` lets the call run again under the same key.
    pub result: Option<ToolResult>,
    /// Why.
    pub comment: String,
}

#[async_trait]
impl Command for ResolveInDoubt {
    const METHOD: &'static str = "CheckpointService/ResolveInDoubt";
    type Receipt = InterruptId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<InterruptId, Abort> {
        caller.require(&[CallerRole::Reviewer])?;
        let not_found = || Error::new(Reason::InterruptNotFound, "there is no such interrupt");
        let found = load::<Interrupt>(reads, &interrupt_key(self.interrupt)).await?;
        let mut interrupt = found.ok_or_else(not_found)?;
        let Some(identity) = interrupt.value.doubt.clone() else {
            return Err(Error::argument(
                "interrupt_id",
                "is not about a call in doubt; use DecideInterrupt",
            )
            .into());
        };
        let now = reads.now();
        let answer = match &self.result {
            Some(result) => Answer::Respond {
                value_json: serde_json::to_string(result)
                    .map_err(|error| StoreError::Internal(error.to_string()))?,
            },
            None => Answer::Approve { grant: None },
        };
        interrupt
            .value
            .decide(crate::domain::interrupt::Decision::by(
                caller_actor(caller),
                answer,
                &self.comment,
                self.seen,
                now,
            ))?;
        changes.update(&interrupt)?;

        let call = load::<Call>(reads, &call_key(&identity)).await?;
        let mut call =
            call.ok_or_else(|| StoreError::Internal("an interrupt in doubt has no call".into()))?;
        call.value.doubt = None;
        match &self.result {
            Some(result) => {
                call.value.state = CallState::Finished;
                call.value.result = Some(result.clone());
                call.value.finished_at = Some(now);
            }
            None => call.value.state = CallState::Retry,
        }
        changes.update(&call)?;
        if let Some(session) = &interrupt.value.session
            && let Some(mut session) = load::<Session>(reads, &session_key(session)).await?
        {
            crate::service::session_write::push_entry(
                changes,
                &mut session.value,
                caller,
                crate::domain::timeline::EntryKind::Decision,
                if self.result.is_some() {
                    "MARK_DONE"
                } else {
                    "RETRY"
                },
                Some(crate::domain::timeline::Link::Interrupt(self.interrupt)),
                now,
            )?;
            changes.update(&session)?;
        }
        Ok(self.interrupt)
    }
}

/// Who decides, for the record.
fn caller_actor(caller: &Caller) -> (crate::domain::id::PrincipalName, String) {
    (caller.principal.clone(), caller.auth_method.to_owned())
}

/// A call, as it was at a revision.
#[derive(Debug)]
struct CallAt {
    identity: CallIdentity,
    at: Revision,
}

#[async_trait]
impl Query for CallAt {
    type Output = Option<Call>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<Call>, Abort> {
        let found = load_at::<Call>(reads, &call_key(&self.identity), self.at).await?;
        Ok(found.map(|found| found.value))
    }
}

impl Checkpoints {
    /// Asks whether a tool call may run. PROCEED marks it as started.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`], [`Reason::TokenRequired`], [`Reason::Fenced`].
    pub async fn gate(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        gate: Gate,
    ) -> Result<Done<Gated>> {
        self.engine.submit(caller, request_id, gate).await
    }

    /// Records the result of a started call, and answers with the call.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`], [`Reason::Fenced`], [`Reason::InDoubt`],
    /// [`Reason::Conflict`].
    pub async fn finish(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        finish: Finish,
    ) -> Result<Done<Call>> {
        let Done {
            revision,
            at,
            receipt,
            replayed,
        } = self.engine.submit(caller, request_id, finish).await?;
        let call = self
            .engine
            .read(
                &caller.tenant,
                CallAt {
                    identity: receipt,
                    at: revision,
                },
            )
            .await?;
        let call =
            call.ok_or_else(|| Error::new(Reason::ResultCompacted, "the call is no longer kept"))?;
        Ok(Done {
            revision,
            at,
            receipt: call,
            replayed,
        })
    }

    /// Records what a reviewer says about a call in doubt.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::EtagMismatch`],
    /// [`Reason::AlreadyDecided`], [`Reason::PermissionDenied`].
    pub async fn resolve_in_doubt(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        resolve: ResolveInDoubt,
    ) -> Result<Done<InterruptId>> {
        self.engine.submit(caller, request_id, resolve).await
    }
}
