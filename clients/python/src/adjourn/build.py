"""Parts of requests that several calls share."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from adjourn.messages import args_text, dumps
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import common_pb2 as common
from adjourn.v1 import interrupt_service_pb2 as interrupts

T = TypeVar("T")

#: What people may decide, by name.
DECISIONS = {
    "approve": interrupts.Decision.KIND_APPROVE,
    "edit": interrupts.Decision.KIND_EDIT,
    "reject": interrupts.Decision.KIND_REJECT,
    "respond": interrupts.Decision.KIND_RESPOND,
    "skip": interrupts.Decision.KIND_SKIP,
    "suspend": interrupts.Decision.KIND_SUSPEND,
}
DECISION_NAMES = {number: name for name, number in DECISIONS.items()}

#: States of an interrupt, by name.
STATES = {
    "pending": interrupts.Interrupt.STATE_PENDING,
    "resolved": interrupts.Interrupt.STATE_RESOLVED,
    "expired": interrupts.Interrupt.STATE_EXPIRED,
    "cancelled": interrupts.Interrupt.STATE_CANCELLED,
    "superseded": interrupts.Interrupt.STATE_SUPERSEDED,
}

#: Kinds of an interrupt, by name.
KINDS = {
    "approval": interrupts.Interrupt.KIND_APPROVAL,
    "input": interrupts.Interrupt.KIND_INPUT,
    "choice": interrupts.Interrupt.KIND_CHOICE,
    "url": interrupts.Interrupt.KIND_URL,
    "notice": interrupts.Interrupt.KIND_NOTICE,
}

#: Views of a checkpoint, by name.
VIEWS = {
    "cut": common.CHECKPOINT_VIEW_CUT,
    "full": common.CHECKPOINT_VIEW_FULL,
}


@dataclass(frozen=True)
class Call:
    """A call of a tool, as the model issued it."""

    id: str
    name: str
    args_json: str | None = None
    #: Tells calls of one run with the same id and arguments apart, from 0.
    ordinal: int = 0


#: What is accepted where a call is expected.
CallLike = Union[Call, common.ToolCall, checkpoints.PendingCall, Mapping[str, Any]]


def to_call(given: CallLike, ordinal: int | None = None) -> Call:
    """A call: ours, OpenAI's `{"id", "function": {"name", "arguments"}}`, or
    `{"id", "name", "args"}`."""
    if isinstance(given, Call):
        call = given
    elif isinstance(given, common.ToolCall):
        args = given.args_json if given.HasField("args_json") else None
        call = Call(given.id, given.name, args)
    elif isinstance(given, checkpoints.PendingCall):
        args = given.args_json if given.HasField("args_json") else None
        call = Call(given.tool_call_id, given.tool_name, args, given.ordinal)
    elif "function" in given:
        function = given["function"]
        call = Call(given["id"], function["name"], args_text(function.get("arguments")))
    else:
        call = Call(
            given["id"], given["name"], args_text(given.get("args")), given.get("ordinal", 0)
        )
    if ordinal is not None and ordinal != call.ordinal:
        call = Call(call.id, call.name, call.args_json, ordinal)
    return call


def duration(seconds: float | None) -> Duration | None:
    """A duration, or None for the server's default."""
    if seconds is None:
        return None
    whole = Duration()
    whole.FromTimedelta(datetime.timedelta(seconds=seconds))
    return whole


def timestamp(when: datetime.datetime | None) -> Timestamp | None:
    """A time, or None."""
    if when is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(when.astimezone(datetime.timezone.utc))
    return stamp


def decision_kinds(names: Iterable[str]) -> list[interrupts.Decision.Kind.ValueType]:
    """Decisions by name."""
    return [_named(DECISIONS, name, "decision") for name in names]


def answer(
    *,
    approve: bool = False,
    edit: object = None,
    reject: str | None = None,
    respond: object = None,
    choice: str | None = None,
    skip: bool = False,
    suspend: bool = False,
    grant: interrupts.Grant | None = None,
) -> interrupts.Answer:
    """An answer: exactly one of the kinds."""
    given = [
        approve, edit is not None, reject is not None, respond is not None,
        choice is not None, skip, suspend,
    ]
    if sum(given) != 1:
        raise ValueError("decide one of approve, edit, reject, respond, choice, skip, suspend")
    if approve:
        return interrupts.Answer(approve=interrupts.Approve(grant=grant))
    if edit is not None:
        return interrupts.Answer(edit=interrupts.Edit(args_json=args_text(edit) or ""))
    if reject is not None:
        return interrupts.Answer(reject=interrupts.Reject(reason=reject))
    if respond is not None:
        return interrupts.Answer(respond=interrupts.Respond(value_json=dumps(respond)))
    if choice is not None:
        return interrupts.Answer(respond=interrupts.Respond(choice_id=choice))
    if skip:
        return interrupts.Answer(skip=interrupts.Skip())
    return interrupts.Answer(suspend=interrupts.Suspend())


def filter_interrupts(
    *,
    states: Iterable[str] = (),
    kinds: Iterable[str] = (),
    agent_id: str | None = None,
    user_id: str | None = None,
    session_id: str | None = None,
    thread_id: str | None = None,
    tools: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    assignee: str = "",
    in_doubt: bool | None = None,
    correlation_id: str = "",
    group_id: str = "",
) -> interrupts.InterruptFilter:
    """Which interrupts; absent parts match all."""
    return interrupts.InterruptFilter(
        states=[_named(STATES, name, "state") for name in states],
        kinds=[_named(KINDS, name, "kind") for name in kinds],
        agent_id=agent_id,
        user_id=user_id,
        session_id=session_id,
        thread_id=thread_id,
        tool_names=tools,
        labels=labels,
        assignee=assignee,
        in_doubt=in_doubt,
        correlation_id=correlation_id,
        group_id=group_id,
    )


def view(name: str) -> common.CheckpointView.ValueType:
    """A view by name."""
    return _named(VIEWS, name, "view")


def _named(names: Mapping[str, T], name: str, what: str) -> T:
    try:
        return names[name]
    except KeyError:
        raise ValueError(f"the {what} is one of {', '.join(names)}, not {name!r}") from None
