# Made from _async/flow.py by scripts/gen. Do not edit.
"""A few lines for an agent that asks before it acts.

A thread is acquired by one process at a time; the run that comes of it gates
its tool calls, suspends, and is resumed by whichever process comes next.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Union

from google.protobuf.timestamp_pb2 import Timestamp

from adjourn import _io_sync as io
from adjourn import build
from adjourn._sync.resources import PAGE, Checkpoints, Sessions
from adjourn._sync.rpc import Rpc
from adjourn.build import Call, CallLike, to_call
from adjourn.errors import AdjournError, Fenced, LeaseLost, is_worth_retrying
from adjourn.flow import Gate, Pending
from adjourn.ids import uuid7
from adjourn.messages import MessageLike, from_state, message_list, state_update, to_result
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import common_pb2 as common
from adjourn.v1 import interrupt_service_pb2 as interrupts
from adjourn.v1 import session_service_pb2 as sessions

#: What `suspend` can ask about.
Question = Union[Gate, CallLike]


class Thread:
    """One conversation of an agent, to be advanced by one process at a time."""

    def __init__(self, rpc: Rpc, thread_id: str, agent_id: str | None = None) -> None:
        self._rpc = rpc
        self._checkpoints = Checkpoints(rpc)
        agent = rpc.settings.agent_id if agent_id is None else agent_id
        self.ref = common.ThreadRef(agent_id=agent, thread_id=thread_id)

    def get(self) -> checkpoints.Thread:
        """The thread as it is: lease, head, open interrupts."""
        return self._checkpoints.get_thread(
            self.ref.thread_id, agent_id=self.ref.agent_id
        )

    def acquire(
        self,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        ttl: float | None = None,
        wait: float | None = None,
        memory_id: str | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
        recreate: bool = False,
        request_id: str | None = None,
    ) -> Run:
        """Leases the thread for a run from its start.

        `ttl` and `wait` are in seconds: how long the lease holds without renewal
        (60), and how long to wait for a holder to let go (not at all).
        """
        user = self._rpc.settings.user_id if user_id is None else user_id
        session = None
        if session_id is not None or user is not None:
            session = common.SessionRef(
                agent_id=self.ref.agent_id,
                user_id=user,
                session_id=session_id or self.ref.thread_id,
            )
        request = checkpoints.AcquireThreadRequest(
            thread=self.ref,
            session=session,
            consumer_id=self._rpc.settings.consumer_id,
            ttl=build.duration(ttl),
            wait=build.duration(wait),
            memory_id=memory_id,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            recreate=recreate,
            request_id=request_id or uuid7(),
        )
        asked = time.monotonic()
        answer = self._rpc.unary(
            self._checkpoints.stub.AcquireThread, request, self._patience(wait)
        )
        return Run(self._rpc, self.ref, answer.thread.session, answer.lease, asked, ttl)

    def resume(
        self,
        *,
        checkpoint_id: str = "",
        view: str = "full",
        ttl: float | None = None,
        wait: float | None = None,
        overwrite: bool = False,
        allow_partial: bool = False,
        allow_replay: bool = False,
        request_id: str | None = None,
    ) -> Run:
        """Leases the thread and takes over what a suspended run left.

        One of any number of callers gets it; the others get `ThreadLeased`. With
        `view="full"` the run has the whole turn, and `pending` the calls to run;
        with `"cut"` the turn is left out and the model issues its calls again.
        """
        request = checkpoints.ResumeThreadRequest(
            thread=self.ref,
            checkpoint_id=checkpoint_id,
            consumer_id=self._rpc.settings.consumer_id,
            ttl=build.duration(ttl),
            wait=build.duration(wait),
            view=build.view(view),
            overwrite=overwrite,
            allow_partial=allow_partial,
            allow_replay=allow_replay,
            messages_page_size=PAGE,
            request_id=request_id or uuid7(),
        )
        asked = time.monotonic()
        answer = self._rpc.unary(
            self._checkpoints.stub.ResumeThread, request, self._patience(wait)
        )
        run = Run(self._rpc, self.ref, answer.checkpoint.session, answer.lease, asked, ttl)
        run.messages = list(answer.messages)
        run.state = from_state(answer.state)
        run.pending = [Pending(call) for call in answer.pending_calls]
        run.sibling_results = list(answer.sibling_results)
        run.payload = answer.payload
        run.checkpoint = answer.checkpoint
        if answer.messages_page_token:
            rest = Sessions(self._rpc).checkpoint_messages(
                self.ref.thread_id,
                answer.checkpoint.checkpoint_id,
                view=view,
                page_token=answer.messages_page_token,
                agent_id=self.ref.agent_id,
            )
            try:
                for message in rest:
                    run.messages.append(message)
            except BaseException:
                # Nobody will have the run, so nobody may keep its lease.
                run.release()
                raise
        return run

    def _patience(self, wait: float | None) -> float | None:
        timeout = self._rpc.settings.timeout
        return None if timeout is None or not wait else timeout + wait


class Run:
    """The right to advance a thread, and what was handed out with it.

    Use it in a `with` block: whoever leaves the block without `commit`,
    `suspend` or `pause` gives the lease back, and another process can go on. Till
    then the lease is renewed in the background, as long as the process lives.
    """

    def __init__(
        self,
        rpc: Rpc,
        thread: common.ThreadRef,
        session: common.SessionRef,
        lease: common.Lease,
        asked: float,
        ttl: float | None,
    ) -> None:
        self._rpc = rpc
        self._checkpoints = Checkpoints(rpc)
        self._sessions = Sessions(rpc)
        self.thread = thread
        self.session = session
        self.run_id = lease.run_id
        self.token = lease.fencing_token
        self.consumer_id = lease.consumer_id
        #: After a resume: the messages, the state, and the calls that waited.
        self.messages: list[common.Message] = []
        self.state: dict[str, Any] = {}
        self.pending: list[Pending] = []
        #: After a resume under the view "cut": results of calls of the cut turn.
        self.sibling_results: list[common.Message] = []
        self.payload = b""
        self.checkpoint: checkpoints.Checkpoint | None = None
        #: Why the lease is gone, once it is.
        self.lost: AdjournError | None = None
        self._ttl = ttl
        self._over = False
        self._left = 0.0
        self._counted_from = 0.0
        self._count(lease, asked)
        self._ticker = io.Ticker(self._tick, self._left * 2 / 3)

    def gate(
        self,
        call: CallLike,
        *,
        hold: bool = False,
        policy: interrupts.Policy | None = None,
        ordinal: int | None = None,
        request_id: str | None = None,
    ) -> Gate:
        """Asks, right before a tool runs, whether and how it may.

        Rules of an admin decide. `hold` asks for a person also where no rule
        does; `policy` asks for a stricter one.
        """
        self._check()
        wanted = to_call(call, ordinal)
        request = checkpoints.GateToolCallRequest(
            thread=self.thread,
            fencing_token=self.token,
            tool_call_id=wanted.id,
            tool_name=wanted.name,
            args_json=wanted.args_json,
            ordinal=wanted.ordinal,
            requested_policy=policy or (interrupts.Policy() if hold else None),
            request_id=request_id or uuid7(),
        )
        answer = self._rpc.unary(self._checkpoints.stub.GateToolCall, request)
        return Gate(wanted, answer)

    def finish(
        self, gate: Gate | str, result: object, *, is_error: bool = False,
        request_id: str | None = None,
    ) -> None:
        """Records what a tool returned that the gate let through."""
        key = gate if isinstance(gate, str) else gate.execution_key
        wire = common.ToolResult()
        wire.CopyFrom(to_result(result))
        wire.is_error = wire.is_error or is_error
        request = checkpoints.FinishToolCallRequest(
            thread=self.thread,
            fencing_token=self.token,
            execution_key=key,
            result=wire,
            request_id=request_id or uuid7(),
        )
        self._rpc.unary(self._checkpoints.stub.FinishToolCall, request)

    def append(self, messages: Iterable[MessageLike]) -> None:
        """Appends messages to the session, before the run ends."""
        self._sessions.append(
            self.session.session_id,
            messages,
            token=self.token,
            user_id=self._user(),
            agent_id=self.session.agent_id,
        )

    def suspend(
        self,
        *,
        pending: Question | Sequence[Question],
        messages: Iterable[MessageLike] | None = None,
        replace: Iterable[MessageLike] | None = None,
        title: str = "",
        message: str = "",
        reason: str = "",
        allowed: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        expires_in: float | None = None,
        other_calls: Sequence[CallLike] = (),
        state: Mapping[str, Any] | None = None,
        delete_keys: Sequence[str] = (),
        payload: bytes = b"",
        payload_type: str = "",
        request_id: str | None = None,
    ) -> list[interrupts.Interrupt]:
        """Ends this process's part of the run until people have decided.

        `messages` are appended to the session, with the whole turn of the calls in
        `pending`; `replace` replaces its transcript. `pending` are calls, or what
        the gate said of them. The process may exit afterwards.
        """
        questions = list(pending) if isinstance(pending, Sequence) else [pending]
        expire_time = None
        if expires_in is not None:
            later = datetime.timedelta(seconds=expires_in)
            expire_time = build.timestamp(datetime.datetime.now(datetime.timezone.utc) + later)
        specs = [
            _question(
                one, title=title, message=message, reason=reason, allowed=allowed,
                labels=labels, expire_time=expire_time,
            )
            for one in questions
        ]
        request = checkpoints.SuspendThreadRequest(
            thread=self.thread,
            append=None if messages is None else message_list(messages),
            replace=None if replace is None else message_list(replace),
            state=state_update(state, delete_keys),
            interrupts=specs,
            pending_calls=[_pending_call(to_call(call)) for call in other_calls],
            payload=payload,
            payload_type=payload_type,
            fencing_token=self.token,
            request_id=request_id or uuid7(),
        )
        answer = self._rpc.unary(self._checkpoints.stub.SuspendThread, request)
        self._end()
        self.checkpoint = answer.checkpoint
        return list(answer.interrupts)

    def pause(
        self,
        *,
        messages: Iterable[MessageLike] | None = None,
        state: Mapping[str, Any] | None = None,
        payload: bytes = b"",
        payload_type: str = "",
        request_id: str | None = None,
    ) -> checkpoints.Checkpoint:
        """Ends this process's part of the run; any process may resume it."""
        request = checkpoints.PauseThreadRequest(
            thread=self.thread,
            append=None if messages is None else message_list(messages),
            state=state_update(state),
            payload=payload,
            payload_type=payload_type,
            fencing_token=self.token,
            request_id=request_id or uuid7(),
        )
        answer = self._rpc.unary(self._checkpoints.stub.PauseThread, request)
        self._end()
        self.checkpoint = answer.checkpoint
        return answer.checkpoint

    def save(
        self,
        *,
        messages: Iterable[MessageLike] | None = None,
        state: Mapping[str, Any] | None = None,
        pending: Sequence[CallLike] = (),
        payload: bytes = b"",
        payload_type: str = "",
        request_id: str | None = None,
    ) -> checkpoints.Checkpoint:
        """Keeps a checkpoint and goes on."""
        request = checkpoints.SaveCheckpointRequest(
            thread=self.thread,
            append=None if messages is None else message_list(messages),
            state=state_update(state),
            pending_calls=[_pending_call(to_call(call)) for call in pending],
            payload=payload,
            payload_type=payload_type,
            fencing_token=self.token,
            request_id=request_id or uuid7(),
        )
        answer = self._rpc.unary(self._checkpoints.stub.SaveCheckpoint, request)
        self.checkpoint = answer.checkpoint
        return answer.checkpoint

    def commit(
        self,
        messages: Iterable[MessageLike] | None = None,
        *,
        replace: Iterable[MessageLike] | None = None,
        final_text: str | None = None,
        input_text: str | None = None,
        state: Mapping[str, Any] | None = None,
        delete_keys: Sequence[str] = (),
        withdraw: bool = False,
        outcome: str = "",
        request_id: str | None = None,
    ) -> sessions.CommitRunResponse:
        """Ends the run: messages, state and lease, in one commit."""
        answer = self._sessions.commit(
            self.session.session_id,
            thread_id=self.thread.thread_id,
            token=self.token,
            append=messages,
            replace=replace,
            final_text=final_text,
            input_text=input_text,
            state=state,
            delete_keys=delete_keys,
            withdraw=withdraw,
            outcome=outcome,
            user_id=self._user(),
            agent_id=self.session.agent_id,
            request_id=request_id,
        )
        self._end()
        return answer

    def renew(self) -> None:
        """Renews the lease now."""
        request = checkpoints.RenewLeaseRequest(
            thread=self.thread,
            fencing_token=self.token,
            ttl=build.duration(self._ttl),
            request_id=uuid7(),
        )
        asked = time.monotonic()
        answer = self._rpc.unary(
            self._checkpoints.stub.RenewLease, request, max(self._left / 3, 1.0)
        )
        self._count(answer.lease, asked)

    def release(self) -> None:
        """Gives the lease back without a commit."""
        self._end()
        request = checkpoints.ReleaseThreadRequest(
            thread=self.thread, fencing_token=self.token, request_id=uuid7()
        )
        self._rpc.unary(self._checkpoints.stub.ReleaseThread, request)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over:
            return
        try:
            self.release()
        except (Fenced, LeaseLost):
            # Somebody else has it: there is nothing to give back.
            pass
        except AdjournError:
            # It expires by itself. What went wrong inside is more to the point.
            if error is None:
                raise

    def _user(self) -> str | None:
        return self.session.user_id if self.session.HasField("user_id") else None

    def _count(self, lease: common.Lease, asked: float) -> None:
        # From when it was asked for: the answer may have been long on its way.
        self._left = lease.ttl.seconds + lease.ttl.nanos / 1e9
        self._counted_from = asked

    def _end(self) -> None:
        self._over = True
        self._ticker.stop()

    def _check(self) -> None:
        """Never starts a tool on a lease that may be gone."""
        if self.lost is not None:
            raise self.lost
        if time.monotonic() - self._counted_from > self._left * 2 / 3:
            self.renew()

    def _tick(self) -> float | None:
        """Renews in the background; the wait until the next time."""
        if self._over or self._rpc.closed:
            return None
        try:
            self.renew()
        except AdjournError as error:
            gone = time.monotonic() - self._counted_from > self._left
            if not is_worth_retrying(error) or gone:
                self.lost = error
                return None
            return 0.5
        return self._left * 2 / 3


