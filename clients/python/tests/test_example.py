"""The example, as a reader would run it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from conftest import DATA, Tenant

import adjourn

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "approval_agent.py"
RECORDING = json.loads((DATA / "booking.json").read_text())["messages"]


def play(tenant: Tenant, command: str, *more: str) -> str:
    """Runs one of the three programs to its end."""
    role = "reviewer" if command == "approve" else "agent"
    options = ["--addr", tenant.server.target, "--key", tenant.key(f"{role}-1", role), *more]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), command, *options],
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("answer", ["y", "n", 'e{"reservation_id":"3RK2T9","passengers":[]}'])
def test_the_three_programs_play_the_story(tenant: Tenant, answer: str) -> None:
    assert "this process ends" in play(tenant, "agent")
    resume = subprocess.Popen(
        [
            sys.executable, str(EXAMPLE), "resume", "--timeout", "60",
            "--addr", tenant.server.target, "--key", tenant.key("agent-1", "agent"),
        ],
        stdout=subprocess.PIPE, text=True,
    )
    assert "decided" in play(tenant, "approve", "--answer", answer)
    out, _ = resume.communicate(timeout=60)
    assert resume.returncode == 0, out
    assert "the conversation is over" in out
    with tenant.connect("viewer", "viewer") as client:
        history = [adjourn.to_openai(one) for one in client.sessions.messages("booking-desk")]
    if answer == "y":
        assert history == RECORDING
    elif answer == "n":
        assert "Please do not change it." in history[11]["content"]
        assert history[:11] + history[12:] == RECORDING[:11] + RECORDING[12:]
    else:
        assert '{"reservation_id": "3RK2T9", "passengers": []}' in out


def test_the_example_runs_over_a_unix_socket_too(tenant: Tenant) -> None:
    key = tenant.key("agent-1", "agent")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "agent", "--addr", tenant.server.socket, "--key", key],
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
