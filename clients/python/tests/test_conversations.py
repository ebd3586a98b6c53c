"""All recorded conversations, from suspension to resumption, over a real server."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from conftest import Tenant
from worker import HELD

import adjourn
from adjourn.v1 import interrupt_service_pb2 as interrupts
from adjourn.v1 import timeline_service_pb2 as timeline

Kind = timeline.TimelineEntry.Kind


def edited(call: dict[str, Any]) -> dict[str, Any]:
    """Other arguments than the model's."""
    args: dict[str, Any] = json.loads(call["function"]["arguments"])
    return {**args, "checked_by": "a person"}


def expected(messages: list[dict[str, Any]], mix: dict[int, str]) -> list[dict[str, Any]]:
    """The history as it has to be in the end."""
    out = [dict(one) for one in messages]
    for index, how in mix.items():
        if how == "edit":
            out[index + 1]["content"] = json.dumps(
                {"ran_with": edited(messages[index]["tool_calls"][0])}
            )
        if how == "reject":
            out[index + 1]["content"] = "not today"
    return out


@pytest.fixture
def crew(tenant: Tenant) -> Any:
    workers = [tenant.process(f"agent-{n}", "agent") for n in range(2)]
    reviewer = tenant.process("ada", "reviewer")
    yield workers, reviewer
    for process in [*workers, reviewer]:
        process.kill()


def test_held_calls_are_decided_by_people_and_resumed_by_other_processes(
    tenant: Tenant, crew: Any, conversations: list[dict[str, Any]]
) -> None:
    workers, reviewer = crew
    client = tenant.connect("viewer", "viewer")
    watch = client.interrupts.watch()
    seen: dict[str, list[int]] = {}

    def look() -> None:
        for event in watch:
            if event.item is not None:
                seen.setdefault(event.key, []).append(event.item.state)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()

    held = 0
    for conversation in conversations:
        name, messages = conversation["id"], conversation["messages"]
        turn = 0
        mix: dict[int, str] = {}
        step = workers[0].do("start", thread=name, messages=messages)
        run = step["run"]
        while "interrupt" in step:
            call = messages[step["index"]]["tool_calls"][0]
            assert call["function"]["name"] in HELD
            how = ("approve", "edit", "reject")[held % 3]
            answers: dict[str, dict[str, Any]] = {
                "approve": {"approve": True},
                "edit": {"edit": edited(call)},
                "reject": {"reject": "not today"},
            }
            mix[step["index"]] = how
            assert reviewer.do("decide", interrupt=step["interrupt"], **answers[how]) == {
                "actor": "ada"
            }
            held += 1
            turn += 1
            step = workers[turn % 2].do(
                "resume", thread=name, messages=messages, index=step["index"]
            )
            assert step["gate"] == ("reject" if how == "reject" else "proceed")
            assert step["run"] == run, "the run survives suspension and resumption"
        history = [adjourn.to_openai(one) for one in client.sessions.messages(name)]
        want = expected(messages, mix)
        for index, how in mix.items():
            if how == "reject":
                assert "not today" in history[index + 1]["content"]
                want[index + 1]["content"] = history[index + 1]["content"]
        assert history == want, name

        entries = list(client.timeline.list(name))
        assert [one.rev for one in entries] == list(range(1, len(entries) + 1))
        kinds = [one.kind for one in entries]
        story = [Kind.KIND_INTERRUPT, Kind.KIND_DECISION, Kind.KIND_RESUME]
        assert kinds == story * len(mix) + [Kind.KIND_RUN], name
        deciders = {one.principal for one in entries if one.kind == Kind.KIND_DECISION}
        assert deciders <= {"ada"}
        thread = client.checkpoints.get_thread(name)
        assert not thread.open_interrupt_ids and not thread.HasField("lease")
    assert held == 58

    for _ in range(100):
        if len(seen) == held and all(len(states) > 1 for states in seen.values()):
            break
        threading.Event().wait(0.1)
    watch.close()
    assert len(seen) == held, "the watcher saw every interrupt"
    for states in seen.values():
        assert states[0] == interrupts.Interrupt.STATE_PENDING
        assert interrupts.Interrupt.STATE_RESOLVED in states
