//! Interrupts, decisions, filters.

use std::collections::HashMap;

use super::common::{count, id, inward_time, json, limit, metadata, time, uuid};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::InterruptId;
use crate::domain::interrupt::{
    Action, Answer, Choice, Decision, DecisionKind, DecisionSource, GrantScope, GrantTerms,
    Interrupt, InterruptKind, InterruptSpec, InterruptState, OnExpire, Policy, PolicyRequest,
    Preview, ResumeAs,
};
use crate::domain::revision::Revision;
use crate::domain::thread::ToolResult;
use crate::proto::v1;
use crate::service::caller::Caller;
use crate::service::interrupt::{Filter, GivenAnswer, ListOrder};
use crate::service::schema::check_schema;
use crate::service::seal::{Sealer, interrupt_etag, open_interrupt_etag};

/// The most labels, choices, previews or assignees of an interrupt.
const MAX_PARTS: usize = 100;

/// The question in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`], [`Reason::LimitExceeded`].
pub fn spec(field: &str, spec: v1::InterruptSpec) -> Result<InterruptSpec> {
    let v1::InterruptSpec {
        kind,
        reason,
        title,
        message,
        description_markdown,
        locale,
        action,
        allowed_decisions,
        response_schema_json,
        choices,
        url,
        risk,
        priority,
        labels,
        metadata_json,
        group_id,
        agent_path,
        on_behalf_of,
        candidates,
        policy,
        dedup_key,
        correlation_id,
        resume_as,
        expire_time,
    } = spec;
    let at = |name: &str| format!("{field}.{name}");
    if let Some(text) = &metadata_json {
        metadata(&at("metadata_json"), text)?;
    }
    if let Some(schema) = &response_schema_json {
        json(&at("response_schema_json"), schema)?;
        check_schema(&at("response_schema_json"), schema)?;
    }
    limit(&at("choices"), "choices", choices.len(), MAX_PARTS)?;
    limit(&at("labels"), "labels", labels.len(), MAX_PARTS)?;
    limit(&at("candidates"), "candidates", candidates.len(), MAX_PARTS)?;
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort();
    let spec = InterruptSpec {
        kind: inward_kind(&at("kind"), kind)?,
        reason,
        title,
        message,
        description_markdown,
        locale,
        action: action
            .map(|action| inward_action(&at("action"), action))
            .transpose()?,
        allowed: inward_decision_kinds(&at("allowed_decisions"), &allowed_decisions)?,
        response_schema_json,
        choices: choices.into_iter().map(inward_choice).collect(),
        url,
        risk,
        priority,
        labels,
        metadata_json,
        group_id: named(&at("group_id"), group_id)?,
        agent_path,
        on_behalf_of,
        assignees: candidates,
        policy: policy
            .map(|policy| policy_request(&at("policy"), policy))
            .transpose()?
            .unwrap_or_default(),
        dedup_key: named(&at("dedup_key"), dedup_key)?,
        correlation_id: named(&at("correlation_id"), correlation_id)?,
        resume_as: inward_resume_as(&at("resume_as"), resume_as)?,
        expires_at: expire_time
            .as_ref()
            .map(|time| inward_time(&at("expire_time"), time))
            .transpose()?,
    };
    spec.check(field)?;
    Ok(spec)
}

/// A name that may be empty, and else is bounded like an id.
fn named(field: &str, text: String) -> Result<Option<String>> {
    if text.is_empty() {
        return Ok(None);
    }
    limit(field, "bytes", text.len(), crate::domain::id::MAX_ID_BYTES)?;
    if text.chars().any(char::is_control) {
        return Err(Error::argument(field, "must not have control characters"));
    }
    Ok(Some(text))
}

fn inward_choice(choice: v1::Choice) -> Choice {
    let v1::Choice {
        choice_id,
        title,
        description,
        prompt_fill,
        style,
    } = choice;
    Choice {
        id: choice_id,
        title,
        description,
        prompt_fill,
        style,
    }
}

