"""The client against a server made up in this process."""

from __future__ import annotations

import asyncio
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

import adjourn
import adjourn.aio
from adjourn import errors
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import checkpoint_service_pb2_grpc as checkpoints_grpc
from adjourn.v1 import common_pb2 as common
from adjourn.v1 import error_reason_pb2
from adjourn.v1 import interrupt_service_pb2 as interrupts
from adjourn.v1 import interrupt_service_pb2_grpc as interrupts_grpc
from adjourn.v1 import session_service_pb2 as sessions
from adjourn.v1 import session_service_pb2_grpc as sessions_grpc


def refuse(
    context: Any, code: grpc.StatusCode, reason: str, retry_after: int = 0, **facts: str
) -> None:
    """Answers as the server does."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain="adjourn.dev", metadata=facts)
    details = [any_pb2.Any(), any_pb2.Any()]
    details[0].Pack(info)
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.seconds = retry_after
    details[1].Pack(retry)
    if not retry_after:
        details.pop()
    status = status_pb2.Status(code=code.value[0], message="no; do otherwise", details=details)
    context.abort_with_status(rpc_status.to_status(status))


class Fake:
    """Plays a script: for each call, what to do."""

    def __init__(self) -> None:
        self.script: list[Callable[[Any, Any], Any]] = []
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        """Any call of any service."""
        return self._play

    def _play(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return self.script.pop(0)(request, context)


def serve(service: Fake, address: str) -> tuple[grpc.Server, int]:
    """Serves a fake."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    servicer: Any = service
    sessions_grpc.add_SessionServiceServicer_to_server(servicer, server)
    interrupts_grpc.add_InterruptServiceServicer_to_server(servicer, server)
    checkpoints_grpc.add_CheckpointServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    return server, port


@pytest.fixture
def fake() -> Iterator[tuple[Fake, str]]:
    service = Fake()
    server, port = serve(service, "127.0.0.1:0")
    yield service, f"127.0.0.1:{port}"
    server.stop(None)


def test_every_reason_has_a_class_of_its_own() -> None:
    names = {
        name.removeprefix("ERROR_REASON_")
        for name, number in error_reason_pb2.ErrorReason.items()
        if number
    }
    assert set(errors.BY_REASON) == names
    for kind in errors.BY_REASON.values():
        assert getattr(adjourn, kind.__name__) is kind


def test_a_refusal_is_raised_as_its_class(fake: tuple[Fake, str]) -> None:
    service, target = fake
    service.script = [
        lambda _, context: refuse(
            context, grpc.StatusCode.ABORTED, "THREAD_LEASED", 7,
            holder="w2", outcome="NOT_APPLIED",
        )
    ]
    with adjourn.connect(target) as client, pytest.raises(adjourn.ThreadLeased) as caught:
        client.thread("t").acquire()
    error = caught.value
    assert (error.reason, error.outcome, error.retry_after) == ("THREAD_LEASED", "NOT_APPLIED", 7)
    assert error.metadata["holder"] == "w2"
    assert len(service.requests) == 1, "a lease is not hammered"


def test_a_reason_of_a_newer_server_is_still_an_error(fake: tuple[Fake, str]) -> None:
    service, target = fake
    service.script = [
        lambda _, context: refuse(context, grpc.StatusCode.ABORTED, "FULL_MOON", phase="4")
    ]
    with adjourn.connect(target) as client, pytest.raises(adjourn.AdjournError) as caught:
        client.sessions.get("s")
    assert caught.value.reason == "FULL_MOON"
    assert caught.value.metadata == {"phase": "4"}


def test_unavailable_is_tried_again_with_the_same_request_id(fake: tuple[Fake, str]) -> None:
    service, target = fake

    def down(_: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "down")

    service.script = [down, down, lambda *_: sessions.AppendMessagesResponse(first_seq=3)]
    with adjourn.connect(target, key="k1") as client:
        answer = client.sessions.append("s", [{"role": "user", "content": "hi"}])
    assert answer.first_seq == 3
    ids = {request.request_id for request in service.requests}
    assert len(service.requests) == 3 and len(ids) == 1 and ids.pop()
    assert all(sent["authorization"] == "Bearer k1" for sent in service.metadata)