def _question(
    given: Any,
    *,
    title: str,
    message: str,
    reason: str,
    allowed: Sequence[str],
    labels: Mapping[str, str] | None,
    expire_time: Timestamp | None,
) -> interrupts.InterruptSpec:
    kinds = build.decision_kinds(allowed)
    policy = None
    if isinstance(given, Gate):
        asked = given.answer.interrupt
        action = asked.action
        policy = asked.policy if asked.HasField("policy") else None
        kinds = kinds or list(asked.allowed_decisions)
    else:
        call = to_call(given)
        action = interrupts.Action(
            tool_name=call.name,
            tool_call_id=call.id,
            ordinal=call.ordinal,
            args_json=call.args_json,
        )
    return interrupts.InterruptSpec(
        kind=interrupts.Interrupt.KIND_APPROVAL,
        title=title or f"Run {action.tool_name}?",
        message=message,
        reason=reason or "tool_approval",
        action=action,
        allowed_decisions=kinds or build.decision_kinds(("approve", "edit", "reject")),
        labels=labels,
        policy=policy,
        expire_time=expire_time,
    )


def _pending_call(call: Call) -> checkpoints.PendingCall:
    return checkpoints.PendingCall(
        tool_call_id=call.id, tool_name=call.name, args_json=call.args_json, ordinal=call.ordinal
    )