fn inward_action(field: &str, action: v1::Action) -> Result<Action> {
    let v1::Action {
        tool_name,
        tool_namespace,
        source,
        tool_call_id,
        ordinal,
        args_json,
        args_schema_json,
        previews,
        action_digest: _,
    } = action;
    let at = |name: &str| format!("{field}.{name}");
    if let Some(args) = &args_json {
        json(&at("args_json"), args)?;
    }
    if let Some(schema) = &args_schema_json {
        json(&at("args_schema_json"), schema)?;
        check_schema(&at("args_schema_json"), schema)?;
    }
    limit(&at("previews"), "previews", previews.len(), MAX_PARTS)?;
    Ok(Action {
        namespace: tool_namespace,
        source,
        tool_call_id,
        ordinal: u32::try_from(ordinal)
            .map_err(|_| Error::argument(at("ordinal"), "must not be negative"))?,
        args_json,
        args_schema_json,
        previews: previews
            .into_iter()
            .map(|preview| {
                let v1::Preview {
                    title,
                    media_type,
                    text,
                    truncated,
                } = preview;
                Preview {
                    title,
                    media_type,
                    text,
                    truncated,
                }
            })
            .collect(),
        ..Action::of(&tool_name)
    })
}

/// An action on the wire.
#[must_use]
pub fn outward_action(action: Action) -> v1::Action {
    let Action {
        tool,
        namespace,
        source,
        tool_call_id,
        ordinal,
        args_json,
        args_schema_json,
        digest,
        previews,
        execution_key: _,
    } = action;
    v1::Action {
        tool_name: tool,
        tool_namespace: namespace,
        source,
        tool_call_id,
        ordinal: count(ordinal),
        args_json,
        args_schema_json,
        previews: previews
            .into_iter()
            .map(|preview| {
                let Preview {
                    title,
                    media_type,
                    text,
                    truncated,
                } = preview;
                v1::Preview {
                    title,
                    media_type,
                    text,
                    truncated,
                }
            })
            .collect(),
        action_digest: digest,
    }
}

fn inward_kind(field: &str, kind: i32) -> Result<InterruptKind> {
    match v1::interrupt::Kind::try_from(kind) {
        Ok(v1::interrupt::Kind::Approval) => Ok(InterruptKind::Approval),
        Ok(v1::interrupt::Kind::Input) => Ok(InterruptKind::Input),
        Ok(v1::interrupt::Kind::Choice) => Ok(InterruptKind::Choice),
        Ok(v1::interrupt::Kind::Url) => Ok(InterruptKind::Url),
        Ok(v1::interrupt::Kind::Notice) => Ok(InterruptKind::Notice),
        Ok(v1::interrupt::Kind::Unspecified) | Err(_) => Err(Error::argument(
            field,
            "must be APPROVAL, INPUT, CHOICE, URL or NOTICE",
        )),
    }
}

fn outward_kind(kind: InterruptKind) -> v1::interrupt::Kind {
    match kind {
        InterruptKind::Approval => v1::interrupt::Kind::Approval,
        InterruptKind::Input => v1::interrupt::Kind::Input,
        InterruptKind::Choice => v1::interrupt::Kind::Choice,
        InterruptKind::Url => v1::interrupt::Kind::Url,
        InterruptKind::Notice => v1::interrupt::Kind::Notice,
    }
}

fn inward_state(field: &str, state: i32) -> Result<InterruptState> {
    match v1::interrupt::State::try_from(state) {
        Ok(v1::interrupt::State::Pending) => Ok(InterruptState::Pending),
        Ok(v1::interrupt::State::Resolved) => Ok(InterruptState::Resolved),
        Ok(v1::interrupt::State::Expired) => Ok(InterruptState::Expired),
        Ok(v1::interrupt::State::Cancelled) => Ok(InterruptState::Cancelled),
        Ok(v1::interrupt::State::Superseded) => Ok(InterruptState::Superseded),
        Ok(v1::interrupt::State::Unspecified) | Err(_) => {
            Err(Error::argument(field, "must be a state"))
        }
    }
}

fn outward_state(state: InterruptState) -> v1::interrupt::State {
    match state {
        InterruptState::Pending => v1::interrupt::State::Pending,
        InterruptState::Resolved => v1::interrupt::State::Resolved,
        InterruptState::Expired => v1::interrupt::State::Expired,
        InterruptState::Cancelled => v1::interrupt::State::Cancelled,
        InterruptState::Superseded => v1::interrupt::State::Superseded,
    }
}

