//! Refusals as gRPC statuses, and nowhere else.
//!
//! Every status carries an `ErrorInfo`, so that a program never has to read the
//! message, and says whether the write it answers was applied.

use std::collections::HashMap;
use std::time::Duration;

use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::domain::error::{Error, Reason};
use crate::proto::v1::ErrorReason;

/// The `domain` of every `ErrorInfo`.
pub const DOMAIN: &str = "adjourn.dev";

/// Tells clients with a retry policy whether and when to try again by themselves.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// How long a message may be, in bytes. It travels in a header, percent-encoded,
/// and is repeated in the details.
const MAX_MESSAGE: usize = 512;

/// How long one fact may be, in bytes.
const MAX_FACT: usize = 256;

/// How long all facts may be together. With the message, twice, and the frame of
/// the details this stays under the 4 KiB that the contract promises.
const MAX_FACTS: usize = 2048;

/// Whether a failed write was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not, and will not be.
    NotApplied,
    /// It may have been: repeat it with the same request id to learn.
    Unknown,
}

impl Outcome {
    /// The value of the fact `outcome`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotApplied => "NOT_APPLIED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let Error {
            reason,
            message,
            field,
            metadata,
            retry_after,
        } = error;
        let (code, reason) = classify(reason);
        let outcome = if reason == ErrorReason::OutcomeUnknown {
            Outcome::Unknown
        } else {
            Outcome::NotApplied
        };
        build(
            code,
            reason,
            outcome,
            &message,
            field.as_deref(),
            metadata,
            retry_after,
        )
    }
}

/// The deadline of the call passed.
#[must_use]
pub fn deadline_exceeded() -> Status {
    build(
        Code::DeadlineExceeded,
        ErrorReason::DeadlineExceeded,
        Outcome::Unknown,
        "the deadline passed; repeat the call with the same request_id and more time",
        None,
        Vec::new(),
        None,
    )
}

/// A handler broke down. What it did before is not known.
#[must_use]
pub fn broken() -> Status {
    build(
        Code::Internal,
        ErrorReason::Internal,
        Outcome::Unknown,
        "internal error; the server's log says more",
        None,
        Vec::new(),
        None,
    )
}

/// The server ends a call because it is going down.
#[must_use]
pub fn draining() -> Status {
    build(
        Code::Unavailable,
        ErrorReason::StorageUnavailable,
        Outcome::NotApplied,
        "the server is going down; reconnect",
        None,
        Vec::new(),
        Some(Duration::from_secs(1)),
    )
}

