"""The whole story with asyncio, against the real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import Tenant

import adjourn
import adjourn.aio

CALL = {"id": "call-1", "name": "pay", "args": {"amount": 12}}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "pay"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "pay", "arguments": '{"amount":12}'},
            }
        ],
    },
]


def test_suspend_decide_and_resume(tenant: Tenant) -> None:
    target = tenant.server.target
    agent_key, people_key = tenant.key("agent", "agent"), tenant.key("ada", "reviewer")

    async def person() -> None:
        async with adjourn.aio.connect(target, key=people_key) as client:
            async for event in client.interrupts.watch(states=["pending"]):
                if event.item is not None:
                    await client.interrupts.decide(event.item, edit={"amount": 10})
                    return

    async def agent() -> None:
        async with adjourn.aio.connect(target, key=agent_key) as client:
            async with await client.thread("t").acquire(ttl=5) as run:
                gate = await run.gate(CALL, hold=True)
                (made,) = await run.suspend(
                    messages=TURN, pending=gate, state={"step": 1}, payload=b"\x00\xff",
                    payload_type="application/octet-stream",
                )
            decided = await client.interrupts.await_decision(made.interrupt_id, timeout=30)
            assert decided.resolution.actor.principal == "ada"
            async with await client.thread("t").resume() as run:
                (pending,) = run.pending
                assert (pending.decided, pending.args) == ("edit", {"amount": 10})
                assert (run.state, run.payload) == ({"step": 1}, b"\x00\xff")
                assert [adjourn.to_openai(one) for one in run.messages] == TURN
                gate = await run.gate(pending.call)
                assert (gate.kind, gate.args) == ("proceed", {"amount": 10})
                assert gate.execution_key == pending.execution_key
                await run.finish(gate, {"paid": 10})
                again = await run.gate(pending.call)
                assert (again.kind, again.result) == ("done", {"paid": 10})
                await run.commit(
                    [{"role": "tool", "tool_call_id": "call-1", "content": "paid 10"}],
                    state={"step": 2}, final_text="done",
                )
            loaded = await client.sessions.load("t")
            assert loaded.session.message_count == 4
            kinds = [entry.rev async for entry in client.timeline.list("t")]
            assert kinds == [1, 2, 3, 4]
            with pytest.raises(adjourn.CheckpointSpent):
                await client.thread("t").resume()

    async def both() -> None:
        await asyncio.gather(person(), agent())

    asyncio.run(asyncio.wait_for(both(), 60))


def test_an_idle_run_keeps_its_lease(tenant: Tenant) -> None:
    key = tenant.key("agent", "agent")

    async def main() -> None:
        async with (
            adjourn.aio.connect(tenant.server.target, key=key) as one,
            adjourn.aio.connect(tenant.server.target, key=key) as other,
        ):
            async with await one.thread("idle").acquire(ttl=5) as run:
                await asyncio.sleep(7)
                assert run.lost is None
                with pytest.raises(adjourn.ThreadLeased):
                    await other.thread("idle").acquire()
                await run.append([{"role": "user", "content": "still mine"}])
            async with await other.thread("idle").acquire() as run:
                await run.commit([{"role": "user", "content": "now mine"}])

    asyncio.run(main())