fn inward_resume_as(field: &str, resume_as: i32) -> Result<Option<ResumeAs>> {
    match v1::interrupt::ResumeAs::try_from(resume_as) {
        Ok(v1::interrupt::ResumeAs::Unspecified) => Ok(None),
        Ok(v1::interrupt::ResumeAs::UserMessage) => Ok(Some(ResumeAs::UserMessage)),
        Ok(v1::interrupt::ResumeAs::ToolResult) => Ok(Some(ResumeAs::ToolResult)),
        Err(_) => Err(Error::argument(
            field,
            "must be USER_MESSAGE or TOOL_RESULT",
        )),
    }
}

/// The kinds of answer in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn inward_decision_kinds(field: &str, kinds: &[i32]) -> Result<Vec<DecisionKind>> {
    let mut allowed = Vec::with_capacity(kinds.len());
    for (at, kind) in kinds.iter().enumerate() {
        let kind = match v1::decision::Kind::try_from(*kind) {
            Ok(v1::decision::Kind::Approve) => DecisionKind::Approve,
            Ok(v1::decision::Kind::Edit) => DecisionKind::Edit,
            Ok(v1::decision::Kind::Reject) => DecisionKind::Reject,
            Ok(v1::decision::Kind::Respond) => DecisionKind::Respond,
            Ok(v1::decision::Kind::Skip) => DecisionKind::Skip,
            Ok(v1::decision::Kind::Suspend) => DecisionKind::Suspend,
            Ok(v1::decision::Kind::Unspecified) | Err(_) => {
                return Err(Error::argument(
                    format!("{field}[{at}]"),
                    "must be a kind of decision",
                ));
            }
        };
        if !allowed.contains(&kind) {
            allowed.push(kind);
        }
    }
    Ok(allowed)
}

/// A kind of answer on the wire.
#[must_use]
pub const fn decision_kind(kind: DecisionKind) -> v1::decision::Kind {
    match kind {
        DecisionKind::Approve => v1::decision::Kind::Approve,
        DecisionKind::Edit => v1::decision::Kind::Edit,
        DecisionKind::Reject => v1::decision::Kind::Reject,
        DecisionKind::Respond => v1::decision::Kind::Respond,
        DecisionKind::Skip => v1::decision::Kind::Skip,
        DecisionKind::Suspend => v1::decision::Kind::Suspend,
    }
}

/// What a request says about the policy.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`].
pub fn policy_request(field: &str, policy: v1::Policy) -> Result<PolicyRequest> {
    let v1::Policy {
        required_approvals,
        exclude_requester,
        comment_required,
        on_expire,
        default_value_json,
        on_lost_consumer,
        tool_grants,
        policy_revision: _,
    } = policy;
    let at = |name: &str| format!("{field}.{name}");
    if let Some(text) = &default_value_json {
        json(&at("default_value_json"), text)?;
    }
    let on_expire = match v1::policy::OnExpire::try_from(on_expire) {
        Ok(v1::policy::OnExpire::Unspecified) => None,
        Ok(v1::policy::OnExpire::Expire) => Some(OnExpire::Expire),
        Ok(v1::policy::OnExpire::Approve) => Some(OnExpire::Approve),
        Ok(v1::policy::OnExpire::Reject) => Some(OnExpire::Reject),
        Ok(v1::policy::OnExpire::Default) => Some(OnExpire::Default),
        Err(_) => {
            return Err(Error::argument(
                at("on_expire"),
                "must be EXPIRE, APPROVE, REJECT or DEFAULT",
            ));
        }
    };
    let retry_on_lost_consumer = match v1::policy::OnLostConsumer::try_from(on_lost_consumer) {
        Ok(v1::policy::OnLostConsumer::Unspecified) => None,
        Ok(v1::policy::OnLostConsumer::Hold) => Some(false),
        Ok(v1::policy::OnLostConsumer::Retry) => Some(true),
        Err(_) => {
            return Err(Error::argument(
                at("on_lost_consumer"),
                "must be HOLD or RETRY",
            ));
        }
    };
    let required_approvals = required_approvals
        .map(|number| {
            u32::try_from(number)
                .ok()
                .filter(|number| *number >= 1)
                .ok_or_else(|| Error::argument(at("required_approvals"), "must be at least 1"))
        })
        .transpose()?;
    Ok(PolicyRequest {
        required_approvals,
        exclude_requester,
        comment_required: inward_decision_kinds(&at("comment_required"), &comment_required)?,
        on_expire,
        default_json: default_value_json,
        retry_on_lost_consumer,
        tool_grants,
    })
}

