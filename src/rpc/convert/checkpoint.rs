//! Threads, checkpoints and gated calls.

use super::common::{count, duration, session_ref, thread_ref, time};
use super::interrupt;
use super::message::{blocks, outward_blocks};
use crate::domain::error::{Error, Result};
use crate::domain::id::CheckpointId;
use crate::domain::revision::Revision;
use crate::domain::thread::{
    Call, CallState, CheckpointKind, ResultContent, ToolMode, ToolResult, ToolRule, ToolRules,
};
use crate::proto::v1;
use crate::rpc::convert::common::{json, optional_uuid};
use crate::service::caller::Caller;
use crate::service::checkpoint::gate::{Gated, RejectCause};
use crate::service::checkpoint::lease::LeaseGrant;
use crate::service::checkpoint::read::{
    CheckpointSummary, PendingView, Standing, ThreadSummary, view_of,
};
use crate::service::checkpoint::resume::View;
use crate::service::seal::Sealer;

/// The checkpoint in a field; an empty one is the newest.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`].
pub fn checkpoint_id(field: &str, text: &str) -> Result<Option<CheckpointId>> {
    optional_uuid(field, text, CheckpointId::from_uuid)
}

/// The view in a field; an unspecified one is `default`.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`].
pub fn view(field: &str, view: i32, default: View) -> Result<View> {
    match v1::CheckpointView::try_from(view) {
        Ok(v1::CheckpointView::Unspecified) => Ok(default),
        Ok(v1::CheckpointView::Cut) => Ok(View::Cut),
        Ok(v1::CheckpointView::Full) => Ok(View::Full),
        Err(_) => Err(Error::argument(field, "must be CUT or FULL")),
    }
}

/// The tool result in a field.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`], [`crate::domain::error::Reason::JsonInvalid`].
pub fn tool_result(field: &str, result: Option<v1::ToolResult>) -> Result<ToolResult> {
    let Some(v1::ToolResult { content, is_error }) = result else {
        return Err(Error::argument(field, "is required"));
    };
    let content = match content {
        Some(v1::tool_result::Content::Text(text)) => ResultContent::Text(text),
        Some(v1::tool_result::Content::Blocks(v1::Blocks { blocks: list })) => {
            ResultContent::Blocks(blocks(&format!("{field}.blocks.blocks"), list)?)
        }
        Some(v1::tool_result::Content::ValueJson(text)) => {
            json(&format!("{field}.value_json"), &text)?;
            ResultContent::Json(text)
        }
        None => {
            return Err(Error::argument(
                field,
                "must have text, blocks or value_json",
            ));
        }
    };
    Ok(ToolResult { content, is_error })
}

/// A tool result on the wire.
#[must_use]
pub fn outward_result(result: ToolResult) -> v1::ToolResult {
    let ToolResult { content, is_error } = result;
    let content = match content {
        ResultContent::Text(text) => v1::tool_result::Content::Text(text),
        ResultContent::Blocks(blocks) => v1::tool_result::Content::Blocks(outward_blocks(blocks)),
        ResultContent::Json(text) => v1::tool_result::Content::ValueJson(text),
    };
    v1::ToolResult {
        content: Some(content),
        is_error,
    }
}

/// A lease on the wire, with its token.
#[must_use]
pub fn lease(grant: &LeaseGrant, made: Revision, caller: &Caller, sealer: &Sealer) -> v1::Lease {
    v1::Lease {
        thread: Some(thread_ref(&grant.thread)),
        run_id: grant.run.to_string(),
        fencing_token: sealer.seal_token(&caller.tenant, &grant.thread, grant.token.revision(made)),
        consumer_id: grant.consumer.to_string(),
        acquire_time: Some(time(grant.acquired_at)),
        expire_time: Some(time(grant.expires_at)),
        ttl: Some(duration(grant.ttl)),
    }
}

/// A thread on the wire. Its token is for the holder only.
#[must_use]
pub fn thread(summary: &ThreadSummary) -> v1::Thread {
    let thread = &summary.thread;
    v1::Thread {
        thread: Some(thread_ref(&thread.key)),
        session: Some(session_ref(&thread.session)),
        run_id: thread.run.map(|run| run.to_string()).unwrap_or_default(),
        lease: thread.lease.as_ref().map(|lease| v1::LeaseInfo {
            run_id: lease.run.to_string(),
            consumer_id: lease.consumer.to_string(),
            acquire_time: Some(time(lease.acquired_at)),
            expire_time: Some(time(lease.expires_at)),
        }),
        head_checkpoint_id: thread.head.map(|head| head.to_string()).unwrap_or_default(),
        head_spent: thread.head_spent,
        open_interrupt_ids: summary.pending.iter().map(ToString::to_string).collect(),
        open_interrupt_count: count(summary.pending.len()),
        unacknowledged_count: count(summary.unacknowledged),
        create_time: Some(time(thread.created_at)),
        update_time: Some(time(thread.updated_at)),
        revision: summary.revision.get(),
    }
}

