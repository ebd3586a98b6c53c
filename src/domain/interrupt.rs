//! Interrupts: stored questions to people, and the rules of answering them.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod consume;
#[cfg(test)]
mod tests;

use super::error::{Error, Reason, Result};
use super::id::{
    AgentId, CheckpointId, ConsumerId, InterruptId, PrincipalName, RunId, SessionRef, ThreadRef,
};
use super::json;
use super::revision::{Revision, Stamp};
use super::time::Timestamp;

/// A question to a person, with the contract of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Which interrupt.
    pub id: InterruptId,
    /// The agent that asks.
    pub agent: AgentId,
    /// The session it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// The thread that waits for it; only that thread's resume consumes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadRef>,
    /// The run that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The checkpoint of the suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Interrupts that belong together share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// The path of the sub-agent that asks, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent_path: Vec<String>,
    /// What is asked for.
    pub kind: InterruptKind,
    /// Why, in a framework's own word, such as `langgraph:review`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Where it stands.
    pub state: InterruptState,
    /// One line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// What the person reads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// More, in Markdown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description_markdown: String,
    /// The language of the texts, BCP 47.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub locale: String,
    /// The tool call in question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The action that a re-issued call had before its arguments changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_action: Option<Action>,
    /// The answers that are allowed. Empty only for a notice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<DecisionKind>,
    /// JSON Schema of the value of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema_json: Option<String>,
    /// The choices, for a choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// Where to go, for a URL.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The client's word for how risky it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub risk: String,
    /// Higher is more urgent.
    #[serde(default)]
    pub priority: i32,
    /// For filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
    /// Anything else: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_json: Option<String>,
    /// Who asked, as the server knows them.
    pub requester: PrincipalName,
    /// For whom the agent acts, as it says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub on_behalf_of: String,
    /// Who may or should answer; empty means any reviewer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignees: Vec<String>,
    /// How it must be answered.
    #[serde(default)]
    pub policy: Policy,
    /// Unique while the interrupt is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// Unique while the interrupt is live; how a webhook finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// How a worker feeds the answer in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_as: Option<ResumeAs>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed in any way.
    pub updated_at: Timestamp,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The last change of what a person decides on. Claims, votes and labels leave
    /// it alone.
    pub etag: Stamp,
    /// The claim of a reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Every answer that was given, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// Who took the answer to act on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumption: Option<Consumption>,
    /// The call a reviewer is asked about because nobody knows whether it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<super::thread::CallIdentity>,
    /// The interrupt whose place this one took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<InterruptId>,
    /// The interrupt that took this one's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<InterruptId>,
    /// When what it was for was cancelled or deleted, if it was answered by then:
    /// nobody acts on the answer any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_at: Option<Timestamp>,
    /// W3C trace context of the call that made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    /// May this action be taken?
    Approval,
    /// A value.
    Input,
    /// One of several.
    Choice,
    /// Something to be done elsewhere.
    Url,
    /// Nothing; it informs.
    Notice,
}

/// Where an interrupt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum InterruptState {
    /// Nobody has answered.
    Pending = 1,
    /// Answered.
    Resolved = 2,
    /// Its time ran out.
    Expired = 3,
    /// Withdrawn.
    Cancelled = 4,
    /// Another one took its place.
    Superseded = 5,
}

impl InterruptState {
    /// Whether it can change no more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending)
    }
}

/// A tool call, as the person sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The tool.
    pub tool: String,
    /// Where the tool lives, such as the name of an MCP server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Where the tool comes from, such as `local` or `mcp`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The model's id of the call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
    /// Which repetition of the call in the run; from 0.
    #[serde(default)]
    pub ordinal: u32,
    /// JSON text of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_json: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_schema_json: Option<String>,
    /// Digest of tool and arguments, hexadecimal; see `domain::json::action_digest`.
    pub digest: String,
    /// What to show of the effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub previews: Vec<Preview>,
    /// What the agent hands to the side effect as its idempotency key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub execution_key: String,
}

