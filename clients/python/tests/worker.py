"""An agent or a reviewer in a process of its own, told what to do line by line.

It plays recorded conversations: where the recording has a tool call, it asks
the gate, and where the tool changes money or bookings, it asks to hold it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import adjourn
from adjourn.messages import from_result, to_openai

HELD = (
    "book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages",
    "update_reservation_flights", "update_reservation_passengers",
)

Messages = list[dict[str, Any]]


def call_at(messages: Messages, index: int) -> dict[str, Any] | None:
    """The tool call that a message issues. The recordings issue one at a time."""
    calls = messages[index].get("tool_calls")
    return calls[0] if calls else None


def ordinal_at(messages: Messages, index: int) -> int:
    """How often the call came before: ids recur in real conversations."""
    def same(one: int) -> bool:
        return call_at(messages, one) == call_at(messages, index)

    return sum(same(one) for one in range(index))


def run_tool(gate: adjourn.Gate, recorded: str, issued: Any) -> str:
    """The recorded result, or what a tool says that got other arguments."""
    if gate.args == issued:
        return recorded
    return json.dumps({"ran_with": gate.args})


def answer_call(run: adjourn.Run, gate: adjourn.Gate, messages: Messages, index: int) -> Any:
    """The tool message after a call that the gate has answered."""
    result = messages[index + 1]
    if gate.kind == "proceed":
        call = call_at(messages, index)
        assert call is not None
        issued = json.loads(call["function"]["arguments"])
        content = run_tool(gate, result["content"], issued)
        run.finish(gate, content)
    elif gate.kind == "done":
        content = gate.result
    elif gate.kind == "reject":
        content = gate.feedback
    else:
        raise RuntimeError(f"the gate says {gate.kind}")
    return {**result, "content": content}


def play(run: adjourn.Run, messages: Messages, index: int, said: Messages) -> dict[str, Any]:
    """Goes on from `index`, until a call is held or the conversation is over."""
    while index < len(messages):
        said.append(messages[index])
        call = call_at(messages, index)
        if call is not None:
            gate = run.gate(
                call,
                hold=call["function"]["name"] in HELD,
                ordinal=ordinal_at(messages, index),
            )
            if gate.kind == "interrupt":
                made = run.suspend(messages=said, pending=gate)
                return {"interrupt": made[0].interrupt_id, "index": index, "run": run.run_id}
            said.append(answer_call(run, gate, messages, index))
            index += 1
        index += 1
    first = next(one["content"] for one in messages if one["role"] == "user")
    run.commit(said, input_text=first)
    return {"done": True, "run": run.run_id}


class Worker:
    """What the process can be told."""

    def __init__(self) -> None:
        self.client = adjourn.connect(sys.argv[1], key=sys.argv[2], retries=30)
        self.run: adjourn.Run | None = None
        self.gated: adjourn.Gate | None = None

    def start(self, thread: str, messages: Messages) -> dict[str, Any]:
        """Plays a conversation from its beginning."""
        with self.client.thread(thread).acquire(must_not_exist=True) as run:
            return play(run, messages, 0, [])

    def resume(self, thread: str, messages: Messages, index: int) -> dict[str, Any]:
        """Takes over at the call that was held, and plays on."""
        with self.client.thread(thread).resume() as run:
            (pending,) = run.pending
            last = to_openai(run.messages[-1])
            assert last["tool_calls"][0]["id"] == pending.call.id
            gate = run.gate(pending.call)
            key = pending.execution_key
            assert gate.kind == "reject" or gate.execution_key == key != "", (gate, key)
            said = [answer_call(run, gate, messages, index)]
            return {"gate": gate.kind, **play(run, messages, index + 2, said)}

    def decide(self, interrupt: str, **how: Any) -> dict[str, Any]:
        """Decides."""
        seen = self.client.interrupts.get(interrupt)
        answer = self.client.interrupts.decide(seen, **how)
        return {"actor": answer.decision.actor.principal}

    def acquire(self, thread: str, ttl: float) -> dict[str, Any]:
        """Takes a lease and keeps it."""
        self.run = self.client.thread(thread).acquire(ttl=ttl)
        return {"token": self.run.token, "run": self.run.run_id}

    def take(self, thread: str, ttl: float | None = None) -> dict[str, Any]:
        """Resumes and keeps the lease."""
        self.run = self.client.thread(thread).resume(ttl=ttl)
        return {
            "token": self.run.token,
            "run": self.run.run_id,
            "pending": [
                {"key": one.execution_key, "state": one.state, "args": one.args}
                for one in self.run.pending
            ],
        }

    def gate(self) -> dict[str, Any]:
        """Asks the gate about the call that the run took over."""
        assert self.run is not None
        self.gated = self.run.gate(self.run.pending[0].call)
        out: dict[str, Any] = {"kind": self.gated.kind}
        if self.gated.kind in ("proceed", "in_doubt"):
            out["key"] = self.gated.execution_key
        if self.gated.kind == "in_doubt":
            out["interrupt"] = self.gated.interrupt_id
        if self.gated.kind == "done":
            out["result"] = from_result(self.gated.answer.done.result)
        return out

    def finish(self, result: str) -> dict[str, Any]:
        """Records the result of the call and ends the run."""
        assert self.run is not None and self.gated is not None
        self.run.finish(self.gated, result)
        return {}

    def commit(self, messages: Messages) -> dict[str, Any]:
        """Ends the run."""
        assert self.run is not None
        self.run.commit(messages)
        return {}


def main() -> None:
    """Serves one command a line."""
    worker = Worker()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = getattr(worker, name)(**command)
        except adjourn.AdjournError as error:
            answer = {"error": error.reason, "message": str(error), "metadata": error.metadata}
        except Exception as error:  # The test that told it has to know.
            answer = {"error": type(error).__name__, "message": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