def test_retries_are_bounded_and_end_at_the_deadline(fake: tuple[Fake, str]) -> None:
    service, target = fake

    def down(_: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "down")

    service.script = [down] * 100
    with adjourn.connect(target, retries=2) as client:
        with pytest.raises(adjourn.TransportError) as caught:
            client.sessions.get("s")
        assert caught.value.outcome == "UNKNOWN"
        assert len(service.requests) == 3
    start = time.monotonic()
    with adjourn.connect(target, retries=99, timeout=0.5) as client:
        with pytest.raises(adjourn.AdjournError):
            client.sessions.get("s")
    assert time.monotonic() - start < 2


def test_a_list_reads_all_pages(fake: tuple[Fake, str]) -> None:
    service, target = fake
    service.script = [
        lambda *_: sessions.ListSessionsResponse(
            sessions=[sessions.Session(etag="1"), sessions.Session(etag="2")],
            next_page_token="more",
        ),
        lambda *_: sessions.ListSessionsResponse(sessions=[sessions.Session(etag="3")]),
    ]
    with adjourn.connect(target) as client:
        assert [one.etag for one in client.sessions.list()] == ["1", "2", "3"]
    assert [request.page_token for request in service.requests][-1] == "more"


def event(cursor: str, revision: int, **what: Any) -> interrupts.WatchInterruptsResponse:
    return interrupts.WatchInterruptsResponse(cursor=cursor, revision=revision, **what)


def interrupt(name: str, revision: int) -> interrupts.Interrupt:
    return interrupts.Interrupt(interrupt_id=name, revision=revision)


def watch_script(service: Fake) -> None:
    """A stream that breaks, one that says goodbye, one that repeats itself, one refused."""

    def first(_: Any, context: Any) -> Iterator[Any]:
        yield event("c1", 5, snapshot=interrupt("a", 3))
        yield event("c2", 5, synced={})
        yield event("c3", 6, changed=interrupt("a", 6))
        context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    def second(_: Any, context: Any) -> Iterator[Any]:
        yield event("c3", 6, changed=interrupt("a", 6))
        yield event("c4", 7, changed=interrupt("b", 7))
        yield event("c5", 9, progress={})
        yield event("c6", 9, goodbye={})
        # The client does not wait for the end that was announced.
        end = time.monotonic() + 5
        while context.is_active() and time.monotonic() < end:
            time.sleep(0.01)
        if context.is_active():
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "CONFLICT")

    def third(*_: Any) -> Iterator[Any]:
        yield event("c7", 10, left=interrupt("b", 10))
        yield event("c8", 11, deleted={"interrupt_id": "a"})

    def fourth(_: Any, context: Any) -> Iterator[Any]:
        refuse(context, grpc.StatusCode.OUT_OF_RANGE, "CURSOR_COMPACTED", oldest="o")
        yield from ()

    service.script = [first, second, third, fourth]


SEEN = [
    ("snapshot", "a"), ("synced", ""), ("changed", "a"), ("changed", "b"), ("left", "b"),
    ("deleted", "a"),
]


def check_watch_requests(service: Fake) -> None:
    assert service.requests[0].initial_state
    assert [one.cursor for one in service.requests[1:]] == ["c3", "c6", "c8"]
    assert all(list(one.filter.tool_names) == ["book"] for one in service.requests)


def test_a_watch_goes_on_from_its_cursor_and_repeats_nothing(fake: tuple[Fake, str]) -> None:
    service, target = fake
    watch_script(service)
    seen = []
    with adjourn.connect(target) as client:
        watch = client.interrupts.watch(tools=["book"])
        with pytest.raises(adjourn.CursorCompacted):
            for one in watch:
                seen.append((one.kind, one.key))
    assert seen == SEEN
    assert watch.cursor == "c8"
    check_watch_requests(service)


def test_the_asyncio_watch_does_the_same(fake: tuple[Fake, str]) -> None:
    service, target = fake
    watch_script(service)
    seen = []

    async def run() -> None:
        async with adjourn.aio.connect(target) as client:
            with pytest.raises(adjourn.CursorCompacted):
                async for one in client.interrupts.watch(tools=["book"]):
                    seen.append((one.kind, one.key))

    asyncio.run(run())
    assert seen == SEEN
    check_watch_requests(service)


