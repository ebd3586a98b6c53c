"""An agent that asks a person before it changes a booking.

Three programs, each a process of its own; only the server keeps anything:

    adjourn serve                               # in another terminal

    python approval_agent.py agent              # works until the change is held, then exits
    python approval_agent.py approve            # a person decides: y, n or e(dit)
    python approval_agent.py resume             # any process goes on, exactly once

Agents and people have keys of their own, `--key` or $ADJOURN_KEY. A server on
loopback takes agents without one. The key of the person is the reviewer key that
`adjourn serve` wrote beside its data, or one made by `adjourn keys create`.

The model and the tools are played from a recorded conversation, so that the
example needs no model to run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

import adjourn

RECORDING = pathlib.Path(__file__).resolve().parents[3] / "tests" / "data" / "booking.json"
THREAD = "booking-desk"

#: The tools that a person has to approve.
HELD = {"update_reservation_passengers"}

Message = dict[str, Any]


class Model:
    """Says what it said in the recording."""

    def __init__(self) -> None:
        self.recording: list[Message] = json.loads(RECORDING.read_text())["messages"]

    def beginning(self) -> list[Message]:
        """The system prompt and the first question."""
        return self.recording[:2]

    def next(self, history: list[Message]) -> list[Message]:
        """The next turn of the model, and what the user says to it."""
        turn = self.recording[len(history)]
        said = [turn]
        for later in self.recording[len(history) + 1:]:
            if turn.get("tool_calls") or later["role"] != "user":
                break
            said.append(later)
        return said


def run_tool(model: Model, call_id: str, args: Any, execution_key: str) -> str:
    """Pretends to run a tool.

    A real one hands `execution_key` to the system that it changes, as the
    idempotency key: whichever process tries again, the change is made once.
    """
    print(f"  tool runs with {json.dumps(args)}")
    print(f"  idempotency key {execution_key}")
    for message in model.recording:
        if message.get("tool_call_id") == call_id:
            return str(message["content"])
    raise KeyError(call_id)


def act(run: adjourn.Run, gate: adjourn.Gate, model: Model) -> Message:
    """Does what the gate says, and makes the tool message for the model."""
    if gate.kind == "proceed":
        content = run_tool(model, gate.call.id, gate.args, gate.execution_key)
        run.finish(gate, content)
    elif gate.kind == "done":
        content = gate.result
    elif gate.kind == "reject":
        print(f"  rejected: {gate.feedback}")
        content = gate.feedback
    elif gate.kind == "in_doubt":
        raise SystemExit("nobody knows whether the tool ran; a reviewer has to say")
    else:
        raise SystemExit(f"unexpected answer of the gate: {gate.kind}")
    return {
        "role": "tool", "tool_call_id": gate.call.id, "name": gate.call.name, "content": content,
    }


def loop(run: adjourn.Run, model: Model, history: list[Message], new: list[Message]) -> None:
    """The agent's loop. `new` is what the server does not have yet."""
    while len(history) < len(model.recording):
        said = model.next(history)
        history += said
        new += said
        for message in said:
            print(f"{message['role']}: {message['content'] or '(calls a tool)'}")
        for call in said[0].get("tool_calls", ()):
            gate = run.gate(call, hold=call["function"]["name"] in HELD)
            if gate.kind == "interrupt":
                (made,) = run.suspend(
                    messages=new, pending=gate, title="Change the passengers of this booking?"
                )
                print(f"\nheld: {made.interrupt_id} waits for a person; this process ends")
                return
            result = act(run, gate, model)
            history.append(result)
            new.append(result)
    run.commit(new)
    print("\nthe conversation is over and kept")


def agent(client: adjourn.Client, thread: str) -> None:
    """Works until a person is needed."""
    model = Model()
    with client.thread(thread).acquire(must_not_exist=True) as run:
        beginning = model.beginning()
        print(f"user: {beginning[-1]['content']}")
        loop(run, model, list(beginning), list(beginning))


def approve(client: adjourn.Client, thread: str, answer: str | None) -> None:
    """Shows what waits, as soon as it does, and decides."""
    for event in client.interrupts.watch(states=["pending"], thread_id=thread):
        interrupt = event.item
        if interrupt is None or event.kind == "left":
            continue
        args = json.loads(interrupt.action.args_json)
        print(interrupt.title)
        print(f"{interrupt.action.tool_name} {json.dumps(args, indent=2)}")
        choice = answer or input("approve? [y/n/e] ")
        try:
            if choice.startswith("y"):
                client.interrupts.decide(interrupt, approve=True)
            elif choice.startswith("e"):
                text = input("arguments, as JSON: ") if answer is None else answer[1:]
                client.interrupts.decide(interrupt, edit=json.loads(text))
            else:
                client.interrupts.decide(interrupt, reject="Please do not change it.")
        except adjourn.AlreadyDecided as error:
            print(f"somebody was faster: {error.message}")
        else:
            print("decided")
        return


def resume(client: adjourn.Client, thread: str, timeout: float) -> None:
    """Waits for the decision and takes the work over, in whatever process this is."""
    for interrupt_id in client.thread(thread).get().open_interrupt_ids:
        print(f"waiting for a decision on {interrupt_id}")
        client.interrupts.await_decision(interrupt_id, timeout=timeout)
    model = Model()
    with client.thread(thread).resume() as run:
        history = [adjourn.to_openai(message) for message in run.messages]
        new = [act(run, run.gate(pending.call), model) for pending in run.pending]
        loop(run, model, history + new, new)
    for entry in client.timeline.list(run.session.session_id):
        kind = adjourn.v1.timeline_service_pb2.TimelineEntry.Kind.Name(entry.kind)
        print(f"{entry.rev:3} {kind.removeprefix('KIND_').lower():10} {entry.label}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("agent", "approve", "resume"))
    parser.add_argument("--addr", default=os.environ.get("ADJOURN_ADDR", "127.0.0.1:7420"))
    parser.add_argument("--key", default=os.environ.get("ADJOURN_KEY"))
    parser.add_argument("--thread", default=THREAD)
    parser.add_argument("--answer", help="approve: y, n, or e followed by JSON, without asking")
    parser.add_argument("--timeout", type=float, default=600, help="resume: seconds to wait")
    options = parser.parse_args()
    with adjourn.connect(options.addr, key=options.key) as client:
        try:
            if options.command == "agent":
                agent(client, options.thread)
            elif options.command == "approve":
                approve(client, options.thread, options.answer)
            else:
                resume(client, options.thread, options.timeout)
        except adjourn.AdjournError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
