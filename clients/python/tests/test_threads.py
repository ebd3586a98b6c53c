"""One worker at a time, and what happens to the calls of one that died."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Tenant
from processes import Process

import adjourn

CALL = {"id": "call-1", "name": "pay", "args": {"amount": 9007199254740993}}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "pay it"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "pay", "arguments": '{"amount":9007199254740993}'},
            }
        ],
    },
]
RESULT = {"role": "tool", "tool_call_id": "call-1", "content": "paid"}

Start = Callable[..., Process]


@pytest.fixture
def start(tenant: Tenant) -> Iterator[Start]:
    """Starts workers, and ends them after the test."""
    made: list[Process] = []

    def start(principal: str, *roles: str) -> Process:
        made.append(tenant.process(principal, *roles))
        return made[-1]

    yield start
    for process in made:
        process.kill()


def suspended(tenant: Tenant, thread: str) -> adjourn.v1.interrupt_service_pb2.Interrupt:
    """A thread that waits for a person."""
    with tenant.connect("starter", "agent") as client, client.thread(thread).acquire() as run:
        gate = run.gate(CALL, hold=True)
        assert gate.kind == "interrupt"
        (made,) = run.suspend(messages=TURN, pending=gate)
        return made


def approved(tenant: Tenant, thread: str) -> str:
    """A thread whose call a person has approved."""
    made = suspended(tenant, thread)
    with tenant.connect("ada", "reviewer") as people:
        people.interrupts.decide(made, approve=True)
    return made.interrupt_id


def test_of_eight_processes_that_resume_at_once_one_wins(tenant: Tenant, start: Start) -> None:
    approved(tenant, "race")
    workers = [start("agent", "agent") for _ in range(8)]
    for worker in workers:
        worker.tell("take", thread="race")
    answers = [worker.answer() for worker in workers]
    winners = [one for one in answers if "token" in one]
    losers = [one for one in answers if "error" in one]
    assert len(winners) == 1
    assert [one["error"] for one in losers] == ["THREAD_LEASED"] * 7
    assert all(one["metadata"]["outcome"] == "NOT_APPLIED" for one in losers)
    with tenant.connect("viewer", "viewer") as client:
        kinds = [entry.kind for entry in client.timeline.list("race")]
    assert len(kinds) == 3, "interrupt, decision, and one resume"


def take_over(worker: Process, thread: str) -> dict[str, Any]:
    """Resumes as soon as the lease of a dead worker has expired."""
    end = time.monotonic() + 20
    while True:
        answer = worker.ask("take", thread=thread)
        if answer.get("error") != "THREAD_LEASED" or time.monotonic() > end:
            assert "error" not in answer, answer
            return answer
        time.sleep(0.2)


def test_a_worker_that_dies_before_the_tool_started_is_replaced(
    tenant: Tenant, start: Start
) -> None:
    approved(tenant, "early")
    first, second = start("agent", "agent"), start("agent", "agent")
    taken = first.do("take", thread="early", ttl=5)
    first.kill()
    again = take_over(second, "early")
    assert again["token"] != taken["token"]
    assert again["run"] == taken["run"]
    assert again["pending"] == taken["pending"]
    key = taken["pending"][0]["key"]
    assert key
    with tenant.connect("agent", "agent") as late, pytest.raises(adjourn.Fenced):
        late.sessions.append("early", [{"role": "user", "content": "x"}], token=taken["token"])
    assert second.do("gate") == {"kind": "proceed", "key": key}
    second.do("finish", result="paid")
    second.do("commit", messages=[RESULT])
    with tenant.connect("viewer", "viewer") as client:
        history = [adjourn.to_openai(one) for one in client.sessions.messages("early")]
    assert history == [*TURN, RESULT]


def test_a_call_whose_worker_died_is_in_doubt_until_a_reviewer_says_so(
    tenant: Tenant, start: Start
) -> None:
    approved(tenant, "late")
    first, second = start("agent", "agent"), start("agent", "agent")
    first.do("take", thread="late", ttl=5)
    key = first.do("gate")["key"]
    first.kill()
    take_over(second, "late")
    doubt = second.do("gate")
    assert doubt["kind"] == "in_doubt"
    assert doubt["key"] == key
    agent = tenant.connect("agent", "agent")
    people = tenant.connect("ada", "reviewer")
    (shown,) = people.interrupts.list(in_doubt=True)
    assert shown.interrupt_id == doubt["interrupt"]
    assert shown.in_doubt_call.execution_key == key
    with pytest.raises(adjourn.PermissionDenied):
        agent.checkpoints.resolve_in_doubt(shown, comment="sure", retry=True)
    assert second.do("gate")["kind"] == "in_doubt", "still not runnable"
    people.checkpoints.resolve_in_doubt(shown, comment="no payment is there", retry=True)
    assert second.do("gate") == {"kind": "proceed", "key": key}
    second.do("finish", result="paid")
    second.do("commit", messages=[RESULT])


def test_a_reviewer_can_say_what_a_call_in_doubt_returned(tenant: Tenant, start: Start) -> None:
    approved(tenant, "done")
    first, second = start("agent", "agent"), start("agent", "agent")
    first.do("take", thread="done", ttl=5)
    first.do("gate")
    first.kill()
    take_over(second, "done")
    assert second.do("gate")["kind"] == "in_doubt"
    people = tenant.connect("ada", "reviewer")
    (shown,) = people.interrupts.list(in_doubt=True)
    people.checkpoints.resolve_in_doubt(shown, comment="it is in the books", result="paid")
    assert second.do("gate") == {"kind": "done", "result": "paid"}


def test_of_two_people_the_first_decides(tenant: Tenant, start: Start) -> None:
    made = suspended(tenant, "two")
    people = [start("ada", "reviewer"), start("bob", "reviewer")]
    people[0].tell("decide", interrupt=made.interrupt_id, approve=True)
    people[1].tell("decide", interrupt=made.interrupt_id, reject="too much")
    answers = [one.answer() for one in people]
    (won,) = [one for one in answers if "actor" in one]
    (lost,) = [one for one in answers if "error" in one]
    assert lost["error"] == "ALREADY_DECIDED", lost
    assert won["actor"] in lost["metadata"].values(), "it says who"
    with tenant.connect("viewer", "viewer") as client:
        kept = client.interrupts.get(made.interrupt_id)
    assert kept.resolution.actor.principal == won["actor"]


def test_an_agent_cannot_decide_and_a_stranger_sees_nothing(tenant: Tenant) -> None:
    made = suspended(tenant, "mine")
    with tenant.connect("starter", "agent") as agent:
        with pytest.raises(adjourn.PermissionDenied):
            agent.interrupts.decide(made, approve=True)
        with pytest.raises(adjourn.InterruptsPending):
            agent.thread("mine").resume()
    stranger = Tenant(tenant.server)
    with stranger.connect("eve", "agent", "reviewer") as eve:
        with pytest.raises(adjourn.InterruptNotFound):
            eve.interrupts.get(made.interrupt_id)
        with pytest.raises(adjourn.InterruptNotFound):
            eve.interrupts.decide(made, approve=True)
        with pytest.raises(adjourn.ThreadNotFound):
            eve.thread("mine").get()
        with pytest.raises(adjourn.SessionNotFound):
            eve.sessions.get("mine")
        assert list(eve.interrupts.list()) == []
        assert list(eve.timeline.list("mine")) == []
    with adjourn.connect(tenant.server.target) as nobody, pytest.raises(adjourn.Unauthenticated):
        nobody.interrupts.get(made.interrupt_id)


def test_leaving_a_run_without_an_end_gives_the_lease_back(tenant: Tenant) -> None:
    with tenant.connect("a", "agent") as one, tenant.connect("a", "agent") as other:
        with pytest.raises(RuntimeError), one.thread("left").acquire() as run:
            with pytest.raises(adjourn.ThreadLeased):
                other.thread("left").acquire()
            raise RuntimeError("the agent broke")
        with other.thread("left").acquire() as again:
            assert again.token != run.token
            with pytest.raises(adjourn.Fenced):
                run.append([{"role": "user", "content": "x"}])


def test_repeating_a_request_has_no_second_effect(tenant: Tenant) -> None:
    with tenant.connect("a", "agent") as client:
        message = [{"role": "user", "content": "once"}]
        request_id = "0190f5a0-0000-7000-8000-000000000001"
        first = client.sessions.append("twice", message, request_id=request_id)
        again = client.sessions.append("twice", message, request_id=request_id)
        assert first == again
        assert len(list(client.sessions.messages("twice"))) == 1
        with pytest.raises(adjourn.RequestIdReused):
            client.sessions.append("other", message, request_id=request_id)


def test_the_unix_socket_serves_the_same(tenant: Tenant) -> None:
    key = tenant.key("a", "agent")
    with adjourn.connect(tenant.server.socket, key=key) as client:
        client.sessions.append("by-socket", [{"role": "user", "content": "hi"}])
        assert client.sessions.get("by-socket").message_count == 1