/// The policy that an admin sets; an absent one is the default.
///
/// # Errors
///
/// As [`policy_request`].
pub fn inward_policy(field: &str, policy: Option<v1::Policy>) -> Result<Policy> {
    let request = policy_request(field, policy.unwrap_or_default())?;
    Ok(Policy {
        required_approvals: request.required_approvals.unwrap_or(1),
        exclude_requester: request.exclude_requester.unwrap_or(false),
        comment_required: request.comment_required,
        on_expire: request.on_expire.unwrap_or_default(),
        default_json: request.default_json,
        revision: None,
        tool_grants: request.tool_grants.unwrap_or(false),
        retry_on_lost_consumer: request.retry_on_lost_consumer.unwrap_or(false),
    })
}

/// A policy on the wire.
#[must_use]
pub fn outward_policy(policy: Policy) -> v1::Policy {
    v1::Policy {
        required_approvals: Some(count(policy.required_approvals)),
        exclude_requester: Some(policy.exclude_requester),
        comment_required: policy
            .comment_required
            .into_iter()
            .map(decision_kind)
            .map(i32::from)
            .collect(),
        on_expire: match policy.on_expire {
            OnExpire::Expire => v1::policy::OnExpire::Expire,
            OnExpire::Approve => v1::policy::OnExpire::Approve,
            OnExpire::Reject => v1::policy::OnExpire::Reject,
            OnExpire::Default => v1::policy::OnExpire::Default,
        }
        .into(),
        default_value_json: policy.default_json,
        on_lost_consumer: if policy.retry_on_lost_consumer {
            v1::policy::OnLostConsumer::Retry
        } else {
            v1::policy::OnLostConsumer::Hold
        }
        .into(),
        tool_grants: Some(policy.tool_grants),
        policy_revision: policy.revision.unwrap_or_default().get(),
    }
}

/// The answer in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`].
pub fn answer(field: &str, answer: Option<v1::Answer>) -> Result<Answer> {
    let at = |name: &str| format!("{field}.{name}");
    let missing = || {
        Error::argument(
            field,
            "must be approve, edit, reject, respond, skip or suspend",
        )
    };
    let decision = answer
        .and_then(|answer| answer.decision)
        .ok_or_else(missing)?;
    Ok(match decision {
        v1::answer::Decision::Approve(v1::Approve { grant }) => Answer::Approve {
            grant: grant
                .map(|grant| inward_grant(&at("approve.grant"), &grant))
                .transpose()?,
        },
        v1::answer::Decision::Edit(v1::Edit { args_json }) => {
            json(&at("edit.args_json"), &args_json)?;
            Answer::Edit { args_json }
        }
        v1::answer::Decision::Reject(v1::Reject { reason }) => Answer::Reject { reason },
        v1::answer::Decision::Respond(v1::Respond { response }) => match response {
            Some(v1::respond::Response::ValueJson(value_json)) => {
                json(&at("respond.value_json"), &value_json)?;
                Answer::Respond { value_json }
            }
            Some(v1::respond::Response::ChoiceId(choice_id)) => Answer::Choose { choice_id },
            None => {
                return Err(Error::argument(
                    at("respond"),
                    "must have value_json or choice_id",
                ));
            }
        },
        v1::answer::Decision::Skip(v1::Skip {}) => Answer::Skip,
        v1::answer::Decision::Suspend(v1::Suspend {}) => Answer::Suspend,
    })
}

fn inward_grant(field: &str, grant: &v1::Grant) -> Result<GrantTerms> {
    let v1::Grant {
        r#match,
        scope,
        max_uses,
    } = grant;
    if v1::grant::Match::try_from(*r#match) != Ok(v1::grant::Match::Tool) {
        return Err(Error::argument(format!("{field}.match"), "must be TOOL"));
    }
    let scope = match v1::grant::Scope::try_from(*scope) {
        Ok(v1::grant::Scope::Unspecified | v1::grant::Scope::Resume) => GrantScope::Resume,
        Ok(v1::grant::Scope::Run) => GrantScope::Run,
        Ok(v1::grant::Scope::Session) => GrantScope::Session,
        Ok(v1::grant::Scope::Agent) => GrantScope::Agent,
        Err(_) => {
            return Err(Error::argument(
                format!("{field}.scope"),
                "must be RESUME, RUN, SESSION or AGENT",
            ));
        }
    };
    let max_uses = max_uses
        .map(|number| {
            u32::try_from(number)
                .ok()
                .filter(|number| *number >= 1)
                .ok_or_else(|| Error::argument(format!("{field}.max_uses"), "must be at least 1"))
        })
        .transpose()?;
    Ok(GrantTerms { scope, max_uses })
}

