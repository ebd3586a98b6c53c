"""What the asyncio client does in its own way; _io_sync has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio

from adjourn.settings import Settings

Request = TypeVar("Request")
Response = TypeVar("Response")

Channel = grpc.aio.Channel
UnaryUnary = grpc.aio.UnaryUnaryMultiCallable
UnaryStream = grpc.aio.UnaryStreamMultiCallable

Cancelled = asyncio.CancelledError

sleep = asyncio.sleep


def open_channel(settings: Settings) -> Channel:
    """A channel to the server. It connects when it is used."""
    if settings.credentials is not None:
        return grpc.aio.secure_channel(
            settings.target, settings.credentials, options=settings.options()
        )
    return grpc.aio.insecure_channel(settings.target, options=settings.options())


async def close_channel(channel: Channel) -> None:
    """Closes a channel and ends its streams."""
    await channel.close()


class Ticker:
    """Runs something again and again, each time after the wait that it asks for."""

    def __init__(self, tick: Callable[[], Awaitable[float | None]], first: float) -> None:
        self._task = asyncio.ensure_future(self._run(tick, first))

    async def _run(self, tick: Callable[[], Awaitable[float | None]], first: float) -> None:
        wait: float | None = first
        while wait is not None:
            await asyncio.sleep(wait)
            wait = await tick()

    def stop(self) -> None:
        """Ends it."""
        self._task.cancel()
