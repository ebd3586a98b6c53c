"""How a client reaches its server."""

from __future__ import annotations

import random
import urllib.parse
from dataclasses import dataclass, field

import grpc

from adjourn import ids
from adjourn.errors import AdjournError, is_worth_retrying

DEFAULT_TARGET = "127.0.0.1:7420"

#: The server takes 16 MiB at most. Not limited here too: its refusal names the
#: limit, ours could not.
_UNLIMITED = -1


@dataclass(frozen=True)
class Settings:
    """Where, as whom, and how patiently."""

    target: str = DEFAULT_TARGET
    key: str | None = None
    agent_id: str = "default"
    user_id: str | None = None
    timeout: float | None = 30.0
    retries: int = 5
    credentials: grpc.ChannelCredentials | None = None
    consumer_id: str = field(default_factory=ids.consumer_id)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        if self.key is None:
            return ()
        return (("authorization", f"Bearer {self.key}"),)

    def options(self) -> list[tuple[str, int | str]]:
        """Options of the channel."""
        options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.max_receive_message_length", _UNLIMITED),
            # Our own retries know which calls are safe, and keep the request id.
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            # Clients do not share connections behind one another's back.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self.target.startswith("unix:"):
            # Else the escaped path becomes the authority, which HTTP/2 servers
            # refuse.
            options.append(("grpc.default_authority", "localhost"))
        elif self._is_loopback():
            # A sidecar is never behind a proxy, whatever the environment says.
            options.append(("grpc.enable_http_proxy", 0))
        return options

    def _is_loopback(self) -> bool:
        host = urllib.parse.urlsplit(f"//{self.target}").hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def wait_before_retry(self, error: AdjournError, attempt: int) -> float | None:
        """How long to wait before trying again; None to give up."""
        if not is_worth_retrying(error) or attempt >= self.retries:
            return None
        longest: float = min(2.0, 0.1 * 2**attempt)
        return (error.retry_after or 0.0) + random.uniform(longest / 2, longest)
