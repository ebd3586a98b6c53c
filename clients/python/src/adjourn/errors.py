"""Errors of the server, a class for each reason.

`except adjourn.ThreadLeased:` reads better than comparing codes, and a program
never has to read the message.
"""

from __future__ import annotations

from typing import cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "adjourn.dev"


class AdjournError(Exception):
    """A call failed.

    `reason` is the name of the `ErrorReason`, without its prefix; `metadata`
    holds facts such as etags, seqs and the `field` that is wrong; `retry_after`
    is in seconds, where waiting helps; `outcome` says of a write whether it is
    `NOT_APPLIED` or `UNKNOWN`: repeat it with the same request id to learn.
    """

    reason = ""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str | None = None,
        metadata: dict[str, str] | None = None,
        field: str = "",
        retry_after: float | None = None,
        outcome: str = "UNKNOWN",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        if reason is not None:
            self.reason = reason
        self.metadata = metadata or {}
        self.field = field
        self.retry_after = retry_after
        self.outcome = outcome

    def __str__(self) -> str:
        name = self.reason or self.code.name
        named = not self.field or self.field in self.message
        where = "" if named else f" ({self.field})"
        return f"{name}{where}: {self.message}"


class TransportError(AdjournError):
    """The call failed on the way, and nothing is known of what the server did."""


class MemoryCorrupt(AdjournError):
    """DATA_LOSS. A stored memory fails its check. Nothing was overwritten; restore it
    from a backup, or delete it.
    """

    reason = "MEMORY_CORRUPT"


class SessionCorrupt(AdjournError):
    """DATA_LOSS. A stored session fails its check. Older revisions and snapshots may
    be readable.
    """

    reason = "SESSION_CORRUPT"


class SnapshotCorrupt(AdjournError):
    """DATA_LOSS. A stored snapshot fails its check. Use another."""

    reason = "SNAPSHOT_CORRUPT"


class CheckpointCorrupt(AdjournError):
    """DATA_LOSS. A stored checkpoint fails its check. An older one may be readable."""

    reason = "CHECKPOINT_CORRUPT"


class LogCorrupt(AdjournError):
    """DATA_LOSS. A part of the message log fails its check. The rest stays readable."""

    reason = "LOG_CORRUPT"


class InterruptCorrupt(AdjournError):
    """DATA_LOSS. A stored interrupt fails its check. Cancel it and create it anew."""

    reason = "INTERRUPT_CORRUPT"


class CheckpointMissing(AdjournError):
    """NOT_FOUND. The thread has no such checkpoint. Nothing can be resumed from it."""

    reason = "CHECKPOINT_MISSING"


class MessageNotFound(AdjournError):
    """NOT_FOUND. No message has this id, or the index is out of range. Read the
    transcript again.
    """

    reason = "MESSAGE_NOT_FOUND"


class SessionNotFound(AdjournError):
    """NOT_FOUND. No such session for this caller. Check agent, user and session id."""

    reason = "SESSION_NOT_FOUND"


class ThreadNotFound(AdjournError):
    """NOT_FOUND. No such thread for this caller."""

    reason = "THREAD_NOT_FOUND"


class SnapshotNotFound(AdjournError):
    """NOT_FOUND. No such snapshot in the session."""

    reason = "SNAPSHOT_NOT_FOUND"


class MemoryNotFound(AdjournError):
    """NOT_FOUND. No such memory. Append to it, or configure it, to make it."""

    reason = "MEMORY_NOT_FOUND"


class InterruptNotFound(AdjournError):
    """NOT_FOUND. No such interrupt for this caller. It may have been purged."""

    reason = "INTERRUPT_NOT_FOUND"


class WriterNotFound(AdjournError):
    """NOT_FOUND. No such writer. A writer is known from its first call on."""

    reason = "WRITER_NOT_FOUND"


class TicketNotFound(AdjournError):
    """NOT_FOUND. No such restore ticket of this writer. Begin again."""

    reason = "TICKET_NOT_FOUND"


class MessageNotEditable(AdjournError):
    """FAILED_PRECONDITION. The message holds tool calls, or is no message. Leave it."""

    reason = "MESSAGE_NOT_EDITABLE"


class HitlDecision(AdjournError):
    """FAILED_PRECONDITION. The interrupt does not allow this kind of decision, or its
    value does not fit. `allowed_decisions` says what it allows.
    """

    reason = "HITL_DECISION"


class CheckpointSpent(AdjournError):
    """FAILED_PRECONDITION. The checkpoint was used by a commit. Resume the newest one,
    or say `allow_replay`.
    """

    reason = "CHECKPOINT_SPENT"


class InterruptsPending(AdjournError):
    """FAILED_PRECONDITION. Interrupts of the thread are undecided. Await them, or say
    `allow_partial` or `withdraw`.
    """

    reason = "INTERRUPTS_PENDING"


class InterruptOverdue(AdjournError):
    """FAILED_PRECONDITION. The interrupt's time is over; it can no longer be decided."""

    reason = "INTERRUPT_OVERDUE"


