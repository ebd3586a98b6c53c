//! Digests of what is stored, so that corrupt is never mistaken for stored.
//!
//! Each is bound to the tenant and the place it is stored at: a row that was moved
//! to another tenant or key does not pass for one that was written there.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Corrupt, Error, FeedEntry, Key, Kind, RequestRecord, Result, Row, Version};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, Origin, RowClass};
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
    origin: Origin,
    body: &[u8],
) -> Digest {
    digest(
        b"adjourn row 1",
        &[
            tenant.as_str().as_bytes(),
            log.0.as_bytes(),
            &[class as u8],
            &number.to_le_bytes(),
            &[origin as u8],
            body,
        ],
    )
}

/// What the record of a request has to have as its digest.
#[must_use]
pub fn request_digest(tenant: &Tenant, key: &Key, body: &[u8]) -> Digest {
    digest(
        b"adjourn request 1",
        &[tenant.as_str().as_bytes(), key.as_bytes(), body],
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
    if row_digest(tenant, log, class, row.number, row.origin, &row.body) == row.digest {
        return Ok(row.body.clone());
    }
    Err(Error::Corrupt {
        kind: Corrupt::Log,
        key: log.0.to_string(),
        problem: format!("the digest of row {} does not match", row.number),
    })
}

/// The body of a request's record, if it is what was stored.
///
/// # Errors
///
/// [`Error::Corrupt`].
pub fn check_request(tenant: &Tenant, key: &Key, record: &RequestRecord) -> Result<Bytes> {
    if request_digest(tenant, key, &record.body) == record.digest {
        return Ok(record.body.clone());
    }
    Err(Error::Corrupt {
        kind: Corrupt::Request,
        key: key.as_bytes().escape_ascii().to_string(),
        problem: "the digest does not match".into(),
    })
}

/// Follows the feed's hash chain through `entries`, which are of all kinds and
/// come right after the commit whose chain is `before`, and answers where it ends.
///
/// # Errors
///
/// [`Error::Corrupt`] at the first entry that is not what was stored there.
pub fn check_feed(tenant: &Tenant, before: Digest, entries: &[FeedEntry]) -> Result<Digest> {
    entries.iter().try_fold(before, |chain, entry| {
        let FeedEntry {
            kind, key, version, ..
        } = entry;
        check_record(tenant, *kind, key, version)?;
        let chain = feed_chain(chain, version.revision, *kind, key, version.digest);
        if chain == entry.chain {
            return Ok(chain);
        }
        Err(Error::Corrupt {
            kind: Corrupt::Record(*kind),
            key: key.as_bytes().escape_ascii().to_string(),
            problem: format!("the feed's chain does not match at {}", version.revision),
        })
    })
}