def test_a_watch_ends_when_it_is_closed(fake: tuple[Fake, str]) -> None:
    service, target = fake

    def endless(_: Any, context: Any) -> Iterator[Any]:
        yield event("c1", 1, synced={})
        while context.is_active():
            time.sleep(0.02)

    service.script = [endless, endless]
    with adjourn.connect(target) as client:
        watch = client.interrupts.watch()
        assert next(watch).kind == "synced"
        threading.Timer(0.2, watch.close).start()
        assert list(watch) == []

    async def run() -> None:
        async with adjourn.aio.connect(target) as client:
            watch = client.interrupts.watch()
            assert (await watch.__anext__()).kind == "synced"
            asyncio.get_running_loop().call_later(0.2, watch.close)
            assert [one async for one in watch] == []

    asyncio.run(run())


def test_awaiting_a_decision_survives_broken_streams(fake: tuple[Fake, str]) -> None:
    service, target = fake
    pending = interrupts.Interrupt(interrupt_id="i", state=interrupts.Interrupt.STATE_PENDING)
    decided = interrupts.Interrupt(interrupt_id="i", state=interrupts.Interrupt.STATE_RESOLVED)

    def breaks(_: Any, context: Any) -> Iterator[Any]:
        yield interrupts.AwaitDecisionResponse(interrupt=pending)
        context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    def goodbye(*_: Any) -> Iterator[Any]:
        yield interrupts.AwaitDecisionResponse(interrupt=pending, goodbye=common.Goodbye())

    def answers(*_: Any) -> Iterator[Any]:
        yield interrupts.AwaitDecisionResponse(interrupt=pending)
        yield interrupts.AwaitDecisionResponse(interrupt=decided)

    service.script = [breaks, goodbye, answers]
    with adjourn.connect(target) as client:
        got = client.interrupts.await_decision("i", timeout=10)
    assert got.state == interrupts.Interrupt.STATE_RESOLVED


def test_awaiting_a_decision_gives_up_in_time(fake: tuple[Fake, str]) -> None:
    service, target = fake
    pending = interrupts.Interrupt(interrupt_id="i", state=interrupts.Interrupt.STATE_PENDING)

    def waits(_: Any, context: Any) -> Iterator[Any]:
        yield interrupts.AwaitDecisionResponse(interrupt=pending)
        while context.is_active():
            time.sleep(0.02)

    service.script = [waits, waits]
    with adjourn.connect(target) as client, pytest.raises(TimeoutError):
        client.interrupts.await_decision("i", timeout=0.3)

    async def run() -> None:
        async with adjourn.aio.connect(target) as client:
            with pytest.raises(TimeoutError):
                await client.interrupts.await_decision("i", timeout=0.3)

    asyncio.run(run())


def leased(seconds: int) -> checkpoints.AcquireThreadResponse:
    answer = checkpoints.AcquireThreadResponse()
    answer.lease.fencing_token = "tok"
    answer.lease.run_id = "run"
    answer.lease.ttl.seconds = seconds
    return answer


def renewed(seconds: int) -> checkpoints.RenewLeaseResponse:
    answer = checkpoints.RenewLeaseResponse()
    answer.lease.ttl.seconds = seconds
    return answer


def test_a_lease_is_renewed_at_two_thirds_and_given_back(fake: tuple[Fake, str]) -> None:
    service, target = fake
    service.script = [
        lambda *_: leased(1),
        lambda *_: renewed(60),
        lambda *_: checkpoints.ReleaseThreadResponse(released=True),
    ]
    with adjourn.connect(target) as client:
        with client.thread("t").acquire() as run:
            time.sleep(0.4)
            assert len(service.requests) == 1, "too early to renew"
            time.sleep(0.6)
            assert len(service.requests) == 2
            assert run.lost is None
    kinds = [type(one).__name__ for one in service.requests]
    assert kinds == ["AcquireThreadRequest", "RenewLeaseRequest", "ReleaseThreadRequest"]
    assert service.requests[2].fencing_token == "tok"