impl Action {
    /// A call of `tool` without arguments.
    #[must_use]
    pub fn of(tool: &str) -> Self {
        Self {
            tool: tool.to_owned(),
            namespace: String::new(),
            source: String::new(),
            tool_call_id: String::new(),
            ordinal: 0,
            args_json: None,
            args_schema_json: None,
            digest: json::action_digest_hex(tool, None),
            previews: Vec::new(),
            execution_key: String::new(),
        }
    }
}

/// A view of what an action would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// A title.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The media type of the text; empty means plain text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The text.
    pub text: String,
    /// Whether the text is cut.
    #[serde(default)]
    pub truncated: bool,
}

/// One of several answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Unique among the choices.
    pub id: String,
    /// One line.
    #[serde(default)]
    pub title: String,
    /// More.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Text that a dashboard may fill in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prompt_fill: String,
    /// A hint for dashboards, such as `danger`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub style: String,
}

/// How an interrupt must be answered. A request can only tighten what an admin's
/// stored policy says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How many people must approve. At least 1.
    pub required_approvals: u32,
    /// Whether the requester may not answer.
    #[serde(default)]
    pub exclude_requester: bool,
    /// Answers that need a comment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comment_required: Vec<DecisionKind>,
    /// What expiry means.
    #[serde(default)]
    pub on_expire: OnExpire,
    /// The value that expiry answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_json: Option<String>,
    /// The revision of the admin's policy behind it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// Whether an answer may be a grant for the tool whatever the arguments.
    #[serde(default)]
    pub tool_grants: bool,
    /// What happens to a started call whose worker is lost.
    #[serde(default)]
    pub retry_on_lost_consumer: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            required_approvals: 1,
            exclude_requester: false,
            comment_required: Vec::new(),
            on_expire: OnExpire::Expire,
            default_json: None,
            revision: None,
            tool_grants: false,
            retry_on_lost_consumer: false,
        }
    }
}

/// What expiry means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpire {
    /// Nobody answered.
    #[default]
    Expire,
    /// It counts as approved.
    Approve,
    /// It counts as rejected.
    Reject,
    /// It counts as answered with the default value.
    Default,
}

/// How a worker feeds an answer to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeAs {
    /// As a message of the user.
    UserMessage,
    /// As the result of the tool call.
    ToolResult,
}

/// A reviewer's claim, so that two do not work on one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who.
    pub by: PrincipalName,
    /// Until when.
    pub expires_at: Timestamp,
}

/// The kinds of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Take the action.
    Approve,
    /// Take it with other arguments.
    Edit,
    /// Do not take it.
    Reject,
    /// Here is a value.
    Respond,
    /// Go on without.
    Skip,
    /// Not now; stays pending.
    Suspend,
}

impl DecisionKind {
    /// The kind's name in errors and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approve => "APPROVE",
            Self::Edit => "EDIT",
            Self::Reject => "REJECT",
            Self::Respond => "RESPOND",
            Self::Skip => "SKIP",
            Self::Suspend => "SUSPEND",
        }
    }
}

/// An answer, as it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Take the action; with a grant, also re-issued calls of the tool.
    Approve {
        /// For calls with other arguments.
        grant: Option<GrantTerms>,
    },
    /// Take it with these arguments instead: all of them.
    Edit {
        /// JSON text.
        args_json: String,
    },
    /// Do not take it.
    Reject {
        /// What the model is told.
        reason: String,
    },
    /// A value.
    Respond {
        /// JSON text.
        value_json: String,
    },
    /// One of the choices.
    Choose {
        /// Its id.
        choice_id: String,
    },
    /// Go on without.
    Skip,
    /// Not now.
    Suspend,
}

impl Answer {
    /// The kind of answer. Choosing is a way to respond.
    #[must_use]
    pub const fn kind(&self) -> DecisionKind {
        match self {
            Self::Approve { .. } => DecisionKind::Approve,
            Self::Edit { .. } => DecisionKind::Edit,
            Self::Reject { .. } => DecisionKind::Reject,
            Self::Respond { .. } | Self::Choose { .. } => DecisionKind::Respond,
            Self::Skip => DecisionKind::Skip,
            Self::Suspend => DecisionKind::Suspend,
        }
    }
}

