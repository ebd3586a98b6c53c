//! Reading a tenant's rows over one connection.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Params, Row as SqlRow, types::Type};

use super::errors::sort;
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, Origin, RowClass};
use crate::domain::revision::Revision;
use crate::domain::time::Timestamp;
use crate::storage::{
    Direction, FeedEntry, Index, IndexHit, Key, Kind, Mark, Reads, RequestRecord, Result, Row,
    Stretch, Version,
};

/// One tenant's data over one connection, in whatever transaction that is in.
pub(super) struct SqliteReads<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) tenant: &'a Tenant,
    /// The tenant's number; [`NO_TENANT`] when it has no data.
    pub(super) number: i64,
    pub(super) now: Timestamp,
}

/// The number of a tenant that has no rows.
pub(super) const NO_TENANT: i64 = -1;

impl fmt::Debug for SqliteReads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteReads")
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

impl SqliteReads<'_> {
    fn one<T>(
        &mut self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&SqlRow<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.connection.prepare_cached(sql).map_err(sort)?;
        statement.query_row(params, read).optional().map_err(sort)
    }

    fn many<T>(
        &mut self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&SqlRow<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql).map_err(sort)?;
        let rows = statement.query_map(params, read).map_err(sort)?;
        rows.collect::<rusqlite::Result<_>>().map_err(sort)
    }
}

/// The bounds of a stretch: from, to (both left out of it when `exclusive`).
struct Bounds {
    from: Bytes,
    to: Option<Bytes>,
}

/// The first bytes that nothing with this prefix reaches; `None` when there are
/// none.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end.into())
}

/// A stretch as `from <= x < to`.
fn bounds(stretch: &Stretch) -> Bounds {
    let (mut from, mut to) = (stretch.prefix.clone(), prefix_end(&stretch.prefix));
    if let Some(after) = &stretch.after {
        match stretch.direction {
            Direction::Forward => {
                // The next one after `after` is `after` and a zero byte.
                let mut next = after.to_vec();
                next.push(0);
                from = from.max(next.into());
            }
            Direction::Backward => {
                to = Some(to.map_or_else(|| after.clone(), |to| to.min(after.clone())));
            }
        }
    }
    Bounds { from, to }
}

/// More than any key: used where a stretch has no end.
const NO_END: [u8; 1040] = [u8::MAX; 1040];

impl Bounds {
    fn to(&self) -> &[u8] {
        self.to.as_deref().unwrap_or(&NO_END)
    }
}

fn order(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "ASC",
        Direction::Backward => "DESC",
    }
}

fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn blob(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::from(row.get::<_, Vec<u8>>(column)?))
}

/// Why a stored value cannot be what it should be.
fn not_stored(column: usize, kind: Type, problem: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, problem.into())
}

