//! Sorts what SQLite says by what the caller has to do about it.

use rusqlite::ErrorCode;

use crate::storage::{Corrupt, Error};

/// The store's word for an error of SQLite that left nothing written.
pub(super) fn sort(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full(error.to_string()),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory
            | ErrorCode::ReadOnly
            | ErrorCode::OperationInterrupted,
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

/// Whether a failed COMMIT may still be on the disk.
pub(super) fn is_outcome_unknown(error: &rusqlite::Error) -> bool {
    // After a failed sync nobody can say what the disk holds.
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}