/// What a grant for a tool covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantTerms {
    /// Where it holds.
    pub scope: GrantScope,
    /// How many calls it lets through, at least 1; absent means any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_uses: Option<u32>,
}

/// Where a grant holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// Until the resumed lease ends.
    Resume,
    /// For the run.
    Run,
    /// For the session.
    Session,
    /// For the agent.
    Agent,
}

/// An answer, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What was answered.
    pub answer: Answer,
    /// A comment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Who, as the server verified them.
    pub actor: PrincipalName,
    /// How the server verified them.
    #[serde(default)]
    pub auth_method: String,
    /// Where the answer comes from.
    pub source: DecisionSource,
    /// When.
    pub at: Timestamp,
    /// The etag of what they saw.
    pub seen: Revision,
    /// Whether it decided the interrupt; else it is a vote, a postponement, or was
    /// voided by an edit.
    pub resolves: bool,
    /// The digest of the action that was decided on, after an edit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action_digest: String,
    /// The rule or the grant that answered, if no person did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule_id: String,
    /// The revision of the policy it was made under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<Revision>,
    /// The commit that recorded it.
    pub revision: Stamp,
}

impl Decision {
    /// What the person `actor`, of whom we also know how they were verified,
    /// answers to what they saw at `seen`.
    #[must_use]
    pub fn by(
        (actor, auth_method): (PrincipalName, String),
        answer: Answer,
        comment: &str,
        seen: Revision,
        at: Timestamp,
    ) -> Self {
        Self {
            answer,
            comment: comment.to_owned(),
            actor,
            auth_method,
            source: DecisionSource::Human,
            at,
            seen,
            resolves: false,
            action_digest: String::new(),
            rule_id: String::new(),
            policy_revision: None,
            revision: Stamp::THIS_COMMIT,
        }
    }
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionSource {
    /// A person.
    Human,
    /// A stored rule.
    Rule,
    /// Expiry.
    Timeout,
    /// The agent's own callback, where an admin allows it.
    Agent,
    /// An operator of the service.
    Operator,
}

/// Who took an answer to act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumption {
    /// Who.
    pub consumer: ConsumerId,
    /// The token: the thread's fencing token, or one of its own.
    pub token: Stamp,
    /// When.
    pub at: Timestamp,
    /// Until when, where no thread's lease says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the outcome was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Timestamp>,
    /// The outcome, in the consumer's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub outcome: String,
}

