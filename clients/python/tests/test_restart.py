"""Watches and waits across a server that is killed and started again."""

from __future__ import annotations

import asyncio
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import Tenant
from server import Server

import adjourn
import adjourn.aio
from adjourn.v1 import interrupt_service_pb2 as interrupts

CALL = {"id": "call-1", "name": "pay", "args": {"amount": 12}}
TURN = [{"role": "user", "content": "pay"}]
PENDING = interrupts.Interrupt.STATE_PENDING
RESOLVED = interrupts.Interrupt.STATE_RESOLVED


@pytest.fixture
def own(tmp_path: pathlib.Path) -> Iterator[Tenant]:
    """A tenant of a server that the test may kill."""
    server = Server(tmp_path)
    tenant = Tenant(server)
    for role in ("agent", "reviewer", "viewer"):
        tenant.prepare(role, role)
    server.start()
    yield tenant
    server.kill()


def suspend(client: adjourn.Client, thread: str) -> interrupts.Interrupt:
    with client.thread(thread).acquire() as run:
        (made,) = run.suspend(messages=TURN, pending=run.gate(CALL, hold=True))
        return made


def test_awaiting_a_decision_survives_a_killed_server(own: Tenant) -> None:
    agent, people = own.connect("agent", "agent"), own.connect("reviewer", "reviewer")
    made = suspend(agent, "t")
    got: list[interrupts.Interrupt] = []
    waits = threading.Thread(
        target=lambda: got.append(agent.interrupts.await_decision(made.interrupt_id, timeout=60))
    )
    waits.start()

    async def too() -> interrupts.Interrupt:
        async with adjourn.aio.connect(own.server.target, key=own.key("agent", "agent")) as client:
            return await client.interrupts.await_decision(made.interrupt_id, timeout=60)

    waits_too = threading.Thread(target=lambda: got.append(asyncio.run(too())))
    waits_too.start()
    time.sleep(0.3)
    own.server.kill()
    time.sleep(0.5)
    assert not got
    own.server.start()
    people.interrupts.decide(made, approve=True)
    waits.join(30)
    waits_too.join(30)
    assert [one.state for one in got] == [RESOLVED, RESOLVED]
    with agent.thread("t").resume() as run:
        assert run.gate(run.pending[0].call).kind == "proceed"
        run.commit([{"role": "tool", "tool_call_id": "call-1", "content": "paid"}])


def test_a_watch_misses_nothing_across_kills(own: Tenant) -> None:
    agent, people = own.connect("agent", "agent"), own.connect("reviewer", "reviewer")
    viewer = own.connect("viewer", "viewer")
    made = [suspend(agent, "before")]
    watch = viewer.interrupts.watch()
    seen: list[tuple[str, str, int]] = []
    revisions: list[int] = []

    def look() -> None:
        for event in watch:
            if event.item is not None:
                seen.append((event.kind, event.key, event.item.state))
                revisions.append(event.item.revision)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    for kills in range(3):
        made.append(suspend(agent, f"t{kills}"))
        people.interrupts.decide(made[-2], approve=True)
        own.server.kill()
        own.server.start()
        # The watcher is away, or just coming back.
        made.append(suspend(agent, f"u{kills}"))
        people.interrupts.decide(made[-2], reject="no")
    wanted = [("snapshot", made[0].interrupt_id, PENDING)]
    for number, one in enumerate(made[1:]):
        wanted.append(("changed", one.interrupt_id, PENDING))
        wanted.append(("changed", made[number].interrupt_id, RESOLVED))
    end = time.monotonic() + 30
    while len(seen) < len(wanted) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    watch.close()
    watcher.join(10)
    assert seen == wanted
    assert revisions == sorted(revisions)
    # Another process goes on from where this one was.
    last = suspend(agent, "after")
    later = viewer.interrupts.watch(cursor=watch.cursor)
    event = next(later)
    assert (event.kind, event.key) == ("changed", last.interrupt_id)
    later.close()


def test_a_write_goes_through_while_the_server_restarts(own: Tenant) -> None:
    agent = own.connect("agent", "agent", retries=20)
    agent.sessions.append("s", [{"role": "user", "content": "0"}])
    stop = threading.Event()

    def restart() -> None:
        while not stop.wait(0.3):
            own.server.kill()
            own.server.start()

    restarts = threading.Thread(target=restart)
    restarts.start()
    try:
        for number in range(1, 60):
            agent.sessions.append("s", [{"role": "user", "content": str(number)}])
            time.sleep(0.02)
    finally:
        stop.set()
        restarts.join(60)
    texts = [one.text for one in agent.sessions.messages("s")]
    assert texts == [str(number) for number in range(60)], "each once, and in order"


def test_a_timeline_watch_goes_on_after_a_drain(own: Tenant) -> None:
    agent = own.connect("agent", "agent")
    watch = agent.timeline.watch("t")
    assert next(watch).kind == "synced"
    suspend(agent, "t")
    first = next(watch)
    assert first.item is not None and first.item.rev == 1
    assert own.server.stop() == 0
    own.server.start()
    agent.timeline.append("t", "after the restart", {"n": 1})
    second = next(watch)
    assert second.item is not None
    assert (second.item.rev, second.item.label) == (2, "after the restart")
    watch.close()
