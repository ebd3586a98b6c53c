"""All recorded conversations, from suspension to resumption, over a real server."""

from __future__ import annotations

import json
import pathlib
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

from conftest import Tenant
from processes import Process
from server import Server
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


@dataclass
class Crew:
    """Two agents and a person, each in a process of their own."""

    agents: list[Process]
    person: Process

    @staticmethod
    def of(tenant: Tenant) -> Crew:
        agents = [tenant.process(f"agent-{n}", "agent") for n in range(2)]
        return Crew(agents, tenant.process("ada", "reviewer"))

    def kill(self) -> None:
        for process in (*self.agents, self.person):
            process.kill()


def play(
    crew: Crew, client: adjourn.Client, conversation: dict[str, Any], held: int
) -> list[str]:
    """Plays a conversation to its end; what was decided. `held` moves the mix on."""
    name, messages = conversation["id"], conversation["messages"]
    mix: dict[int, str] = {}
    step = crew.agents[0].do("start", thread=name, messages=messages)
    run = step["run"]
    while "interrupt" in step:
        call = messages[step["index"]]["tool_calls"][0]
        assert call["function"]["name"] in HELD
        how = ("approve", "edit", "reject")[(held + len(mix)) % 3]
        answers: dict[str, dict[str, Any]] = {
            "approve": {"approve": True},
            "edit": {"edit": edited(call)},
            "reject": {"reject": "not today"},
        }
        mix[step["index"]] = how
        decided = crew.person.do("decide", interrupt=step["interrupt"], **answers[how])
        assert decided == {"actor": "ada"}
        step = crew.agents[len(mix) % 2].do(
            "resume", thread=name, messages=messages, index=step["index"]
        )
        assert step["gate"] == ("reject" if how == "reject" else "proceed")
        assert step["run"] == run, "the run survives suspension and resumption"

    history = [adjourn.to_openai(one) for one in client.sessions.messages(name)]
    assert history == expected(messages, mix), name
    entries = list(client.timeline.list(name))
    assert [one.rev for one in entries] == list(range(1, len(entries) + 1))
    story = [Kind.KIND_INTERRUPT, Kind.KIND_DECISION, Kind.KIND_RESUME]
    assert [one.kind for one in entries] == story * len(mix) + [Kind.KIND_RUN], name
    deciders = {one.principal for one in entries if one.kind == Kind.KIND_DECISION}
    assert deciders <= {"ada"}
    thread = client.checkpoints.get_thread(name)
    assert not thread.open_interrupt_ids and not thread.HasField("lease")
    return list(mix.values())


class Watcher:
    """Collects the states of each interrupt, as a watch shows them."""

    def __init__(self, client: adjourn.Client) -> None:
        self.seen: dict[str, list[int]] = {}
        self._watch = client.interrupts.watch()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        for event in self._watch:
            if event.item is not None:
                self.seen.setdefault(event.key, []).append(event.item.state)

    def check(self, count: int) -> None:
        """Every interrupt was seen, pending first and resolved once."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if len(self.seen) == count and all(len(one) > 1 for one in self.seen.values()):
                break
            time.sleep(0.1)
        self._watch.close()
        self._thread.join(10)
        assert len(self.seen) == count
        for states in self.seen.values():
            assert states[0] == interrupts.Interrupt.STATE_PENDING
            assert states.count(interrupts.Interrupt.STATE_RESOLVED) >= 1
            assert states == sorted(states), "no change comes after a later one"


def test_held_calls_are_decided_by_people_and_resumed_by_other_processes(
    tenant: Tenant, conversations: list[dict[str, Any]]
) -> None:
    crew = Crew.of(tenant)
    client = tenant.connect("viewer", "viewer")
    watcher = Watcher(client)
    held = 0
    for conversation in conversations:
        held += len(play(crew, client, conversation, held))
    assert held == 58
    watcher.check(held)
    crew.kill()


def test_nothing_is_lost_while_the_server_is_killed_again_and_again(
    tmp_path: pathlib.Path, conversations: list[dict[str, Any]]
) -> None:
    tenant = Tenant(Server(tmp_path))
    for principal, role in (
        ("agent-0", "agent"), ("agent-1", "agent"), ("ada", "reviewer"), ("viewer", "viewer"),
    ):
        tenant.prepare(principal, role)
    tenant.server.start()
    crew = Crew.of(tenant)
    client = tenant.connect("viewer", "viewer", retries=30)
    watcher = Watcher(client)
    over = threading.Event()
    kills = 0

    def chaos() -> None:
        nonlocal kills
        # A fixed seed: a failure can be looked at again.
        moments = random.Random(7)
        while not over.wait(moments.uniform(0.05, 0.6)):
            tenant.server.kill()
            tenant.server.start()
            kills += 1

    killer = threading.Thread(target=chaos)
    killer.start()
    held = 0
    try:
        for conversation in conversations[:25]:
            held += len(play(crew, client, conversation, held))
    finally:
        over.set()
        killer.join(60)
    assert held >= 20 and kills >= 5
    watcher.check(held)
    crew.kill()
    tenant.server.kill()
