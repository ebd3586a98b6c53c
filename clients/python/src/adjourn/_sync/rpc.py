# Made from _async/rpc.py by scripts/gen. Do not edit.
"""Calls: credentials, deadlines, typed errors, and retries that are safe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Callable
from typing import Any

import grpc

from adjourn import _io_sync as io
from adjourn.errors import AdjournError, from_rpc
from adjourn.settings import Settings
from adjourn.watch import Event, Position, T, is_worth_reconnecting, wait_before


class Rpc:
    """A channel and how to call over it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.channel = io.open_channel(settings)
        self.metadata = settings.metadata()
        #: Set once the client is closed; nothing is called any more.
        self.closed = False

    def unary(
        self,
        method: io.UnaryUnary[io.Request, io.Response],
        request: io.Request,
        timeout: float | None = None,
    ) -> io.Response:
        """Calls once, or again with the same request where that is safe.

        Only UNAVAILABLE is tried again: every request that changes something
        carries a request id, so its repetition has no second effect.
        """
        timeout = self.settings.timeout if timeout is None else timeout
        end = None if timeout is None else time.monotonic() + timeout
        attempt = 0
        while True:
            left = None if end is None else max(end - time.monotonic(), 0.001)
            try:
                return method(request, timeout=left, metadata=self.metadata)
            except grpc.RpcError as error:
                failure = from_rpc(error)
            wait = self.settings.wait_before_retry(failure, attempt)
            if wait is None or (end is not None and time.monotonic() + wait >= end):
                raise failure
            attempt += 1
            io.sleep(wait)


class Watch(Iterator[Event[T]]):
    """A stream of changes that outlives connections and servers.

    It reconnects with its last cursor, so nothing is missed, and drops what it
    has delivered, so nothing comes twice. `cursor` is where a new watch would go
    on; keep it to resume after a restart of this process. What the server says
    about the cursor is raised, for example `CursorCompacted`: start anew then.
    """

    def __init__(
        self,
        rpc: Rpc,
        method: io.UnaryStream[Any, Any],
        request: Callable[[str], Any],
        identify: Callable[[Any], tuple[str, int]],
        cursor: str,
    ) -> None:
        self._rpc = rpc
        self._method = method
        self._request = request
        self._identify = identify
        self._position = Position(cursor)
        self._call: Any = None
        self._stream: Iterator[Any] | None = None
        self._attempt = 0
        self._closed = False

    @property
    def cursor(self) -> str:
        """Where a new watch with the same filter goes on. Empty at first."""
        return self._position.cursor

    def close(self) -> None:
        """Ends the watch."""
        self._closed = True
        self._drop()

    def __iter__(self) -> Watch[T]:
        return self

    def __next__(self) -> Event[T]:
        while not self._closed:
            try:
                if self._stream is None:
                    self._call = self._method(
                        self._request(self._position.cursor), metadata=self._rpc.metadata
                    )
                    self._stream = self._call.__iter__()
                message = self._stream.__next__()
            except StopIteration:
                self._reconnect(None)
                continue
            except io.Cancelled:
                # By close(), or by whoever cancels this task.
                if self._closed:
                    break
                raise
            except grpc.RpcError as error:
                failure = from_rpc(error)
                if self._closed:
                    break
                if not is_worth_reconnecting(failure):
                    self.close()
                    raise failure from None
                self._reconnect(failure)
                continue
            self._attempt = 0
            event = self._event(message)
            # Only now: what was not handed out has to come again.
            self._position.cursor = message.cursor or self._position.cursor
            if message.WhichOneof("event") == "goodbye":
                self._drop()
            if event is not None:
                return event
        raise StopIteration

    def _event(self, message: Any) -> Event[T] | None:
        """The event of a message, or None if there is nothing new in it."""
        kind = message.WhichOneof("event")
        if kind == "synced":
            return Event("synced", "", None, message.revision, message.cursor)
        if kind not in ("snapshot", "changed", "left", "deleted"):
            return None
        item = getattr(message, kind)
        key, revision = self._identify(item)
        if kind == "snapshot":
            if not self._position.is_new_snapshot(key, revision):
                return None
        elif not self._position.is_new_change(key, message.revision):
            return None
        kept = None if kind == "deleted" else item
        return Event(kind, key, kept, message.revision, message.cursor)

    def _reconnect(self, error: AdjournError | None) -> None:
        self._drop()
        wait = wait_before(self._attempt, error.retry_after if error else None)
        self._attempt += 1
        io.sleep(wait)

    def _drop(self) -> None:
        call, self._call, self._stream = self._call, None, None
        if call is not None:
            call.cancel()