/// The answer to an interrupt in a field, as a person gives it.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`],
/// [`Reason::PreconditionRequired`] without an etag.
pub fn given_answer(
    field: &str,
    given: v1::InterruptAnswer,
    caller: &Caller,
    sealer: &Sealer,
) -> Result<GivenAnswer> {
    let v1::InterruptAnswer {
        interrupt_id,
        etag,
        answer: given,
        comment,
    } = given;
    let prefix = if field.is_empty() {
        String::new()
    } else {
        format!("{field}.")
    };
    let interrupt = uuid(
        &format!("{prefix}interrupt_id"),
        &interrupt_id,
        InterruptId::from_uuid,
    )?;
    limit(
        &format!("{prefix}comment"),
        "bytes",
        comment.len(),
        super::common::MAX_METADATA,
    )?;
    let answer = answer(&format!("{prefix}answer"), given)?;
    if etag.is_empty() {
        return Err(Error::new(
            Reason::PreconditionRequired,
            "send the etag of the interrupt as you saw it, so that you decide on what you saw",
        )
        .at(format!("{prefix}etag")));
    }
    let seen = open_interrupt_etag(sealer, caller, interrupt, &etag);
    Ok(GivenAnswer {
        interrupt,
        seen,
        answer,
        comment,
    })
}

