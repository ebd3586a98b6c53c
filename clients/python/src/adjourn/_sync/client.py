# Made from _async/client.py by scripts/gen. Do not edit.
"""The client and how to make one."""

from __future__ import annotations

from types import TracebackType

import grpc

from adjourn import _io_sync as io
from adjourn._sync.flow import Thread
from adjourn._sync.resources import Checkpoints, Interrupts, Memories, Sessions, Timeline
from adjourn._sync.rpc import Rpc
from adjourn.settings import DEFAULT_TARGET, Settings


class Client:
    """A connection to an Adjourn server. Made by `adjourn.connect`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._rpc = Rpc(settings)
        self.sessions = Sessions(self._rpc)
        self.memories = Memories(self._rpc)
        self.checkpoints = Checkpoints(self._rpc)
        self.interrupts = Interrupts(self._rpc)
        self.timeline = Timeline(self._rpc)

    def thread(self, thread_id: str, *, agent_id: str | None = None) -> Thread:
        """A thread, to acquire or to resume. Nothing is sent yet."""
        return Thread(self._rpc, thread_id, agent_id)

    def close(self) -> None:
        """Closes the connection; its streams end."""
        self._rpc.closed = True
        io.close_channel(self._rpc.channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    target: str = DEFAULT_TARGET,
    *,
    key: str | None = None,
    agent_id: str = "default",
    user_id: str | None = None,
    timeout: float | None = 30.0,
    retries: int = 5,
    credentials: grpc.ChannelCredentials | None = None,
    consumer_id: str | None = None,
) -> Client:
    """A client of the server at `target`: `host:port` or `unix:PATH`.

    `agent_id` and `user_id` are the defaults of its calls, `timeout` their
    deadline in seconds. It connects when it is first used. Leases are taken as
    `consumer_id`, by default a new one for each client.
    """
    settings = Settings(
        target=target,
        key=key,
        agent_id=agent_id,
        user_id=user_id,
        timeout=timeout,
        retries=retries,
        credentials=credentials,
        **({} if consumer_id is None else {"consumer_id": consumer_id}),
    )
    return Client(settings)
