"""The first lines that a reader tries have to work as they stand."""

from __future__ import annotations

import pathlib
import re
import threading
from typing import Any

from conftest import Tenant

import adjourn

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"seats":2}'}}
MESSAGES = [
    {"role": "user", "content": "two seats"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]


def blocks() -> list[str]:
    """The Python in the readme."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def with_key(code: str, target: str, key: str) -> str:
    """The code, with an address and a key in the place of the readme's."""
    code, count = re.subn(r"connect\([^)]*\)", f"connect({target!r}, key={key!r})", code)
    assert count == 1
    return code


def test_the_lines_of_the_readme_run(tenant: Tenant) -> None:
    agent, person, *_ = blocks()
    suspending, resuming = agent.rsplit("\n\n", 1)
    names: dict[str, Any] = {
        "call": CALL,
        "messages": MESSAGES,
        "act": lambda gate: f"{gate.kind} {gate.args}",
    }
    target = tenant.server.target
    exec(with_key(suspending, target, tenant.key("agent", "agent")), names)

    with tenant.connect("viewer", "viewer") as viewer:
        (made,) = viewer.interrupts.list()
        code = with_key(person, target, tenant.key("ada", "reviewer"))
        threading.Thread(target=exec, args=(code, {"adjourn": adjourn}), daemon=True).start()
        viewer.interrupts.await_decision(made.interrupt_id, timeout=30)
        exec(resuming, names)
        last = list(viewer.sessions.messages("trip-7"))[-1]
    assert last.text == "proceed {'seats': 2}"
