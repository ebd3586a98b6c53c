"""Memories, against the real server."""

from __future__ import annotations

import pytest
from conftest import Tenant

import adjourn


def test_memories_are_windows_over_what_was_said(tenant: Tenant) -> None:
    with tenant.connect("agent", "agent") as client:
        assert list(client.memories.load("m").messages) == []
        made = client.memories.append("m", [{"role": "user", "content": str(n)} for n in range(60)])
        assert made.dropped_count == 10
        loaded = client.memories.load("m")
        assert [one.text for one in loaded.messages] == [str(n) for n in range(10, 60)]
        with pytest.raises((adjourn.AlreadyExists, adjourn.PreconditionRequired)):
            client.memories.replace("m", [{"role": "user", "content": "x"}])
        client.memories.replace("m", [{"role": "user", "content": "x"}], etag=loaded.etag)
        with pytest.raises(adjourn.EtagMismatch):
            client.memories.clear("m", etag=loaded.etag)
        client.memories.clear("m", overwrite=True)
        assert client.memories.get("m").message_count == 0
        with pytest.raises(adjourn.MemoryNotFound):
            client.memories.get("none")