class ApproverExcluded(AdjournError):
    """FAILED_PRECONDITION. The policy excludes this principal: it requested the
    action, or has voted. Ask another reviewer.
    """

    reason = "APPROVER_EXCLUDED"


class CommentRequired(AdjournError):
    """FAILED_PRECONDITION. The policy wants a comment with this kind of decision."""

    reason = "COMMENT_REQUIRED"


class InDoubt(AdjournError):
    """FAILED_PRECONDITION. The call was started and its outcome is unknown. A reviewer
    has to resolve it.
    """

    reason = "IN_DOUBT"


class SavesGuarded(AdjournError):
    """FAILED_PRECONDITION. A restore left components of this writer in an unknown
    state. Restore all of them, or repair the guard.
    """

    reason = "SAVES_GUARDED"


class RestoreRejected(AdjournError):
    """FAILED_PRECONDITION. The stored session is not the one the caller expects;
    `field` names the mismatch. Nothing changed.
    """

    reason = "RESTORE_REJECTED"


class RestoreSuperseded(AdjournError):
    """FAILED_PRECONDITION. The writer restored another state after this save was
    built. Build it again.
    """

    reason = "RESTORE_SUPERSEDED"


class TokenRequired(AdjournError):
    """FAILED_PRECONDITION. The thread is leased and the call names no token. Acquire
    the thread first.
    """

    reason = "TOKEN_REQUIRED"


class Fenced(AdjournError):
    """FAILED_PRECONDITION. The token is no longer the thread's. Another worker took
    over: stop.
    """

    reason = "FENCED"


class LeaseLost(AdjournError):
    """FAILED_PRECONDITION. The lease ended by takeover, release, cancel or spend.
    Acquire the thread again.
    """

    reason = "LEASE_LOST"


class NotPending(AdjournError):
    """FAILED_PRECONDITION. The interrupt is closed, or not in the state the call
    needs. Read it again.
    """

    reason = "NOT_PENDING"


class AlreadyDecided(AdjournError):
    """FAILED_PRECONDITION. Somebody else decided first; the metadata says who, what
    kind and when.
    """

    reason = "ALREADY_DECIDED"


class AlreadyConsumed(AdjournError):
    """FAILED_PRECONDITION. Another consumer has the decision. Leave it."""

    reason = "ALREADY_CONSUMED"


class Deleted(AdjournError):
    """FAILED_PRECONDITION. It was deleted in the last 30 days. Say `recreate` to make
    it anew.
    """

    reason = "DELETED"


class PreconditionRequired(AdjournError):
    """FAILED_PRECONDITION. A replacing call needs an etag, a base seq, a token or
    `overwrite`.
    """

    reason = "PRECONDITION_REQUIRED"


class GroundingUnavailable(AdjournError):
    """FAILED_PRECONDITION. There is no graph to ground answers in."""

    reason = "GROUNDING_UNAVAILABLE"


class ThreadIdInvalid(AdjournError):
    """INVALID_ARGUMENT. The thread id breaks the rules for ids."""

    reason = "THREAD_ID_INVALID"


class StorageKeyInvalid(AdjournError):
    """INVALID_ARGUMENT. The storage key holds `..` or NUL."""

    reason = "STORAGE_KEY_INVALID"


class JsonInvalid(AdjournError):
    """INVALID_ARGUMENT. A `*_json` field is not valid JSON; `field` is its path."""

    reason = "JSON_INVALID"


class ArgumentInvalid(AdjournError):
    """INVALID_ARGUMENT. A field is missing or out of its bounds; `field` is its path."""

    reason = "ARGUMENT_INVALID"


class PageTokenInvalid(AdjournError):
    """INVALID_ARGUMENT. The page token is damaged or of another request. Start the
    list again.
    """

    reason = "PAGE_TOKEN_INVALID"


class CursorInvalid(AdjournError):
    """INVALID_ARGUMENT. The cursor is damaged or of another tenant. Start with
    `initial_state`.
    """

    reason = "CURSOR_INVALID"


class CursorFilterChanged(AdjournError):
    """INVALID_ARGUMENT. The cursor is of another filter. Use that filter, or start
    with `initial_state`.
    """

    reason = "CURSOR_FILTER_CHANGED"


class EtagMismatch(AdjournError):
    """ABORTED. It changed since it was read; `etag` is the current one. Read again,
    then decide again.
    """

    reason = "ETAG_MISMATCH"


class SeqMismatch(AdjournError):
    """ABORTED. Something was written meanwhile; `last_seq` is the current one. Read
    again.
    """

    reason = "SEQ_MISMATCH"


class ThreadLeased(AdjournError):
    """ABORTED. Another consumer holds the lease; `holder` and `expire_time` say who
    and how long. Wait.
    """

    reason = "THREAD_LEASED"


class RestoreInProgress(AdjournError):
    """ABORTED. The writer has an open restore. Wait for it, then build the save again."""

    reason = "RESTORE_IN_PROGRESS"


