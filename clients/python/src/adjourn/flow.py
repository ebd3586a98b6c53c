"""What a run hands out: answers of the gate, and calls that a checkpoint waits with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from adjourn.build import DECISION_NAMES, Call
from adjourn.messages import from_result, loads
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import interrupt_service_pb2 as interrupts

_STATES = {
    checkpoints.CALL_STATE_WAITING: "waiting",
    checkpoints.CALL_STATE_READY: "ready",
    checkpoints.CALL_STATE_STARTED: "started",
    checkpoints.CALL_STATE_DONE: "done",
    checkpoints.CALL_STATE_REFUSED: "refused",
    checkpoints.CALL_STATE_ANSWERED: "answered",
    checkpoints.CALL_STATE_IN_DOUBT: "in_doubt",
}
_CAUSES = {
    checkpoints.GateToolCallResponse.Reject.CAUSE_REJECTED: "rejected",
    checkpoints.GateToolCallResponse.Reject.CAUSE_SKIPPED: "skipped",
    checkpoints.GateToolCallResponse.Reject.CAUSE_EXPIRED: "expired",
    checkpoints.GateToolCallResponse.Reject.CAUSE_CANCELLED: "cancelled",
    checkpoints.GateToolCallResponse.Reject.CAUSE_FORBIDDEN: "forbidden",
}

GateKind = Literal["proceed", "done", "respond", "reject", "interrupt", "in_doubt"]


@dataclass(frozen=True)
class Gate:
    """The answer of the gate: what to do with a call.

    `proceed`: run it with `args`, hand `execution_key` to its side effect, then
    `run.finish(gate, result)`. `done`: it ran before, use `result`. `respond`: a
    person gave `value` (or `choice_id`) in its place. `reject`: tell the model
    `feedback`. `interrupt`: suspend with it. `in_doubt`: nobody knows whether it
    ran; a reviewer has to say.
    """

    call: Call
    answer: checkpoints.GateToolCallResponse

    @property
    def kind(self) -> GateKind:
        """What to do."""
        kind = self.answer.WhichOneof("outcome")
        if kind is None:
            raise ValueError("the gate gave an answer that this client does not know")
        return kind

    @property
    def args_json(self) -> str:
        """The arguments to run with, as JSON text."""
        return self.answer.proceed.args_json or "{}"

    @property
    def args(self) -> Any:
        """The arguments to run with, after an edit."""
        return loads(self.args_json)

    @property
    def execution_key(self) -> str:
        """The idempotency key of the side effect: one for one approved call,
        whichever process runs it."""
        if self.kind == "in_doubt":
            return self.answer.in_doubt.execution_key
        return self.answer.proceed.execution_key

    @property
    def result(self) -> Any:
        """With `done`: the result."""
        return from_result(self.answer.done.result)

    @property
    def value(self) -> Any:
        """With `respond`: the answer."""
        text = self.answer.respond.value_json
        return loads(text) if text else None

    @property
    def choice_id(self) -> str:
        """With `respond`: the choice."""
        return self.answer.respond.choice_id

    @property
    def feedback(self) -> str:
        """With `reject`: what to tell the model."""
        return self.answer.reject.feedback

    @property
    def cause(self) -> str:
        """With `reject`: rejected, skipped, expired, cancelled or forbidden."""
        return _CAUSES.get(self.answer.reject.cause, "")

    @property
    def interrupt_id(self) -> str:
        """With `interrupt` and `in_doubt`: the interrupt that asks already."""
        if self.kind == "in_doubt":
            return self.answer.in_doubt.interrupt_id
        return self.answer.interrupt.interrupt_id


@dataclass(frozen=True)
class Pending:
    """A call that a checkpoint waited with, and what came of it."""

    wire: checkpoints.PendingCall

    @property
    def call(self) -> Call:
        """The call, as the model issued it. Pass it to `run.gate`."""
        args = self.wire.args_json if self.wire.HasField("args_json") else None
        return Call(self.wire.tool_call_id, self.wire.tool_name, args, self.wire.ordinal)

    @property
    def name(self) -> str:
        """The tool."""
        return self.wire.tool_name

    @property
    def state(self) -> str:
        """Where it stands, such as `ready`, `refused` or `in_doubt`."""
        return _STATES.get(self.wire.state, "")

    @property
    def args(self) -> Any:
        """The arguments to run with: the edited ones, else the model's."""
        if self.wire.HasField("decided_args_json"):
            return loads(self.wire.decided_args_json)
        return loads(self.wire.args_json or "{}")

    @property
    def interrupt_id(self) -> str:
        """The interrupt about it."""
        return self.wire.interrupt_id

    @property
    def execution_key(self) -> str:
        """The idempotency key of its side effect. Empty if it may not run."""
        return self.wire.execution_key

    @property
    def decision(self) -> interrupts.Decision | None:
        """The decision on it."""
        return self.wire.decision if self.wire.HasField("decision") else None

    @property
    def decided(self) -> str:
        """The kind of the decision, such as `approve`. Empty if there is none."""
        return DECISION_NAMES.get(self.wire.decision.kind, "")