impl Interrupt {
    /// A question of `kind` without a text.
    #[must_use]
    pub fn new(
        id: InterruptId,
        agent: AgentId,
        kind: InterruptKind,
        requester: PrincipalName,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            agent,
            session: None,
            thread: None,
            run: None,
            checkpoint: None,
            group_id: None,
            agent_path: Vec::new(),
            kind,
            reason: String::new(),
            state: InterruptState::Pending,
            title: String::new(),
            message: String::new(),
            description_markdown: String::new(),
            locale: String::new(),
            action: None,
            previous_action: None,
            allowed: Vec::new(),
            response_schema_json: None,
            choices: Vec::new(),
            url: String::new(),
            risk: String::new(),
            priority: 0,
            labels: Vec::new(),
            metadata_json: None,
            requester,
            on_behalf_of: String::new(),
            assignees: Vec::new(),
            policy: Policy::default(),
            dedup_key: None,
            correlation_id: None,
            resume_as: None,
            created_at: now,
            updated_at: now,
            expires_at: None,
            etag: Stamp::THIS_COMMIT,
            claim: None,
            decisions: Vec::new(),
            consumption: None,
            doubt: None,
            supersedes: None,
            superseded_by: None,
            dropped_at: None,
            traceparent: String::new(),
        }
    }

    /// What people call it: the tool, else the title.
    #[must_use]
    pub fn name(&self) -> &str {
        self.action
            .as_ref()
            .map_or(&self.title, |action| &action.tool)
    }

    /// The answer that decided it.
    #[must_use]
    pub fn resolution(&self) -> Option<&Decision> {
        self.decisions
            .iter()
            .rev()
            .find(|decision| decision.resolves)
    }

    /// Whether its outcome was recorded.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.consumption
            .as_ref()
            .is_some_and(|consumption| consumption.acknowledged_at.is_some())
    }

    /// Whether it still holds its `dedup_key` and `correlation_id`, and its thread:
    /// pending, or answered and not acknowledged.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.state {
            InterruptState::Pending => true,
            InterruptState::Resolved | InterruptState::Expired => {
                !self.is_acknowledged() && self.dropped_at.is_none()
            }
            InterruptState::Cancelled | InterruptState::Superseded => false,
        }
    }

    /// Whether its time has run out, swept or not.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.state == InterruptState::Pending && self.expires_at.is_some_and(|at| now >= at)
    }

    /// Records an answer.
    ///
    /// The answer's value must have been checked against its schema before.
    ///
    /// # Errors
    ///
    /// [`Reason::AlreadyDecided`] with the winner, [`Reason::NotPending`],
    /// [`Reason::InterruptOverdue`], [`Reason::EtagMismatch`],
    /// [`Reason::HitlDecision`], [`Reason::CommentRequired`],
    /// [`Reason::ApproverExcluded`], [`Reason::Claimed`]. Nothing has changed then.
    pub fn decide(&mut self, mut decision: Decision) -> Result<Decided> {
        self.check_decidable(&decision)?;
        let kind = decision.answer.kind();
        let outcome = match kind {
            DecisionKind::Suspend => Decided::Postponed,
            DecisionKind::Approve => self.count_vote(&decision),
            DecisionKind::Edit if self.policy.required_approvals > 1 => Decided::Amended,
            DecisionKind::Edit
            | DecisionKind::Reject
            | DecisionKind::Respond
            | DecisionKind::Skip => Decided::Resolved,
        };
        decision.resolves = outcome == Decided::Resolved;
        decision.action_digest = self.digest_after(&decision.answer);
        decision.policy_revision = self.policy.revision;
        self.updated_at = decision.at;
        match outcome {
            Decided::Resolved => {
                self.state = InterruptState::Resolved;
                self.claim = None;
            }
            Decided::Amended => self.amend(&decision),
            Decided::Voted | Decided::Postponed => {}
        }
        self.decisions.push(decision);
        Ok(outcome)
    }

    fn check_decidable(&self, decision: &Decision) -> Result<()> {
        let kind = decision.answer.kind();
        match self.state {
            InterruptState::Pending => {}
            InterruptState::Resolved => return Err(self.already_decided()),
            InterruptState::Expired | InterruptState::Cancelled | InterruptState::Superseded => {
                let error = Error::new(
                    Reason::NotPending,
                    "nobody waits for this answer any more; look at the interrupt's state",
                );
                return Err(match self.superseded_by {
                    Some(next) => error.with("superseded_by", next),
                    None => error,
                });
            }
        }
        if self.is_overdue(decision.at) {
            return Err(Error::new(
                Reason::InterruptOverdue,
                "the time to answer has run out",
            ));
        }
        if !self.etag.is(decision.seen) {
            return Err(Error::new(
                Reason::EtagMismatch,
                "the question has changed since you saw it; look at it again, then decide again",
            ));
        }
        if !self.allowed.contains(&kind)
            && kind != DecisionKind::Suspend
            && !self.closes_notice(kind)
        {
            let allowed: Vec<_> = self.allowed.iter().map(|kind| kind.name()).collect();
            return Err(Error::new(
                Reason::HitlDecision,
                format!(
                    "{} is not allowed here; allowed: {}",
                    kind.name(),
                    allowed.join(", ")
                ),
            )
            .with("allowed", allowed.join(",")));
        }
        if let Answer::Choose { choice_id } = &decision.answer
            && !self.choices.iter().any(|choice| choice.id == *choice_id)
        {
            return Err(Error::argument(
                "answer.respond.choice_id",
                "is not one of the choices",
            ));
        }
        if let Answer::Respond { .. } = &decision.answer
            && self.kind == InterruptKind::Choice
        {
            return Err(Error::argument(
                "answer.respond",
                "this question is answered by one of its choices",
            ));
        }
        if self.policy.comment_required.contains(&kind) && decision.comment.is_empty() {
            return Err(Error::new(
                Reason::CommentRequired,
                format!("{} needs a comment", kind.name()),
            )
            .at("comment"));
        }
        if self.is_excluded(&decision.actor) && decision.source == DecisionSource::Human {
            return Err(Error::new(
                Reason::ApproverExcluded,
                "whoever asks, or changed the arguments, may not decide; ask another reviewer",
            ));
        }
        self.check_claim(&decision.actor, decision.at)
    }

    /// A notice allows nothing, and is closed by a skip.
    fn closes_notice(&self, kind: DecisionKind) -> bool {
        self.kind == InterruptKind::Notice && kind == DecisionKind::Skip
    }

    fn is_excluded(&self, actor: &PrincipalName) -> bool {
        let authored = self
            .decisions
            .iter()
            .rev()
            .find(|decision| decision.answer.kind() == DecisionKind::Edit)
            .is_some_and(|edit| edit.actor == *actor);
        self.policy.exclude_requester && (authored || self.requester == *actor)
    }

    /// The digest of the action that an answer is about; empty without an action.
    fn digest_after(&self, answer: &Answer) -> String {
        match (&self.action, answer) {
            (Some(action), Answer::Edit { args_json }) => {
                json::action_digest_hex(&action.tool, Some(args_json))
            }
            (Some(action), _) => action.digest.clone(),
            (None, _) => String::new(),
        }
    }

    /// Whether the decision at this place was a vote for arguments that an edit
    /// has replaced since.
    #[must_use]
    pub fn is_voided(&self, place: usize) -> bool {
        let mut later = self.decisions.iter().skip(place);
        later.next().is_some_and(|vote| {
            !vote.resolves
                && vote.answer.kind() == DecisionKind::Approve
                && later.any(|decision| decision.answer.kind() == DecisionKind::Edit)
        })
    }

    /// Counts the approvals of distinct people since the last edit.
    fn count_vote(&self, vote: &Decision) -> Decided {
        let mut voters: Vec<&PrincipalName> = self
            .decisions
            .iter()
            .rev()
            .take_while(|decision| decision.answer.kind() != DecisionKind::Edit)
            .filter(|decision| decision.answer.kind() == DecisionKind::Approve)
            .map(|decision| &decision.actor)
            .collect();
        voters.push(&vote.actor);
        voters.sort_unstable();
        voters.dedup();
        if voters.len() >= self.policy.required_approvals as usize {
            Decided::Resolved
        } else {
            Decided::Voted
        }
    }

    /// An edit where several must approve: the question becomes another one.
    fn amend(&mut self, edit: &Decision) {
        if let (Some(action), Answer::Edit { args_json }) = (&mut self.action, &edit.answer) {
            action.digest = json::action_digest_hex(&action.tool, Some(args_json));
            action.args_json = Some(args_json.clone());
        }
        self.etag = Stamp::THIS_COMMIT;
    }

    /// The refusal of an answer that comes too late, with the one that won.
    #[must_use]
    pub fn already_decided(&self) -> Error {
        let error = Error::new(
            Reason::AlreadyDecided,
            "somebody has decided already; see the winning decision",
        );
        match self.resolution() {
            Some(won) => error
                .with("winner", &won.actor)
                .with("kind", won.answer.kind().name())
                .with("decide_time_us", won.at.as_micros()),
            None => error,
        }
    }

    /// Ends it because its time has run out, as its policy says.
    pub fn expire(&mut self, now: Timestamp, actor: PrincipalName) {
        let answer = match self.policy.on_expire {
            OnExpire::Expire => None,
            OnExpire::Approve => Some(Answer::Approve { grant: None }),
            OnExpire::Reject => Some(Answer::Reject {
                reason: "nobody answered in time".to_owned(),
            }),
            OnExpire::Default => self
                .policy
                .default_json
                .clone()
                .map(|value_json| Answer::Respond { value_json }),
        };
        self.updated_at = now;
        self.claim = None;
        let Some(answer) = answer else {
            self.state = InterruptState::Expired;
            return;
        };
        self.state = InterruptState::Resolved;
        let seen = self.etag.stored().unwrap_or(Revision::ZERO);
        let action_digest = self.digest_after(&answer);
        self.decisions.push(Decision {
            source: DecisionSource::Timeout,
            resolves: true,
            action_digest,
            policy_revision: self.policy.revision,
            ..Decision::by((actor, String::new()), answer, "", seen, now)
        });
    }

    /// Withdraws it, if nobody has answered yet.
    pub fn cancel(&mut self, now: Timestamp) -> bool {
        if self.state.is_terminal() {
            return false;
        }
        self.state = InterruptState::Cancelled;
        self.updated_at = now;
        self.claim = None;
        true
    }

    /// Ends it because what it was for is no more: withdraws it, or, if it was
    /// answered, leaves the answer for nobody to act on. Says whether it changed.
    pub fn drop_for_good(&mut self, now: Timestamp) -> bool {
        if self.cancel(now) {
            return true;
        }
        if !self.is_live() {
            return false;
        }
        self.dropped_at = Some(now);
        self.updated_at = now;
        true
    }

    /// Gives its place to another one. An answer that somebody acts on already
    /// stays as it is.
    pub fn supersede(&mut self, next: InterruptId, now: Timestamp) {
        if self.consumption.is_none() {
            self.state = InterruptState::Superseded;
            self.claim = None;
        }
        self.superseded_by = Some(next);
        self.updated_at = now;
    }
}