def test_a_run_whose_lease_is_taken_starts_no_tool(fake: tuple[Fake, str]) -> None:
    service, target = fake

    def fenced(_: Any, context: Any) -> Any:
        refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "FENCED", outcome="NOT_APPLIED")

    service.script = [lambda *_: leased(1), fenced, fenced]
    with adjourn.connect(target) as client, client.thread("t").acquire() as run:
        time.sleep(1)
        assert isinstance(run.lost, adjourn.Fenced)
        with pytest.raises(adjourn.Fenced):
            run.gate({"id": "c", "name": "pay", "args": {}})
    assert "GateToolCallRequest" not in [type(one).__name__ for one in service.requests]


def test_no_tool_starts_on_a_lease_that_may_be_gone(fake: tuple[Fake, str]) -> None:
    service, target = fake
    service.script = [
        lambda *_: leased(1),
        lambda *_: renewed(60),
        lambda *_: checkpoints.GateToolCallResponse(
            proceed=checkpoints.GateToolCallResponse.Proceed()
        ),
        lambda *_: checkpoints.ReleaseThreadResponse(),
    ]
    with adjourn.connect(target) as client, client.thread("t").acquire() as run:
        run._ticker.stop()  # As in a process that was stopped for a while.
        time.sleep(0.8)
        run.gate({"id": "c", "name": "pay", "args": {}})
    kinds = [type(one).__name__ for one in service.requests]
    assert kinds[1:3] == ["RenewLeaseRequest", "GateToolCallRequest"]


def test_a_resume_whose_messages_cannot_be_read_gives_the_lease_back(
    fake: tuple[Fake, str],
) -> None:
    service, target = fake
    resumed = checkpoints.ResumeThreadResponse(
        lease=leased(60).lease, messages_page_token="more"
    )

    def corrupt(_: Any, context: Any) -> Any:
        refuse(context, grpc.StatusCode.DATA_LOSS, "CHECKPOINT_CORRUPT")

    service.script = [
        lambda *_: resumed, corrupt, lambda *_: checkpoints.ReleaseThreadResponse()
    ]
    with adjourn.connect(target) as client, pytest.raises(adjourn.CheckpointCorrupt):
        client.thread("t").resume()
    assert type(service.requests[-1]).__name__ == "ReleaseThreadRequest"


def test_the_gate_gives_args_and_key(fake: tuple[Fake, str]) -> None:
    service, target = fake
    proceed = checkpoints.GateToolCallResponse()
    proceed.proceed.args_json = '{"n":2}'
    proceed.proceed.execution_key = "key"
    service.script = [
        lambda *_: leased(60),
        lambda *_: proceed,
        lambda *_: checkpoints.ReleaseThreadResponse(),
    ]

    async def run() -> None:
        async with adjourn.aio.connect(target) as client:
            async with await client.thread("t").acquire() as run:
                gate = await run.gate({"id": "c", "name": "pay", "args": {"n": 1}}, hold=True)
                assert (gate.kind, gate.args, gate.execution_key) == ("proceed", {"n": 2}, "key")

    asyncio.run(run())
    asked = service.requests[1]
    assert (asked.tool_name, asked.args_json) == ("pay", '{"n":1}')
    assert asked.HasField("requested_policy")


def test_unix_sockets_work(tmp_path: pathlib.Path) -> None:
    service = Fake()
    service.script = [lambda *_: sessions.GetSessionResponse()]
    server, _ = serve(service, f"unix:{tmp_path}/s")
    with adjourn.connect(f"unix:{tmp_path}/s") as client:
        client.sessions.get("s")
        options: dict[str, Any] = dict(client.settings.options())
    server.stop(None)
    assert options["grpc.default_authority"] == "localhost"


def test_a_decision_is_exactly_one_kind() -> None:
    from adjourn import build

    assert build.answer(edit={"a": 1}).edit.args_json == '{"a":1}'
    for bad in ({}, {"approve": True, "reject": "no"}):
        with pytest.raises(ValueError):
            build.answer(**bad)  # type: ignore[arg-type]