/// The code and the public name of a reason.
#[must_use]
pub const fn classify(reason: Reason) -> (Code, ErrorReason) {
    use Code::{
        Aborted, AlreadyExists, DataLoss, FailedPrecondition, Internal, InvalidArgument, NotFound,
        OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
        Unimplemented,
    };
    match reason {
        Reason::MemoryCorrupt => (DataLoss, ErrorReason::MemoryCorrupt),
        Reason::SessionCorrupt => (DataLoss, ErrorReason::SessionCorrupt),
        Reason::SnapshotCorrupt => (DataLoss, ErrorReason::SnapshotCorrupt),
        Reason::CheckpointCorrupt => (DataLoss, ErrorReason::CheckpointCorrupt),
        Reason::LogCorrupt => (DataLoss, ErrorReason::LogCorrupt),
        Reason::InterruptCorrupt => (DataLoss, ErrorReason::InterruptCorrupt),
        Reason::CheckpointMissing => (NotFound, ErrorReason::CheckpointMissing),
        Reason::MessageNotFound => (NotFound, ErrorReason::MessageNotFound),
        Reason::SessionNotFound => (NotFound, ErrorReason::SessionNotFound),
        Reason::ThreadNotFound => (NotFound, ErrorReason::ThreadNotFound),
        Reason::SnapshotNotFound => (NotFound, ErrorReason::SnapshotNotFound),
        Reason::MemoryNotFound => (NotFound, ErrorReason::MemoryNotFound),
        Reason::InterruptNotFound => (NotFound, ErrorReason::InterruptNotFound),
        Reason::WriterNotFound => (NotFound, ErrorReason::WriterNotFound),
        Reason::TicketNotFound => (NotFound, ErrorReason::TicketNotFound),
        Reason::MessageNotEditable => (FailedPrecondition, ErrorReason::MessageNotEditable),
        Reason::HitlDecision => (FailedPrecondition, ErrorReason::HitlDecision),
        Reason::CheckpointSpent => (FailedPrecondition, ErrorReason::CheckpointSpent),
        Reason::InterruptsPending => (FailedPrecondition, ErrorReason::InterruptsPending),
        Reason::InterruptOverdue => (FailedPrecondition, ErrorReason::InterruptOverdue),
        Reason::ApproverExcluded => (FailedPrecondition, ErrorReason::ApproverExcluded),
        Reason::CommentRequired => (FailedPrecondition, ErrorReason::CommentRequired),
        Reason::InDoubt => (FailedPrecondition, ErrorReason::InDoubt),
        Reason::SavesGuarded => (FailedPrecondition, ErrorReason::SavesGuarded),
        Reason::RestoreRejected => (FailedPrecondition, ErrorReason::RestoreRejected),
        Reason::RestoreSuperseded => (FailedPrecondition, ErrorReason::RestoreSuperseded),
        Reason::TokenRequired => (FailedPrecondition, ErrorReason::TokenRequired),
        Reason::Fenced => (FailedPrecondition, ErrorReason::Fenced),
        Reason::LeaseLost => (FailedPrecondition, ErrorReason::LeaseLost),
        Reason::NotPending => (FailedPrecondition, ErrorReason::NotPending),
        Reason::AlreadyDecided => (FailedPrecondition, ErrorReason::AlreadyDecided),
        Reason::AlreadyConsumed => (FailedPrecondition, ErrorReason::AlreadyConsumed),
        Reason::Deleted => (FailedPrecondition, ErrorReason::Deleted),
        Reason::PreconditionRequired => (FailedPrecondition, ErrorReason::PreconditionRequired),
        Reason::GroundingUnavailable => (FailedPrecondition, ErrorReason::GroundingUnavailable),
        Reason::ThreadIdInvalid => (InvalidArgument, ErrorReason::ThreadIdInvalid),
        Reason::JsonInvalid => (InvalidArgument, ErrorReason::JsonInvalid),
        Reason::ArgumentInvalid => (InvalidArgument, ErrorReason::ArgumentInvalid),
        Reason::PageTokenInvalid => (InvalidArgument, ErrorReason::PageTokenInvalid),
        Reason::CursorInvalid => (InvalidArgument, ErrorReason::CursorInvalid),
        Reason::CursorFilterChanged => (InvalidArgument, ErrorReason::CursorFilterChanged),
        Reason::EtagMismatch => (Aborted, ErrorReason::EtagMismatch),
        Reason::SeqMismatch => (Aborted, ErrorReason::SeqMismatch),
        Reason::ThreadLeased => (Aborted, ErrorReason::ThreadLeased),
        Reason::RestoreInProgress => (Aborted, ErrorReason::RestoreInProgress),
        Reason::Claimed => (Aborted, ErrorReason::Claimed),
        Reason::Conflict => (Aborted, ErrorReason::Conflict),
        Reason::RequestIdReused => (AlreadyExists, ErrorReason::RequestIdReused),
        Reason::AlreadyExists => (AlreadyExists, ErrorReason::AlreadyExists),
        Reason::CursorCompacted => (OutOfRange, ErrorReason::CursorCompacted),
        Reason::CursorEpochChanged => (OutOfRange, ErrorReason::CursorEpochChanged),
        Reason::ResultCompacted => (OutOfRange, ErrorReason::ResultCompacted),
        Reason::LimitExceeded => (ResourceExhausted, ErrorReason::LimitExceeded),
        Reason::SlowConsumer => (ResourceExhausted, ErrorReason::SlowConsumer),
        Reason::Overloaded => (ResourceExhausted, ErrorReason::Overloaded),
        Reason::StorageUnavailable => (Unavailable, ErrorReason::StorageUnavailable),
        Reason::OutcomeUnknown => (Unavailable, ErrorReason::OutcomeUnknown),
        Reason::PermissionDenied => (PermissionDenied, ErrorReason::PermissionDenied),
        Reason::Unauthenticated => (Unauthenticated, ErrorReason::Unauthenticated),
        Reason::NotImplemented => (Unimplemented, ErrorReason::NotImplemented),
        Reason::Internal => (Internal, ErrorReason::Internal),
    }
}