/// What a request says about the policy. Absent parts leave it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRequest {
    /// See [`Policy::required_approvals`].
    pub required_approvals: Option<u32>,
    /// See [`Policy::exclude_requester`].
    pub exclude_requester: Option<bool>,
    /// More answers that need a comment.
    pub comment_required: Vec<DecisionKind>,
    /// See [`Policy::on_expire`].
    pub on_expire: Option<OnExpire>,
    /// See [`Policy::default_json`].
    pub default_json: Option<String>,
    /// See [`Policy::retry_on_lost_consumer`].
    pub retry_on_lost_consumer: Option<bool>,
    /// See [`Policy::tool_grants`].
    pub tool_grants: Option<bool>,
}

impl Policy {
    /// This policy, as far as a request makes it stricter.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], naming the field below `field`, when the request
    /// would loosen it: whatever lets a call pass without a person is an admin's
    /// alone.
    pub fn tightened(&self, request: &PolicyRequest, field: &str) -> Result<Self> {
        let PolicyRequest {
            required_approvals,
            exclude_requester,
            comment_required,
            on_expire,
            default_json,
            retry_on_lost_consumer,
            tool_grants,
        } = request;
        let loosens = |name: &str| {
            Error::argument(
                format!("{field}.{name}"),
                "would loosen the policy; a request can only tighten it, and an admin sets another with SetToolRules",
            )
        };
        let mut policy = self.clone();
        if let Some(approvals) = *required_approvals {
            if approvals < self.required_approvals.max(1) {
                return Err(loosens("required_approvals"));
            }
            policy.required_approvals = approvals;
        }
        if let Some(exclude) = *exclude_requester {
            if self.exclude_requester && !exclude {
                return Err(loosens("exclude_requester"));
            }
            policy.exclude_requester = exclude;
        }
        policy.comment_required.extend(comment_required);
        policy.comment_required.sort_unstable();
        policy.comment_required.dedup();
        match *on_expire {
            Some(strict @ (OnExpire::Expire | OnExpire::Reject)) => {
                policy.on_expire = strict;
                policy.default_json = None;
            }
            Some(loose @ (OnExpire::Approve | OnExpire::Default)) if self.on_expire != loose => {
                return Err(loosens("on_expire"));
            }
            Some(OnExpire::Approve | OnExpire::Default) | None => {}
        }
        if default_json.is_some()
            && (policy.on_expire != OnExpire::Default
                || !json::equal(default_json.as_deref(), self.default_json.as_deref()))
        {
            return Err(loosens("default_value_json"));
        }
        if let Some(retry) = *retry_on_lost_consumer {
            if retry && !self.retry_on_lost_consumer {
                return Err(loosens("on_lost_consumer"));
            }
            policy.retry_on_lost_consumer = retry;
        }
        if let Some(grants) = *tool_grants {
            if grants && !self.tool_grants {
                return Err(loosens("tool_grants"));
            }
            policy.tool_grants = grants;
        }
        Ok(policy)
    }
}

