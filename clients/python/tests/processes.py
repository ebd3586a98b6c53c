"""Processes of agents and reviewers."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
from typing import Any


class Process:
    """A worker in a process of its own."""

    def __init__(self, target: str, key: str) -> None:
        script = pathlib.Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), target, key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._read()["ready"]

    def tell(self, command: str, **arguments: Any) -> None:
        """Tells it what to do, and does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says to the last command."""
        return self._read()

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Tells it what to do. It must not fail."""
        answer = self.ask(command, **arguments)
        assert "error" not in answer, answer
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Tells it what to do, and waits."""
        self.tell(command, **arguments)
        return self.answer()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer
