//! Digests of what is stored, so that corrupt is never mistaken for stored.
//!
//! Each is bound to the tenant and the place it is stored at: a row that was moved
//! to another tenant or key does not pass for one that was written there.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Corrupt, Error, Key, Kind, Result, Row, Version};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, RowClass};
use crate::domain::revision::Revision;

/// The digest of `parts`, each preceded by its length so that they cannot run
/// into each other.
fn digest(tag: &[u8], parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(tag);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    Digest(short)
}

/// What a version of a record has to have as its digest.
#[must_use]
pub fn record_digest(tenant: &Tenant, kind: Kind, key: &Key, body: &[u8]) -> Digest {
    digest(
        b"adjourn record 1",
        &[
            tenant.as_str().as_bytes(),
            &[kind as u8],
            key.as_bytes(),
            body,
        ],
    )
}

/// What a row of a log has to have as its digest.
#[must_use]
pub fn row_digest(
    tenant: &Tenant,
    log: LogId,
    class: RowClass,
    number: i64,
    body: &[u8],
) -> Digest {
    digest(
        b"adjourn row 1",
        &[
            tenant.as_str().as_bytes(),
            log.0.as_bytes(),
            &[class as u8],
            &number.to_le_bytes(),
            body,
        ],
    )
}

/// The running digest of a log's items after a row with digest `row`.
#[must_use]
pub fn log_chain(before: Digest, row: Digest) -> Digest {
    digest(b"adjourn log chain 1", &[&before.0, &row.0])
}

/// The feed's running digest after a change.
#[must_use]
pub fn feed_chain(
    before: Digest,
    revision: Revision,
    kind: Kind,
    key: &Key,
    record: Digest,
) -> Digest {
    digest(
        b"adjourn feed chain 1",
        &[
            &before.0,
            &revision.get().to_le_bytes(),
            &[kind as u8],
            key.as_bytes(),
            &record.0,
        ],
    )
}

/// The digest of a value for comparing it with others, wherever they are stored.
#[must_use]
pub fn content_digest(body: &[u8]) -> Digest {
    digest(b"adjourn content 1", &[body])
}

/// The version's body, if it is what was stored.
///
/// # Errors
///
/// [`Error::Corrupt`].
pub fn check_record(tenant: &Tenant, kind: Kind, key: &Key, version: &Version) -> Result<Bytes> {
    if record_digest(tenant, kind, key, &version.body) == version.digest {
        return Ok(version.body.clone());
    }
    Err(Error::Corrupt {
        kind: Corrupt::Record(kind),
        key: key.as_bytes().escape_ascii().to_string(),
        problem: format!("the digest of revision {} does not match", version.revision),
    })
}

/// The row's body, if it is what was stored.
///
/// # Errors
///
/// [`Error::Corrupt`].
pub fn check_row(tenant: &Tenant, log: LogId, class: RowClass, row: &Row) -> Result<Bytes> {
    if row_digest(tenant, log, class, row.number, &row.body) == row.digest {
        return Ok(row.body.clone());
    }
    Err(Error::Corrupt {
        kind: Corrupt::Log,
        key: log.0.to_string(),
        problem: format!("the digest of row {} does not match", row.number),
    })
}