/// A checkpoint on the wire, without its contents.
#[must_use]
pub fn checkpoint(summary: &CheckpointSummary) -> v1::Checkpoint {
    let checkpoint = &summary.checkpoint;
    let (_, message_count) = view_of(checkpoint, View::Full);
    v1::Checkpoint {
        thread: Some(thread_ref(&checkpoint.thread)),
        checkpoint_id: checkpoint.id.to_string(),
        parent_id: checkpoint
            .parent
            .map(|parent| parent.to_string())
            .unwrap_or_default(),
        kind: match checkpoint.kind {
            CheckpointKind::Saved => v1::checkpoint::Kind::Saved,
            CheckpointKind::Suspended => v1::checkpoint::Kind::Suspended,
            CheckpointKind::Paused => v1::checkpoint::Kind::Paused,
        }
        .into(),
        session: Some(session_ref(&summary.session)),
        run_id: checkpoint
            .run
            .map(|run| run.to_string())
            .unwrap_or_default(),
        message_count: count(message_count),
        cut: Some(v1::Cut {
            matched: checkpoint.cut.is_some(),
            index: count(checkpoint.cut.unwrap_or(message_count)),
        }),
        interrupt_ids: checkpoint
            .pending
            .iter()
            .map(|call| call.interrupt.to_string())
            .collect(),
        payload_type: checkpoint.payload_type.clone(),
        payload_size: i64::try_from(summary.payload_size).unwrap_or(i64::MAX),
        format_version: checkpoint.format_version,
        spent: summary.spent,
        spend_time: None,
        create_time: Some(time(checkpoint.created_at)),
        revision: summary.revision.get(),
    }
}

/// A call that waits, on the wire.
#[must_use]
pub fn pending_call(view: PendingView, caller: &Caller, sealer: &Sealer) -> v1::PendingCall {
    let PendingView {
        call,
        action_digest,
        execution_key,
        standing,
        interrupt,
        interrupt_revision,
        result,
    } = view;
    let sealed = interrupt::outward(&interrupt, interrupt_revision, caller, sealer);
    let state = match standing {
        Standing::Waiting => v1::CallState::Waiting,
        Standing::Ready => v1::CallState::Ready,
        Standing::Started => v1::CallState::Started,
        Standing::Done => v1::CallState::Done,
        Standing::Refused => v1::CallState::Refused,
        Standing::Answered => v1::CallState::Answered,
        Standing::InDoubt => v1::CallState::InDoubt,
    };
    let decided_args_json = match &sealed.resolution {
        Some(decision) if decision.kind() == v1::decision::Kind::Edit => decision.args_json.clone(),
        Some(decision) if decision.kind() == v1::decision::Kind::Approve => sealed
            .action
            .as_ref()
            .and_then(|action| action.args_json.clone()),
        Some(_) | None => None,
    };
    v1::PendingCall {
        tool_call_id: call.tool_call_id,
        tool_name: call.tool,
        args_json: call.args_json,
        ordinal: count(call.ordinal),
        action_digest,
        state: state.into(),
        interrupt_id: call.interrupt.to_string(),
        decision: sealed.resolution,
        decided_args_json,
        execution_key,
        result: result.map(outward_result),
    }
}

/// A gated call on the wire.
#[must_use]
pub fn call(call: Call) -> v1::PendingCall {
    let state = match call.state {
        CallState::Started => v1::CallState::Started,
        CallState::Finished => v1::CallState::Done,
        CallState::InDoubt => v1::CallState::InDoubt,
        CallState::Retry => v1::CallState::Ready,
    };
    v1::PendingCall {
        tool_call_id: call.identity.tool_call_id,
        tool_name: call.tool,
        args_json: call.args_json,
        ordinal: count(call.identity.ordinal),
        action_digest: call.identity.action_digest,
        state: state.into(),
        interrupt_id: call.decided_by.map(|id| id.to_string()).unwrap_or_default(),
        decision: None,
        decided_args_json: None,
        execution_key: call.execution_key,
        result: call.result.map(outward_result),
    }
}