/// An interrupt on the wire. `revision` is the commit that last changed it.
#[must_use]
#[expect(
    clippy::too_many_lines,
    reason = "one line for each field of the message, in their order"
)]
pub fn outward(
    interrupt: &Interrupt,
    revision: Revision,
    caller: &Caller,
    sealer: &Sealer,
) -> v1::Interrupt {
    let sealed = |at: Revision| interrupt_etag(sealer, caller, interrupt.id, at);
    let decisions: Vec<v1::Decision> = interrupt
        .decisions
        .iter()
        .enumerate()
        .map(|(at, decision)| {
            outward_decision(
                decision,
                interrupt.is_voided(at),
                revision,
                interrupt.doubt.is_some(),
                &sealed,
            )
        })
        .collect();
    let session = interrupt.session.as_ref();
    v1::Interrupt {
        interrupt_id: interrupt.id.to_string(),
        agent_id: interrupt.agent.to_string(),
        user_id: session
            .and_then(|session| session.user.as_ref())
            .map(ToString::to_string),
        session_id: session.map(|session| session.session.to_string()),
        thread_id: interrupt
            .thread
            .as_ref()
            .map(|thread| thread.thread.to_string()),
        run_id: interrupt.run.map(|run| run.to_string()).unwrap_or_default(),
        checkpoint_id: interrupt
            .checkpoint
            .map(|checkpoint| checkpoint.to_string())
            .unwrap_or_default(),
        group_id: interrupt.group_id.clone().unwrap_or_default(),
        agent_path: interrupt.agent_path.clone(),
        kind: outward_kind(interrupt.kind).into(),
        state: outward_state(interrupt.state).into(),
        reason: interrupt.reason.clone(),
        title: interrupt.title.clone(),
        message: interrupt.message.clone(),
        description_markdown: interrupt.description_markdown.clone(),
        locale: interrupt.locale.clone(),
        action: interrupt.action.clone().map(outward_action),
        previous_action: interrupt.previous_action.clone().map(outward_action),
        supersedes_interrupt_id: interrupt
            .supersedes
            .map(|id| id.to_string())
            .unwrap_or_default(),
        superseded_by_interrupt_id: interrupt
            .superseded_by
            .map(|id| id.to_string())
            .unwrap_or_default(),
        allowed_decisions: interrupt
            .allowed
            .iter()
            .map(|kind| decision_kind(*kind).into())
            .collect(),
        response_schema_json: interrupt.response_schema_json.clone(),
        choices: interrupt
            .choices
            .iter()
            .map(|choice| v1::Choice {
                choice_id: choice.id.clone(),
                title: choice.title.clone(),
                description: choice.description.clone(),
                prompt_fill: choice.prompt_fill.clone(),
                style: choice.style.clone(),
            })
            .collect(),
        url: interrupt.url.clone(),
        risk: interrupt.risk.clone(),
        priority: interrupt.priority,
        labels: interrupt.labels.iter().cloned().collect::<HashMap<_, _>>(),
        metadata_json: interrupt.metadata_json.clone(),
        requester: Some(v1::Requester {
            agent_id: interrupt.agent.to_string(),
            principal: interrupt.requester.to_string(),
            on_behalf_of: interrupt.on_behalf_of.clone(),
        }),
        candidates: interrupt.assignees.clone(),
        claim: interrupt.claim.as_ref().map(|claim| v1::Claim {
            actor: Some(v1::Actor {
                principal: claim.by.to_string(),
                ..v1::Actor::default()
            }),
            expire_time: Some(time(claim.expires_at)),
        }),
        policy: Some(outward_policy(interrupt.policy.clone())),
        dedup_key: interrupt.dedup_key.clone().unwrap_or_default(),
        correlation_id: interrupt.correlation_id.clone().unwrap_or_default(),
        resume_as: match interrupt.resume_as {
            None => v1::interrupt::ResumeAs::Unspecified,
            Some(ResumeAs::UserMessage) => v1::interrupt::ResumeAs::UserMessage,
            Some(ResumeAs::ToolResult) => v1::interrupt::ResumeAs::ToolResult,
        }
        .into(),
        create_time: Some(time(interrupt.created_at)),
        update_time: Some(time(interrupt.updated_at)),
        expire_time: interrupt.expires_at.map(time),
        purge_time: None,
        etag: sealed(interrupt.etag.revision(revision)),
        resolution: decisions
            .iter()
            .rev()
            .find(|decision| decision.resolving)
            .cloned(),
        decisions,
        consumption: interrupt
            .consumption
            .as_ref()
            .map(|consumption| v1::Consumption {
                consumer_id: consumption.consumer.to_string(),
                // The token is for its holder only.
                fencing_token: String::new(),
                consume_time: Some(time(consumption.at)),
                lease_expire_time: consumption.expires_at.map(time),
                acknowledge_time: consumption.acknowledged_at.map(time),
                outcome: consumption.outcome.clone(),
            }),
        in_doubt_call: interrupt.doubt.as_ref().map(|call| v1::InDoubtCall {
            action: interrupt.action.clone().map(outward_action),
            execution_key: interrupt
                .action
                .as_ref()
                .map(|action| action.execution_key.clone())
                .unwrap_or_default(),
            run_id: call.run.to_string(),
            consumer_id: String::new(),
            start_time: None,
            origin_interrupt_id: String::new(),
        }),
        traceparent: interrupt.traceparent.clone(),
        revision: revision.get(),
    }
}

fn outward_decision(
    decision: &Decision,
    voided: bool,
    stored: Revision,
    about_doubt: bool,
    sealed: &impl Fn(Revision) -> String,
) -> v1::Decision {
    let mut wire = v1::Decision {
        kind: decision_kind(decision.answer.kind()).into(),
        source: match decision.source {
            DecisionSource::Human => v1::decision::Source::Human,
            DecisionSource::Rule => v1::decision::Source::Rule,
            DecisionSource::Timeout => v1::decision::Source::Timeout,
            DecisionSource::Agent => v1::decision::Source::Agent,
            DecisionSource::Operator => v1::decision::Source::Operator,
        }
        .into(),
        actor: (!decision.actor.is_server()).then(|| v1::Actor {
            principal: decision.actor.to_string(),
            display_name: String::new(),
            auth_method: decision.auth_method.clone(),
            auth_time: None,
        }),
        comment: decision.comment.clone(),
        seen_etag: if decision.actor.is_server() {
            String::new()
        } else {
            sealed(decision.seen)
        },
        action_digest: decision.action_digest.clone(),
        resolving: decision.resolves,
        voided,
        rule_id: decision.rule_id.clone(),
        policy_revision: decision.policy_revision.unwrap_or_default().get(),
        decide_time: Some(time(decision.at)),
        revision: decision.revision.revision(stored).get(),
        ..v1::Decision::default()
    };
    match &decision.answer {
        Answer::Approve { grant } => wire.grant = grant.as_ref().map(outward_grant),
        Answer::Edit { args_json } => wire.args_json = Some(args_json.clone()),
        Answer::Reject { reason } => wire.reason = Some(reason.clone()),
        // The result that a reviewer recorded for a call in doubt.
        Answer::Respond { value_json } if about_doubt => {
            let result = serde_json::from_str::<ToolResult>(value_json).ok();
            wire.result = result.map(super::checkpoint::outward_result);
        }
        Answer::Respond { value_json } => wire.value_json = Some(value_json.clone()),
        Answer::Choose { choice_id } => wire.choice_id = Some(choice_id.clone()),
        Answer::Skip | Answer::Suspend => {}
    }
    wire
}