/// What an answer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It decided the interrupt.
    Resolved,
    /// It counts, and more are needed.
    Voted,
    /// It changed the action, and all must approve anew.
    Amended,
    /// It put the question off.
    Postponed,
}

/// How long an interrupt with a correlation id waits if its maker names no time.
pub const CORRELATION_TTL: Duration = Duration::from_hours(7 * 24);

/// How many labels an interrupt may have.
const MAX_LABELS: usize = 64;

/// What an admin's rule says about questions for a tool.
#[derive(Clone, Debug)]
pub struct AskingRule<'a> {
    /// The policy, with the revision of the rule.
    pub policy: Policy,
    /// The answers that it allows; empty means any.
    pub allowed: &'a [DecisionKind],
}

/// A question, as an agent asks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptSpec {
    /// What is asked for.
    pub kind: InterruptKind,
    /// See [`Interrupt::reason`].
    pub reason: String,
    /// See [`Interrupt::title`].
    pub title: String,
    /// See [`Interrupt::message`].
    pub message: String,
    /// See [`Interrupt::description_markdown`].
    pub description_markdown: String,
    /// See [`Interrupt::locale`].
    pub locale: String,
    /// The tool call in question; its digest is the server's to make.
    pub action: Option<Action>,
    /// The answers to allow.
    pub allowed: Vec<DecisionKind>,
    /// See [`Interrupt::response_schema_json`].
    pub response_schema_json: Option<String>,
    /// See [`Interrupt::choices`].
    pub choices: Vec<Choice>,
    /// See [`Interrupt::url`].
    pub url: String,
    /// See [`Interrupt::risk`].
    pub risk: String,
    /// See [`Interrupt::priority`].
    pub priority: i32,
    /// See [`Interrupt::labels`].
    pub labels: Vec<(String, String)>,
    /// See [`Interrupt::metadata_json`].
    pub metadata_json: Option<String>,
    /// See [`Interrupt::group_id`].
    pub group_id: Option<String>,
    /// See [`Interrupt::agent_path`].
    pub agent_path: Vec<String>,
    /// See [`Interrupt::on_behalf_of`].
    pub on_behalf_of: String,
    /// See [`Interrupt::assignees`].
    pub assignees: Vec<String>,
    /// What is asked for beyond the stored policy.
    pub policy: PolicyRequest,
    /// See [`Interrupt::dedup_key`].
    pub dedup_key: Option<String>,
    /// See [`Interrupt::correlation_id`].
    pub correlation_id: Option<String>,
    /// See [`Interrupt::resume_as`].
    pub resume_as: Option<ResumeAs>,
    /// See [`Interrupt::expires_at`].
    pub expires_at: Option<Timestamp>,
}