/// The name of a reason on the wire, such as `ETAG_MISMATCH`.
#[must_use]
pub fn wire_name(reason: ErrorReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("ERROR_REASON_").unwrap_or(name)
}

fn build(
    code: Code,
    reason: ErrorReason,
    outcome: Outcome,
    message: &str,
    field: Option<&str>,
    facts: Vec<(&'static str, String)>,
    retry_after: Option<Duration>,
) -> Status {
    let message = clip(message, MAX_MESSAGE);
    let mut info = HashMap::from([("outcome".to_owned(), outcome.name().to_owned())]);
    let mut left = MAX_FACTS;
    let field_fact = field.map(|field| ("field", field.to_owned()));
    for (key, value) in field_fact.into_iter().chain(facts) {
        let value = clip(&value, MAX_FACT);
        let Some(rest) = left.checked_sub(key.len() + value.len()) else {
            continue;
        };
        left = rest;
        info.insert(key.to_owned(), value.to_owned());
    }

    let mut details = ErrorDetails::with_error_info(wire_name(reason), DOMAIN, info);
    if let Some(field) = field {
        details.add_bad_request_violation(clip(field, MAX_FACT), message);
    }
    if retry_after.is_some() {
        details.set_retry_info(retry_after);
    }
    let mut trailers = MetadataMap::new();
    if code == Code::Aborted {
        // Trying again at once would only fail again: first read, or wait.
        trailers.insert(PUSHBACK, MetadataValue::from_static("-1"));
    }
    Status::with_error_details_and_metadata(code, message, details, trailers)
}

/// The beginning of `text`, at most `bytes` long.
fn clip(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_where_and_that_nothing_was_written() {
        let error = Error::argument("messages[2].role", "unknown role").with("kind", "narrator");
        let status = Status::from(error);
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(info.reason, "ARGUMENT_INVALID");
        assert_eq!(info.domain, "adjourn.dev");
        assert_eq!(info.metadata["outcome"], "NOT_APPLIED");
        assert_eq!(info.metadata["field"], "messages[2].role");
        assert_eq!(info.metadata["kind"], "narrator");
        let violations = &details.bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "messages[2].role");
    }

    #[test]
    fn only_a_lost_answer_leaves_the_outcome_open() {
        let outcome = |reason| {
            let status = Status::from(Error::new(reason, "x"));
            let info = status.get_error_details().error_info().cloned();
            info.unwrap().metadata["outcome"].clone()
        };
        assert_eq!(outcome(Reason::OutcomeUnknown), "UNKNOWN");
        assert_eq!(outcome(Reason::StorageUnavailable), "NOT_APPLIED");
        assert_eq!(outcome(Reason::Internal), "NOT_APPLIED");
    }

    #[test]
    fn an_aborted_call_is_not_to_be_retried_blindly() {
        let status = Status::from(Error::new(Reason::ThreadLeased, "x"));
        assert_eq!(status.metadata().get(PUSHBACK).unwrap(), "-1");
        let status = Status::from(Error::new(Reason::StorageUnavailable, "x"));
        assert!(status.metadata().is_empty());
    }

    #[test]
    fn a_pause_is_told() {
        let pause = Duration::from_secs(3);
        let status = Status::from(Error::new(Reason::Overloaded, "x").retry_after(pause));
        let details = status.get_error_details();
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(pause));
        let status = Status::from(Error::new(Reason::Overloaded, "x"));
        assert!(status.get_error_details().retry_info().is_none());
    }

    #[test]
    fn details_stay_under_four_kib_whatever_an_error_says() {
        let long = "ö".repeat(10_000);
        let mut error = Error::argument(long.clone(), &long);
        for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            error = error.with(key, &long);
        }
        let status = Status::from(error);
        assert!(status.details().len() < 4096, "{}", status.details().len());
        assert!(status.message().len() <= MAX_MESSAGE);
        let info = status.get_error_details().error_info().cloned().unwrap();
        assert_eq!(info.metadata["outcome"], "NOT_APPLIED");
    }
}
