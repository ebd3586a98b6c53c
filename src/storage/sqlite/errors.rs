//! Sorts what SQLite says by what the caller has to do about it.

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_WRITE;

use crate::storage::{Corrupt, Error};

/// The store's word for an error of SQLite that left nothing written.
#[expect(clippy::needless_pass_by_value, reason = "made for `map_err`")]
pub(super) fn sort(error: rusqlite::Error) -> Error {
    sort_ref(&error)
}

/// [`sort`] for an error that several members of a group share.
pub(super) fn sort_ref(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full(error.to_string()),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory
            | ErrorCode::ReadOnly
            | ErrorCode::OperationInterrupted
            | ErrorCode::PermissionDenied
            | ErrorCode::FileLockingProtocolFailed,
        ) => Error::Unavailable(error.to_string()),
        // A damaged page shows here, a damaged value by its digest.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt {
            kind: Corrupt::Database,
            key: String::new(),
            problem: error.to_string(),
        },
        // Whatever else SQLite says is a fault of this program.
        Some(_) | None => Error::Internal(error.to_string()),
    }
}

/// [`sort`] for an error of a read that may have met a value of the wrong shape:
/// `place` says what of.
pub(super) fn sort_at(error: rusqlite::Error, place: impl FnOnce() -> (Corrupt, String)) -> Error {
    if error.sqlite_error_code().is_some() {
        return sort(error);
    }
    let (kind, key) = place();
    Error::Corrupt {
        kind,
        key,
        problem: error.to_string(),
    }
}

/// Whether a failed COMMIT may still be on the disk.
pub(super) fn is_outcome_unknown(error: &rusqlite::Error) -> bool {
    // After a failed sync nobody can say what the disk holds. A failed write is
    // another matter: the page that makes the commit one is written last.
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
        && error
            .sqlite_error()
            .is_none_or(|code| code.extended_code != SQLITE_IOERR_WRITE)
}