impl InterruptSpec {
    /// Checks that the question makes sense, whatever is stored.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], naming the field below `field`.
    pub fn check(&self, field: &str) -> Result<()> {
        let wrong =
            |name: &str, problem: &str| Err(Error::argument(format!("{field}.{name}"), problem));
        if self.allowed.is_empty() && self.kind != InterruptKind::Notice {
            return wrong(
                "allowed_decisions",
                "must not be empty, or nobody could ever answer",
            );
        }
        if self.kind == InterruptKind::Choice && self.choices.is_empty() {
            return wrong("choices", "must not be empty for a choice");
        }
        let web = ["https://", "http://"];
        if self.kind == InterruptKind::Url && !web.iter().any(|web| self.url.starts_with(web)) {
            return wrong("url", "must be an http or https address for a URL");
        }
        if self.kind == InterruptKind::Approval
            && self.action.is_none()
            && self.message.is_empty()
            && self.title.is_empty()
        {
            return wrong(
                "action",
                "there is nothing to approve; name the action, or say it in title or message",
            );
        }
        let ids: Vec<_> = self
            .choices
            .iter()
            .map(|choice| choice.id.as_str())
            .collect();
        for (at, id) in ids.iter().enumerate() {
            if id.is_empty() || ids.iter().take(at).any(|earlier| earlier == id) {
                return wrong(
                    &format!("choices[{at}].choice_id"),
                    "must be there and be unique",
                );
            }
        }
        if self
            .action
            .as_ref()
            .is_some_and(|action| action.tool.is_empty())
        {
            return wrong("action.tool_name", "must not be empty");
        }
        if self.allowed.contains(&DecisionKind::Edit) && self.action.is_none() {
            return wrong("allowed_decisions", "EDIT needs an action to edit");
        }
        if self.labels.len() > MAX_LABELS {
            return Err(Error::new(
                Reason::LimitExceeded,
                format!("{field}.labels: at most {MAX_LABELS} labels"),
            )
            .at(format!("{field}.labels"))
            .with("limit", MAX_LABELS));
        }
        Ok(())
    }

