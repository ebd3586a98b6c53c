"""Starts the real server, and can kill it and start it again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]


def binary() -> pathlib.Path:
    """The server to test: $ADJOURN_BIN, else the debug build."""
    return pathlib.Path(os.environ.get("ADJOURN_BIN") or ROOT / "target" / "debug" / "adjourn")


class Server:
    """A server on a directory of its own, with keys for several tenants and roles."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.socket = f"unix:{directory}/adjourn.sock"
        self.target = ""
        self._port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    def key(self, tenant: str, principal: str, *roles: str) -> str:
        """Makes a key."""
        command = [
            str(binary()), "keys", "create", "--auth-file", str(self.directory / "keys.toml"),
            "--tenant", tenant, "--principal", principal,
        ]
        for role in roles:
            command += ["--role", role]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        return made.stdout.split()[0]

    def start(self) -> None:
        """Starts it, on the port that it had before, and waits until it serves."""
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        (self.directory / "adjourn.sock").unlink(missing_ok=True)
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binary()), "serve",
                    "--listen", f"127.0.0.1:{self._port}",
                    "--listen", self.socket,
                    "--storage", f"sqlite:{self.directory}/adjourn.db",
                    "--ready-file", str(ready),
                    "--auth-file", str(self.directory / "keys.toml"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        end = time.monotonic() + 60
        while not ready.exists() or not ready.read_text():
            if self._process.poll() is not None or time.monotonic() > end:
                text = (self.directory / "server.log").read_text(errors="replace")
                raise RuntimeError(f"the server did not start:\n{text[-4000:]}")
            time.sleep(0.02)
        listen = json.loads(ready.read_text())["listen"]
        self.target = next(one for one in listen if not one.startswith("unix:"))
        self._port = self.target.rsplit(":", 1)[1]

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """Asks it to end, and waits."""
        if self._process is None:
            return 0
        self._process.terminate()
        code = self._process.wait(timeout=60)
        self._process = None
        return code
