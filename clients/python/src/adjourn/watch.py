"""What a watch keeps in mind, so that a broken stream loses and repeats nothing.

No I/O here: the blocking and the asyncio client share it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import grpc

from adjourn.errors import AdjournError, Overloaded, SlowConsumer

T = TypeVar("T")

#: Waits between attempts to reconnect, in seconds.
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


@dataclass(frozen=True)
class Event(Generic[T]):
    """One message of a watch.

    `snapshot`: an item that was there at the start. `changed`: its new state.
    `left`: it no longer matches the filter. `deleted`: it is gone, and `item` is
    absent. `synced`: the initial state is complete; what follows are changes.
    """

    kind: Literal["snapshot", "changed", "left", "deleted", "synced"]
    key: str
    item: T | None
    revision: int
    cursor: str


@dataclass
class Position:
    """How far a watch has come."""

    cursor: str = ""
    #: Revisions of the snapshots that no change has overtaken yet.
    snapshots: dict[str, int] = field(default_factory=dict)
    newest_snapshot: int = 0
    #: The newest commit that was seen, and the items seen of it.
    revision: int = 0
    keys: set[str] = field(default_factory=set)

    def is_new_snapshot(self, key: str, revision: int) -> bool:
        """Whether this state of an item was not delivered yet."""
        if self.snapshots.get(key, -1) >= revision:
            return False
        self.snapshots[key] = revision
        self.newest_snapshot = max(self.newest_snapshot, revision)
        return True

    def is_new_change(self, key: str, revision: int) -> bool:
        """Whether this change was not delivered yet. Changes come in commit order."""
        if revision < self.revision:
            return False
        if revision == self.revision and key in self.keys:
            return False
        if revision > self.revision:
            self.revision = revision
            self.keys = set()
        self.keys.add(key)
        known = self.snapshots.pop(key, -1)
        if revision > self.newest_snapshot:
            self.snapshots.clear()
        return known < revision


def is_worth_reconnecting(error: AdjournError) -> bool:
    """Whether a watch goes on after this error, from its last cursor.

    What the server says about the cursor, or about the caller, is for the caller
    to act on: going on would hide a gap.
    """
    if isinstance(error, (SlowConsumer, Overloaded)):
        return True
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return True
    # A proxy or a dying connection, not our server.
    broken = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)
    return not error.reason and error.code in broken


def wait_before(attempt: int, retry_after: float | None = None) -> float:
    """How long to wait before the attempt after the `attempt`th, with jitter."""
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt, 10))
    return (retry_after or 0.0) + random.uniform(longest / 2, longest)