/// The answer of a gate on the wire.
#[must_use]
pub fn gated(gated: Gated) -> v1::gate_tool_call_response::Outcome {
    use v1::gate_tool_call_response as wire;

    match gated {
        Gated::Proceed {
            args_json,
            execution_key,
            ..
        } => wire::Outcome::Proceed(wire::Proceed {
            args_json: args_json.unwrap_or_else(|| "{}".to_owned()),
            execution_key,
        }),
        Gated::Done { result, .. } => wire::Outcome::Done(wire::Done {
            result: Some(outward_result(result)),
        }),
        Gated::Respond { answer, .. } => wire::Outcome::Respond(wire::Respond {
            response: match answer {
                crate::domain::interrupt::Answer::Respond { value_json } => {
                    Some(wire::respond::Response::ValueJson(value_json))
                }
                crate::domain::interrupt::Answer::Choose { choice_id } => {
                    Some(wire::respond::Response::ChoiceId(choice_id))
                }
                crate::domain::interrupt::Answer::Approve { .. }
                | crate::domain::interrupt::Answer::Edit { .. }
                | crate::domain::interrupt::Answer::Reject { .. }
                | crate::domain::interrupt::Answer::Skip
                | crate::domain::interrupt::Answer::Suspend => None,
            },
        }),
        Gated::Reject {
            feedback, cause, ..
        } => wire::Outcome::Reject(wire::Reject {
            feedback,
            cause: match cause {
                RejectCause::Rejected => wire::reject::Cause::Rejected,
                RejectCause::Skipped => wire::reject::Cause::Skipped,
                RejectCause::Expired => wire::reject::Cause::Expired,
                RejectCause::Cancelled => wire::reject::Cause::Cancelled,
                RejectCause::Forbidden => wire::reject::Cause::Forbidden,
            }
            .into(),
        }),
        Gated::Interrupt {
            action,
            allowed,
            policy,
            asked,
        } => wire::Outcome::Interrupt(wire::NeedsDecision {
            action: Some(interrupt::outward_action(*action)),
            allowed_decisions: allowed
                .into_iter()
                .map(interrupt::decision_kind)
                .map(i32::from)
                .collect(),
            policy: Some(interrupt::outward_policy(policy)),
            interrupt_id: asked.map(|id| id.to_string()).unwrap_or_default(),
            previous_action: None,
        }),
        Gated::InDoubt {
            interrupt,
            execution_key,
        } => wire::Outcome::InDoubt(wire::InDoubt {
            interrupt_id: interrupt.map(|id| id.to_string()).unwrap_or_default(),
            execution_key,
        }),
    }
}

/// The tool rules in a field.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`].
pub fn tool_rules(field: &str, rules: Vec<v1::ToolRule>) -> Result<Vec<ToolRule>> {
    rules
        .into_iter()
        .enumerate()
        .map(|(at, rule)| {
            let v1::ToolRule {
                tool_name,
                mode,
                allowed_decisions,
                policy,
                agent_may_decide,
            } = rule;
            let at = |name: &str| format!("{field}[{at}].{name}");
            Ok(ToolRule {
                tool: tool_name,
                mode: match v1::tool_rule::Mode::try_from(mode) {
                    Ok(v1::tool_rule::Mode::Free) => ToolMode::Free,
                    Ok(v1::tool_rule::Mode::Hold) => ToolMode::Hold,
                    Ok(v1::tool_rule::Mode::Forbid) => ToolMode::Forbid,
                    Ok(v1::tool_rule::Mode::Unspecified) | Err(_) => {
                        return Err(Error::argument(at("mode"), "must be FREE, HOLD or FORBID"));
                    }
                },
                allowed: interrupt::inward_decision_kinds(
                    &at("allowed_decisions"),
                    &allowed_decisions,
                )?,
                policy: interrupt::inward_policy(&at("policy"), policy)?,
                agent_may_decide,
            })
        })
        .collect()
}

/// A tool rule on the wire.
#[must_use]
pub fn outward_rules(rules: Option<ToolRules>) -> Vec<v1::ToolRule> {
    let rules = rules.map(|rules| rules.rules).unwrap_or_default();
    rules
        .into_iter()
        .map(|rule| v1::ToolRule {
            tool_name: rule.tool,
            mode: match rule.mode {
                ToolMode::Free => v1::tool_rule::Mode::Free,
                ToolMode::Hold => v1::tool_rule::Mode::Hold,
                ToolMode::Forbid => v1::tool_rule::Mode::Forbid,
            }
            .into(),
            allowed_decisions: rule
                .allowed
                .into_iter()
                .map(interrupt::decision_kind)
                .map(i32::from)
                .collect(),
            policy: Some(interrupt::outward_policy(rule.policy)),
            agent_may_decide: rule.agent_may_decide,
        })
        .collect()
}
