"""What the blocking client does in its own way; _io_async has the same names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from adjourn.settings import Settings

Request = TypeVar("Request")
Response = TypeVar("Response")

Channel = grpc.Channel
UnaryUnary = grpc.UnaryUnaryMultiCallable
UnaryStream = grpc.UnaryStreamMultiCallable


class Cancelled(Exception):
    """Never raised: a blocking call that is cancelled fails as a call."""


sleep = time.sleep


def open_channel(settings: Settings) -> Channel:
    """A channel to the server. It connects when it is used."""
    if settings.credentials is not None:
        return grpc.secure_channel(
            settings.target, settings.credentials, options=settings.options()
        )
    return grpc.insecure_channel(settings.target, options=settings.options())


def close_channel(channel: Channel) -> None:
    """Closes a channel and ends its streams."""
    channel.close()


class Ticker:
    """Runs something again and again, each time after the wait that it asks for."""

    def __init__(self, tick: Callable[[], float | None], first: float) -> None:
        self._stopped = threading.Event()
        # A daemon: a program that is done does not wait for it.
        self._thread = threading.Thread(
            target=self._run, args=(tick, first), name="adjourn-lease", daemon=True
        )
        self._thread.start()

    def _run(self, tick: Callable[[], float | None], first: float) -> None:
        wait: float | None = first
        while wait is not None and not self._stopped.wait(wait):
            wait = tick()

    def stop(self) -> None:
        """Ends it, and waits for a tick that is on its way."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