fn outward_grant(grant: &GrantTerms) -> v1::Grant {
    v1::Grant {
        r#match: v1::grant::Match::Tool.into(),
        scope: match grant.scope {
            GrantScope::Resume => v1::grant::Scope::Resume,
            GrantScope::Run => v1::grant::Scope::Run,
            GrantScope::Session => v1::grant::Scope::Session,
            GrantScope::Agent => v1::grant::Scope::Agent,
        }
        .into(),
        max_uses: grant.max_uses.map(count),
    }
}

/// The filter in a field, narrowed to what the caller's key names.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn filter(field: &str, filter: Option<v1::InterruptFilter>, caller: &Caller) -> Result<Filter> {
    let v1::InterruptFilter {
        states,
        kinds,
        agent_id,
        user_id,
        session_id,
        thread_id,
        tool_names,
        labels,
        assignee,
        in_doubt,
        correlation_id,
        group_id,
        min_create_time,
        max_create_time,
        max_expire_time,
    } = filter.unwrap_or_default();
    let at = |name: &str| format!("{field}.{name}");
    let instant = |name: &str, time: Option<prost_types::Timestamp>| {
        time.as_ref()
            .map(|time| inward_time(&at(name), time))
            .transpose()
    };
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort();
    Ok(Filter {
        states: states
            .iter()
            .map(|state| inward_state(&at("states"), *state))
            .collect::<Result<_>>()?,
        kinds: kinds
            .iter()
            .map(|kind| inward_kind(&at("kinds"), *kind))
            .collect::<Result<_>>()?,
        agent: match agent_id.as_deref() {
            Some(text) => Some(super::common::agent(caller, &at("agent_id"), text)?),
            None => caller.agent.clone(),
        },
        user: match user_id.as_deref() {
            Some(text) => super::common::user(caller, &at("user_id"), Some(text))?,
            None => caller.user.clone(),
        },
        session: session_id
            .map(|text| id::<crate::domain::id::SessionId>(&at("session_id"), &text).map(|_| text))
            .transpose()?,
        thread: thread_id
            .map(|text| super::common::thread_id(&at("thread_id"), &text).map(|_| text))
            .transpose()?,
        tools: tool_names,
        labels,
        assignee: (!assignee.is_empty()).then_some(assignee),
        in_doubt,
        correlation_id: (!correlation_id.is_empty()).then_some(correlation_id),
        group_id: (!group_id.is_empty()).then_some(group_id),
        created_from: instant("min_create_time", min_create_time)?,
        created_to: instant("max_create_time", max_create_time)?,
        expires_to: instant("max_expire_time", max_expire_time)?,
    })
}

/// The order in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn order(field: &str, order: i32) -> Result<ListOrder> {
    match v1::list_interrupts_request::Order::try_from(order) {
        Ok(
            v1::list_interrupts_request::Order::Unspecified
            | v1::list_interrupts_request::Order::NewestFirst,
        ) => Ok(ListOrder::Newest),
        Ok(v1::list_interrupts_request::Order::OldestFirst) => Ok(ListOrder::Oldest),
        Ok(v1::list_interrupts_request::Order::ExpiringFirst) => Ok(ListOrder::Expiring),
        Err(_) => Err(Error::argument(field, "must be an order")),
    }
}