fn digest(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Digest> {
    let bytes = row
        .get_ref(column)?
        .as_blob()
        .map_err(|_| not_stored(column, Type::Blob, "is no digest"))?;
    // A digest of another length matches nothing, and so shows as corrupt.
    Ok(bytes.try_into().map(Digest).unwrap_or_default())
}

fn kind(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Kind> {
    Kind::from_number(row.get(column)?)
        .ok_or_else(|| not_stored(column, Type::Integer, "is no kind of record"))
}

fn version(row: &SqlRow<'_>) -> rusqlite::Result<Version> {
    Ok(Version {
        revision: Revision::new(row.get(0)?),
        at: Timestamp::from_micros(row.get(1)?),
        body: blob(row, 2)?,
        digest: digest(row, 3)?,
    })
}

fn feed_entry(row: &SqlRow<'_>) -> rusqlite::Result<FeedEntry> {
    Ok(FeedEntry {
        version: version(row)?,
        kind: kind(row, 4)?,
        key: Key::from_bytes(blob(row, 5)?),
        chain: digest(row, 6)?,
    })
}

fn origin(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Origin> {
    match row.get::<_, u8>(column)? {
        1 => Ok(Origin::Said),
        2 => Ok(Origin::Edit),
        3 => Ok(Origin::Summary),
        4 => Ok(Origin::Restore),
        _ => Err(not_stored(column, Type::Integer, "is no origin")),
    }
}

#[async_trait]
impl Reads for SqliteReads<'_> {
    fn tenant(&self) -> &Tenant {
        self.tenant
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    async fn revision(&mut self) -> Result<Revision> {
        let newest = self.one(
            "SELECT revision FROM versions WHERE tenant = ?1 ORDER BY revision DESC LIMIT 1",
            [self.number],
            |row| row.get(0),
        )?;
        Ok(newest.map_or(Revision::ZERO, Revision::new))
    }

    async fn record(&mut self, kind: Kind, key: &Key, at: Revision) -> Result<Option<Version>> {
        self.one(
            "SELECT revision, at, body, digest FROM versions
             WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND revision <= ?4
             ORDER BY revision DESC LIMIT 1",
            (self.number, kind as u8, key.as_bytes(), at.get()),
            version,
        )
    }

    async fn records(
        &mut self,
        kind: Kind,
        stretch: &Stretch,
        at: Revision,
    ) -> Result<Vec<(Key, Version)>> {
        let bounds = bounds(stretch);
        // With max(), SQLite takes the other columns from the row that has it.
        let sql = format!(
            "SELECT max(revision), at, body, digest, key FROM versions
             WHERE tenant = ?1 AND kind = ?2 AND key >= ?3 AND key < ?4 AND revision <= ?5
             GROUP BY key ORDER BY key {} LIMIT ?6",
            order(stretch.direction)
        );
        self.many(
            &sql,
            (
                self.number,
                kind as u8,
                &*bounds.from,
                bounds.to(),
                at.get(),
                limit(stretch.limit),
            ),
            |row| Ok((Key::from_bytes(blob(row, 4)?), version(row)?)),
        )
    }

    async fn index(&mut self, index: Index, stretch: &Stretch) -> Result<Vec<IndexHit>> {
        let bounds = bounds(stretch);
        let order = order(stretch.direction);
        let sql = format!(
            "SELECT place, key FROM places
             WHERE tenant = ?1 AND ordering = ?2 AND place >= ?3 AND place < ?4
             ORDER BY place {order}, key {order} LIMIT ?5"
        );
        self.many(
            &sql,
            (
                self.number,
                index as u8,
                &*bounds.from,
                bounds.to(),
                limit(stretch.limit),
            ),
            |row| {
                Ok(IndexHit {
                    place: blob(row, 0)?,
                    key: Key::from_bytes(blob(row, 1)?),
                })
            },
        )
    }

    async fn rows(&mut self, log: LogId, class: RowClass, from: i64, to: i64) -> Result<Vec<Row>> {
        self.many(
            "SELECT number, at, body, digest, origin, chain, mark FROM log_rows
             WHERE tenant = ?1 AND log = ?2 AND class = ?3 AND number BETWEEN ?4 AND ?5
             ORDER BY number",
            (self.number, log.0.as_bytes(), class as u8, from, to),
            |row| {
                Ok(Row {
                    number: row.get(0)?,
                    at: Timestamp::from_micros(row.get(1)?),
                    body: blob(row, 2)?,
                    digest: digest(row, 3)?,
                    origin: origin(row, 4)?,
                    chain: digest(row, 5)?,
                    mark: digest(row, 6)?,
                })
            },
        )
    }

    async fn marks(&mut self, log: LogId, from: i64, to: i64) -> Result<Vec<Mark>> {
        self.many(
            "SELECT number, mark, chain FROM log_rows
             WHERE tenant = ?1 AND log = ?2 AND class = 1 AND number BETWEEN ?3 AND ?4
             ORDER BY number",
            (self.number, log.0.as_bytes(), from, to),
            |row| {
                Ok(Mark {
                    number: row.get(0)?,
                    mark: digest(row, 1)?,
                    chain: digest(row, 2)?,
                })
            },
        )
    }

    async fn feed(
        &mut self,
        kinds: &[Kind],
        after: Revision,
        until: Revision,
        most: usize,
    ) -> Result<Vec<FeedEntry>> {
        let numbers: Vec<String> = kinds.iter().map(|kind| (*kind as u8).to_string()).collect();
        let sql = format!(
            "SELECT revision, at, body, digest, kind, key, chain FROM versions
             WHERE tenant = ?1 AND revision > ?2 AND revision <= ?3 AND kind IN ({})
             ORDER BY revision, id LIMIT ?4",
            numbers.join(", ")
        );
        let mut found = self.many(
            &sql,
            (self.number, after.get(), until.get(), limit(most)),
            feed_entry,
        )?;
        // Never part of a commit: read the last one whole.
        if found.len() == most
            && let Some(last) = found.last().map(|entry| entry.version.revision)
        {
            found.retain(|entry| entry.version.revision < last);
            found.extend(self.many(
                &sql,
                (self.number, last.get() - 1, last.get(), i64::MAX),
                feed_entry,
            )?);
        }
        Ok(found)
    }

    async fn chain(&mut self, revision: Revision) -> Result<Option<Digest>> {
        self.one(
            "SELECT chain FROM versions WHERE tenant = ?1 AND revision = ?2 ORDER BY id DESC LIMIT 1",
            (self.number, revision.get()),
            |row| digest(row, 0),
        )
    }

    async fn request(&mut self, key: &Key) -> Result<Option<RequestRecord>> {
        self.one(
            "SELECT revision, at, body FROM requests WHERE tenant = ?1 AND key = ?2",
            (self.number, key.as_bytes()),
            |row| {
                Ok(RequestRecord {
                    revision: Revision::new(row.get(0)?),
                    at: Timestamp::from_micros(row.get(1)?),
                    body: blob(row, 2)?,
                })
            },
        )
    }
}