class Claimed(AdjournError):
    """ABORTED. Another reviewer has claimed the interrupt; `holder` and `expire_time`
    say who and how long.
    """

    reason = "CLAIMED"


class Conflict(AdjournError):
    """ABORTED. A concurrent write got in the way, or session or memory changed since
    the checkpoint. Read again; on resume say `overwrite`.
    """

    reason = "CONFLICT"


class RequestIdReused(AdjournError):
    """ALREADY_EXISTS. The request_id belongs to another command. Use a new one."""

    reason = "REQUEST_ID_REUSED"


class AlreadyExists(AdjournError):
    """ALREADY_EXISTS. It exists, and the call said `must_not_exist`, or named no
    precondition for a replacement.
    """

    reason = "ALREADY_EXISTS"


class CursorCompacted(AdjournError):
    """OUT_OF_RANGE. The feed no longer reaches back to the cursor; `oldest_cursor` is
    the oldest. Start with `initial_state`.
    """

    reason = "CURSOR_COMPACTED"


class CursorEpochChanged(AdjournError):
    """OUT_OF_RANGE. The store was restored or diverged since the cursor. Start with
    `initial_state`.
    """

    reason = "CURSOR_EPOCH_CHANGED"


class ResultCompacted(AdjournError):
    """OUT_OF_RANGE. The revision, or the result of an earlier request, is no longer
    kept.
    """

    reason = "RESULT_COMPACTED"


class LimitExceeded(AdjournError):
    """RESOURCE_EXHAUSTED. A size or a count is over a limit; `limit` names it. Split
    the call.
    """

    reason = "LIMIT_EXCEEDED"


class SlowConsumer(AdjournError):
    """RESOURCE_EXHAUSTED. The reader fell too far behind. Reconnect with `cursor`."""

    reason = "SLOW_CONSUMER"


class Overloaded(AdjournError):
    """RESOURCE_EXHAUSTED. Too much work is queued. Wait as RetryInfo says."""

    reason = "OVERLOADED"


class StorageUnavailable(AdjournError):
    """UNAVAILABLE. The store cannot be reached. Nothing was applied; retry with the
    same request_id.
    """

    reason = "STORAGE_UNAVAILABLE"


class OutcomeUnknown(AdjournError):
    """UNAVAILABLE. The answer of a commit was lost. Repeat with the same request_id to
    learn its outcome.
    """

    reason = "OUTCOME_UNKNOWN"


class Unauthenticated(AdjournError):
    """UNAUTHENTICATED. The credentials are missing, wrong or revoked."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(AdjournError):
    """PERMISSION_DENIED. The caller's roles do not allow the call."""

    reason = "PERMISSION_DENIED"


class DeadlineExceeded(AdjournError):
    """DEADLINE_EXCEEDED. The deadline passed. If a commit had begun, the same
    request_id tells its outcome.
    """

    reason = "DEADLINE_EXCEEDED"


class Cancelled(AdjournError):
    """CANCELLED. The caller left. If a commit had begun, the same request_id tells its
    outcome.
    """

    reason = "CANCELLED"


class Unimplemented(AdjournError):
    """UNIMPLEMENTED. This server does not offer the call or the option."""

    reason = "NOT_IMPLEMENTED"


class Internal(AdjournError):
    """INTERNAL. A bug of the server. Report it."""

    reason = "INTERNAL"


#: The class of each reason.
BY_REASON: dict[str, type[AdjournError]] = {
    kind.reason: kind
    for kind in AdjournError.__subclasses__()
    if kind.reason
}

# What a status means that came without details: the transport made it, or a
# proxy on the way.
_BY_CODE: dict[grpc.StatusCode, type[AdjournError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


def from_rpc(error: grpc.RpcError) -> AdjournError:
    """The typed error of a failed call."""
    call = cast(grpc.Call, error)
    code = call.code() or grpc.StatusCode.UNKNOWN
    message = call.details() or code.name
    details: list[any_pb2.Any] = []
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                details = list(status_pb2.Status.FromString(value).details)
            except DecodeError:  # A proxy's garbage must not hide the error.
                details = []
    info: error_details_pb2.ErrorInfo | None = None
    retry_after: float | None = None
    field = ""
    for detail in details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            found = error_details_pb2.ErrorInfo()
            detail.Unpack(found)
            if found.domain == DOMAIN:
                info = found
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            if bad.field_violations:
                field = bad.field_violations[0].field
    if info is None:
        kind = _BY_CODE.get(code, TransportError)
        return kind(message, code=code, retry_after=retry_after)
    metadata = dict(info.metadata)
    # A newer server may know reasons that this client does not.
    return BY_REASON.get(info.reason, AdjournError)(
        message,
        code=code,
        reason=info.reason,
        metadata=metadata,
        field=field or metadata.get("field", ""),
        retry_after=retry_after,
        outcome=metadata.get("outcome", "UNKNOWN"),
    )


def is_worth_retrying(error: AdjournError) -> bool:
    """Whether the same call may be repeated at once: only `UNAVAILABLE` is."""
    return error.code is grpc.StatusCode.UNAVAILABLE
