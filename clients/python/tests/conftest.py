"""Fixtures that several tests share."""

from __future__ import annotations

import json
import pathlib
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from processes import Process
from server import Server

import adjourn

DATA = pathlib.Path(__file__).resolve().parents[3] / "tests" / "data"


@pytest.fixture(scope="session")
def conversations() -> list[dict[str, Any]]:
    """The recorded conversations."""
    lines = (DATA / "agent-trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that do not kill it."""
    made = Server(tmp_path_factory.mktemp("server"))
    made.key("other", "nobody", "agent")
    made.start()
    yield made
    assert made.stop() == 0, "it drains and ends well"


@pytest.fixture
def tenant(server: Server) -> Tenant:
    """A tenant of the test's own, with a key for each role."""
    return Tenant(server)


class Tenant:
    """Keys of one tenant."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"tenant-{secrets.token_hex(4)}"
        self._keys: dict[tuple[str, ...], str] = {}

    def key(self, principal: str, *roles: str) -> str:
        """A key, made once."""
        name = (principal, *roles)
        if name not in self._keys:
            self._keys[name] = self.server.key(self.name, principal, *roles)
            self._wait_until_known(self._keys[name])
        return self._keys[name]

    def prepare(self, principal: str, *roles: str) -> None:
        """Makes a key before the server is started."""
        self._keys[(principal, *roles)] = self.server.key(self.name, principal, *roles)

    def _wait_until_known(self, key: str) -> None:
        """A running server looks at the file of keys now and then."""
        end = time.monotonic() + 10
        with adjourn.connect(self.server.target, key=key) as client:
            while time.monotonic() < end:
                try:
                    list(client.interrupts.list(page_size=1))
                except adjourn.Unauthenticated:
                    time.sleep(0.05)
                else:
                    return
        raise RuntimeError("the server does not take up a new key")

    def connect(self, principal: str, *roles: str, **options: Any) -> adjourn.Client:
        """A client with a key."""
        return adjourn.connect(self.server.target, key=self.key(principal, *roles), **options)

    def process(self, principal: str, *roles: str) -> Process:
        """A worker process with a key."""
        return Process(self.server.target, self.key(principal, *roles))