    /// The interrupt that asks it. `rule` is the admin's for the tool.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], naming the field of the question, when it has
    /// expired before it is asked or would loosen the policy;
    /// [`Reason::HitlDecision`] when the rule leaves no answer.
    pub fn ask(
        &self,
        blank: Interrupt,
        rule: Option<AskingRule<'_>>,
        execution_key: Option<String>,
    ) -> Result<Interrupt> {
        let now = blank.created_at;
        let expires_at = self.expires_at.or_else(|| {
            self.correlation_id
                .as_ref()
                .map(|_| now.after(CORRELATION_TTL))
        });
        if expires_at.is_some_and(|at| at <= now) {
            return Err(Error::argument("expire_time", "has passed already"));
        }
        let mut allowed = self.allowed.clone();
        if let Some(rule) = &rule
            && !rule.allowed.is_empty()
        {
            allowed.retain(|kind| rule.allowed.contains(kind));
            if allowed.is_empty() && !self.allowed.is_empty() {
                return Err(Error::new(
                    Reason::HitlDecision,
                    "the rule of this tool allows none of these decisions; ask for others",
                )
                .at("allowed_decisions"));
            }
        }
        let policy = rule.map_or_else(Policy::default, |rule| rule.policy);
        let policy = policy.tightened(&self.policy, "policy")?;
        let action = self.action.as_ref().map(|action| Action {
            digest: json::action_digest_hex(&action.tool, action.args_json.as_deref()),
            execution_key: execution_key.unwrap_or_default(),
            ..action.clone()
        });
        Ok(Interrupt {
            kind: self.kind,
            reason: self.reason.clone(),
            title: self.title.clone(),
            message: self.message.clone(),
            description_markdown: self.description_markdown.clone(),
            locale: self.locale.clone(),
            action,
            allowed,
            response_schema_json: self.response_schema_json.clone(),
            choices: self.choices.clone(),
            url: self.url.clone(),
            risk: self.risk.clone(),
            priority: self.priority,
            labels: self.labels.clone(),
            metadata_json: self.metadata_json.clone(),
            group_id: self.group_id.clone(),
            agent_path: self.agent_path.clone(),
            on_behalf_of: self.on_behalf_of.clone(),
            assignees: self.assignees.clone(),
            policy,
            dedup_key: self.dedup_key.clone(),
            correlation_id: self.correlation_id.clone(),
            resume_as: self.resume_as,
            expires_at,
            ..blank
        })
    }
}

/// Refuses keys that two questions of one request share: one commit cannot hold
/// both.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming the field as `interrupts[1].dedup_key`.
pub fn check_distinct(specs: &[InterruptSpec]) -> Result<()> {
    let (mut dedup, mut correlation) = (HashSet::new(), HashSet::new());
    for (at, spec) in specs.iter().enumerate() {
        for (name, key, seen) in [
            ("dedup_key", &spec.dedup_key, &mut dedup),
            ("correlation_id", &spec.correlation_id, &mut correlation),
        ] {
            if let Some(key) = key
                && !seen.insert(key)
            {
                return Err(Error::argument(
                    format!("interrupts[{at}].{name}"),
                    "another interrupt of the request has it",
                ));
            }
        }
    }
    Ok(())
}
