"""The rules of cursors and of what is delivered twice."""

from __future__ import annotations

import grpc

from adjourn import errors
from adjourn.ids import uuid7
from adjourn.watch import Position, is_worth_reconnecting, wait_before


def test_changes_that_were_seen_are_dropped_and_no_other() -> None:
    position = Position()
    assert position.is_new_change("a", 5)
    assert not position.is_new_change("a", 5)
    assert position.is_new_change("b", 5), "one commit may change several items"
    assert position.is_new_change("a", 7)
    assert not position.is_new_change("b", 5), "an older commit was delivered"
    assert not position.is_new_change("a", 7)


def test_a_change_that_a_snapshot_showed_is_dropped() -> None:
    position = Position()
    assert position.is_new_snapshot("a", 9)
    assert position.is_new_snapshot("b", 4)
    assert not position.is_new_snapshot("a", 9)
    assert position.is_new_change("b", 8)
    assert not position.is_new_change("a", 9)
    assert position.is_new_change("c", 9)
    assert position.is_new_change("a", 10)


def test_snapshots_are_forgotten_once_changes_have_overtaken_them() -> None:
    position = Position()
    for number in range(100):
        position.is_new_snapshot(f"i{number}", number)
    assert position.is_new_change("x", 100)
    assert not position.snapshots
    assert position.keys == {"x"}


def test_only_what_a_new_connection_can_cure_is_tried_again() -> None:
    def error(kind: type[errors.AdjournError], code: grpc.StatusCode) -> errors.AdjournError:
        return kind("x", code=code)

    codes = grpc.StatusCode
    for good in (
        error(errors.TransportError, codes.UNAVAILABLE),
        error(errors.StorageUnavailable, codes.UNAVAILABLE),
        error(errors.SlowConsumer, codes.RESOURCE_EXHAUSTED),
        error(errors.TransportError, codes.INTERNAL),
    ):
        assert is_worth_reconnecting(good)
    for bad in (
        error(errors.CursorCompacted, codes.OUT_OF_RANGE),
        error(errors.CursorEpochChanged, codes.OUT_OF_RANGE),
        error(errors.CursorInvalid, codes.INVALID_ARGUMENT),
        error(errors.CursorFilterChanged, codes.INVALID_ARGUMENT),
        error(errors.Unauthenticated, codes.UNAUTHENTICATED),
        error(errors.PermissionDenied, codes.PERMISSION_DENIED),
        error(errors.Internal, codes.INTERNAL),
    ):
        assert not is_worth_reconnecting(bad)


def test_waits_grow_and_are_bounded() -> None:
    assert all(0.05 <= wait_before(0) <= 0.1 for _ in range(50))
    assert all(2.5 <= wait_before(50) <= 5 for _ in range(50))
    assert wait_before(0, retry_after=3) > 3


def test_request_ids_are_uuids_of_version_7_in_the_order_of_time() -> None:
    import uuid

    made = [uuid.UUID(uuid7()) for _ in range(100)]
    assert all(one.version == 7 and one.variant == uuid.RFC_4122 for one in made)
    assert len(set(made)) == 100
    assert made[0].int >> 80 <= made[-1].int >> 80
