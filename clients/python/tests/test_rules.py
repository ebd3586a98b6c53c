"""Rules of an admin, and what a run hands over, against the real server."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tenant

import adjourn
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import interrupt_service_pb2 as interrupts


def test_the_rules_of_an_admin_hold_and_forbid(tenant: Tenant) -> None:
    rules = [
        checkpoints.ToolRule(
            tool_name="refund",
            mode=checkpoints.ToolRule.MODE_HOLD,
            allowed_decisions=[interrupts.Decision.KIND_APPROVE, interrupts.Decision.KIND_REJECT],
        ),
        checkpoints.ToolRule(tool_name="drop_table", mode=checkpoints.ToolRule.MODE_FORBID),
    ]
    with tenant.connect("agent", "agent") as client, tenant.connect("root", "admin") as admin:
        with pytest.raises(adjourn.PermissionDenied):
            client.checkpoints.set_tool_rules(rules)
        admin.checkpoints.set_tool_rules(rules)
        assert len(client.checkpoints.get_tool_rules().rules) == 2
        with client.thread("ruled").acquire() as run:
            forbidden = run.gate({"id": "1", "name": "drop_table", "args": {}})
            assert (forbidden.kind, forbidden.cause) == ("reject", "forbidden")
            free = run.gate({"id": "2", "name": "look", "args": {}})
            assert free.kind == "proceed"
            run.finish(free, ["a", 1])
            held = run.gate({"id": "3", "name": "refund", "args": {}})
            assert held.kind == "interrupt"
            (made,) = run.suspend(messages=[{"role": "user", "content": "x"}], pending=held)
        assert len(made.allowed_decisions) == 2
        with tenant.connect("ada", "reviewer") as people:
            with pytest.raises(adjourn.HitlDecision):
                people.interrupts.decide(made, edit={"a": 1})
            people.interrupts.decide(made, approve=True)
        with client.thread("ruled").resume() as run:
            assert run.gate(run.pending[0].call).kind == "proceed"
            again = run.gate({"id": "2", "name": "look", "args": {}})
            assert (again.kind, again.result) == ("done", ["a", 1]), "it ran before"


def test_a_long_history_comes_back_whole(tenant: Tenant) -> None:
    said = [{"role": "user", "content": f"message {number}"} for number in range(2_500)]
    call = {"id": "c", "name": "f", "args": {}}
    with tenant.connect("agent", "agent") as client:
        with client.thread("long").acquire() as run:
            run.suspend(messages=said, pending=run.gate(call, hold=True))
        with tenant.connect("ada", "reviewer") as people:
            (made,) = people.interrupts.list(thread_id="long")
            people.interrupts.decide(made, approve=True)
        with client.thread("long").resume() as run:
            assert [adjourn.to_openai(one) for one in run.messages] == said
        assert [one.index for one in client.sessions.messages("long")] == list(range(2_500))
        newest = client.sessions.messages("long", newest_first=True, page_size=7)
        assert [one.index for one in newest] == list(range(2_499, -1, -1))


def test_two_calls_of_a_turn_wait_together(tenant: Tenant) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("first", "second")
    ]
    turn: list[dict[str, Any]] = [
        {"role": "user", "content": "both"},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    with tenant.connect("agent", "agent") as client:
        with client.thread("pair").acquire() as run:
            gates = [run.gate(call, hold=True) for call in calls]
            made = run.suspend(messages=turn, pending=gates)
            assert [one.action.tool_name for one in made] == ["first", "second"]
        with tenant.connect("ada", "reviewer") as people:
            people.interrupts.decide(made[0], approve=True)
            with pytest.raises(adjourn.InterruptsPending):
                client.thread("pair").resume()
            people.interrupts.decide(made[1], reject="not this one")
        with client.thread("pair").resume() as run:
            assert [one.decided for one in run.pending] == ["approve", "reject"]
            assert [one.state for one in run.pending] == ["ready", "refused"]
            assert [run.gate(one.call).kind for one in run.pending] == ["proceed", "reject"]


def test_a_paused_thread_goes_on_elsewhere(tenant: Tenant) -> None:
    with tenant.connect("agent", "agent") as one, tenant.connect("agent", "agent") as other:
        with one.thread("paused").acquire() as run:
            run.pause(messages=[{"role": "user", "content": "later"}], state={"n": 1})
            first = run.run_id
        with other.thread("paused").resume() as run:
            assert (run.run_id, run.state, run.pending) == (first, {"n": 1}, [])
            run.commit([{"role": "assistant", "content": "now"}], input_text="later")
        (last,) = list(other.timeline.list("paused", newest_first=True))[:1]
        assert last.label == "later"


def test_a_withdrawn_question_is_a_rejection(tenant: Tenant) -> None:
    call = {"id": "c", "name": "f", "args": {}}
    with tenant.connect("agent", "agent") as client:
        with client.thread("gone").acquire() as run:
            (made,) = run.suspend(
                messages=[{"role": "user", "content": "x"}], pending=run.gate(call, hold=True)
            )
        client.interrupts.cancel(made.interrupt_id, comment="never mind")
        with client.thread("gone").resume() as run:
            gate = run.gate(run.pending[0].call)
            assert (gate.kind, gate.cause) == ("reject", "cancelled")
