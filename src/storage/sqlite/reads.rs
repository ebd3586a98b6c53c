//! Reading a tenant's rows over one connection.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Params, Row as SqlRow, types::Type};

use super::errors::{sort, sort_at};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, Origin, RowClass};
use crate::domain::revision::Revision;
use crate::domain::time::Timestamp;
use crate::storage::{
    Corrupt, Direction, FeedEntry, Index, IndexHit, Key, Kind, Mark, Reads, RequestRecord, Result,
    Row, Stretch, Version,
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

/// What to call a value that cannot be what it should be.
type Place = (Corrupt, String);

impl SqliteReads<'_> {
    fn one<T>(
        &mut self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&SqlRow<'_>) -> rusqlite::Result<T>,
        place: impl FnOnce() -> Place,
    ) -> Result<Option<T>> {
        let mut statement = self.connection.prepare_cached(sql).map_err(sort)?;
        statement
            .query_row(params, read)
            .optional()
            .map_err(|error| sort_at(error, place))
    }

    fn many<T>(
        &mut self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&SqlRow<'_>) -> rusqlite::Result<T>,
        place: impl FnOnce() -> Place,
    ) -> Result<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql).map_err(sort)?;
        statement
            .query_map(params, read)
            .and_then(Iterator::collect)
            .map_err(|error| sort_at(error, place))
    }
}

/// A stretch as `from <= x < to`; without `to` it has no end.
#[derive(Debug)]
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

impl Bounds {
    /// The end as a parameter. A blob compares with text as the greater one, and
    /// with null not at all, so what has no end leaves the comparison out.
    fn upper(&self, column: &str, parameter: &str) -> String {
        match self.to {
            Some(_) => format!("AND {column} < {parameter}"),
            // Names the parameter, so that there are as many with and without.
            None => format!("AND {parameter} IS NULL"),
        }
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
    bytes
        .try_into()
        .map(Digest)
        .map_err(|_| not_stored(column, Type::Blob, "is no digest"))
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
            REVISION,
            [self.number],
            |row| row.get(0),
            || (Corrupt::Database, "revision".into()),
        )?;
        Ok(newest.map_or(Revision::ZERO, Revision::new))
    }

    async fn record(&mut self, kind: Kind, key: &Key, at: Revision) -> Result<Option<Version>> {
        self.one(
            RECORD,
            (self.number, kind as u8, key.as_bytes(), at.get()),
            version,
            || (Corrupt::Record(kind), readable(key)),
        )
    }

    async fn records(
        &mut self,
        kind: Kind,
        stretch: &Stretch,
        at: Revision,
    ) -> Result<Vec<(Key, Version)>> {
        let bounds = bounds(stretch);
        self.many(
            &records_sql(&bounds, stretch.direction),
            (
                self.number,
                kind as u8,
                &*bounds.from,
                bounds.to.as_deref(),
                at.get(),
                limit(stretch.limit),
            ),
            |row| Ok((Key::from_bytes(blob(row, 4)?), version(row)?)),
            || {
                (
                    Corrupt::Record(kind),
                    stretch.prefix.escape_ascii().to_string(),
                )
            },
        )
    }

    async fn index(&mut self, index: Index, stretch: &Stretch) -> Result<Vec<IndexHit>> {
        let bounds = bounds(stretch);
        self.many(
            &index_sql(&bounds, stretch.direction),
            (
                self.number,
                index as u8,
                &*bounds.from,
                bounds.to.as_deref(),
                limit(stretch.limit),
            ),
            |row| {
                Ok(IndexHit {
                    place: blob(row, 0)?,
                    key: Key::from_bytes(blob(row, 1)?),
                })
            },
            || (Corrupt::Database, format!("{index:?}")),
        )
    }

    async fn rows(&mut self, log: LogId, class: RowClass, from: i64, to: i64) -> Result<Vec<Row>> {
        self.many(
            ROWS,
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
            || (Corrupt::Log, log.0.to_string()),
        )
    }

    async fn marks(&mut self, log: LogId, from: i64, to: i64) -> Result<Vec<Mark>> {
        self.many(
            MARKS,
            (
                self.number,
                log.0.as_bytes(),
                RowClass::Item as u8,
                from,
                to,
            ),
            |row| {
                Ok(Mark {
                    number: row.get(0)?,
                    mark: digest(row, 1)?,
                    chain: digest(row, 2)?,
                })
            },
            || (Corrupt::Log, log.0.to_string()),
        )
    }

    async fn feed(
        &mut self,
        kinds: &[Kind],
        after: Revision,
        until: Revision,
        most: usize,
    ) -> Result<Vec<FeedEntry>> {
        let sql = feed_sql(kinds);
        let place = || (Corrupt::Database, "feed".into());
        let mut found = self.many(
            &sql,
            (self.number, after.get(), until.get(), limit(most)),
            feed_entry,
            place,
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
                place,
            )?);
        }
        Ok(found)
    }

    async fn chain(&mut self, revision: Revision) -> Result<Option<Digest>> {
        self.one(
            CHAIN,
            (self.number, revision.get()),
            |row| digest(row, 0),
            || (Corrupt::Database, format!("feed at {revision}")),
        )
    }

    async fn request(&mut self, key: &Key) -> Result<Option<RequestRecord>> {
        self.one(
            REQUEST,
            (self.number, key.as_bytes()),
            |row| {
                Ok(RequestRecord {
                    revision: Revision::new(row.get(0)?),
                    at: Timestamp::from_micros(row.get(1)?),
                    body: blob(row, 2)?,
                    digest: digest(row, 3)?,
                })
            },
            || (Corrupt::Request, readable(key)),
        )
    }
}

fn readable(key: &Key) -> String {
    key.as_bytes().escape_ascii().to_string()
}

const REVISION: &str =
    "SELECT revision FROM versions WHERE tenant = ?1 ORDER BY revision DESC LIMIT 1";

const RECORD: &str = "SELECT revision, at, body, digest FROM versions
     WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND revision <= ?4
     ORDER BY revision DESC LIMIT 1";

const ROWS: &str = "SELECT number, at, body, digest, origin, chain, mark FROM log_rows
     WHERE tenant = ?1 AND log = ?2 AND class = ?3 AND number BETWEEN ?4 AND ?5
     ORDER BY number";

const MARKS: &str = "SELECT number, mark, chain FROM log_rows
     WHERE tenant = ?1 AND log = ?2 AND class = ?3 AND number BETWEEN ?4 AND ?5
     ORDER BY number";

const CHAIN: &str =
    "SELECT chain FROM versions WHERE tenant = ?1 AND revision = ?2 ORDER BY id DESC LIMIT 1";

const REQUEST: &str =
    "SELECT revision, at, body, digest FROM requests WHERE tenant = ?1 AND key = ?2";

fn records_sql(bounds: &Bounds, direction: Direction) -> String {
    // The bodies of the versions that are not wanted are not touched.
    format!(
        "SELECT revision, at, body, digest, key FROM versions v
         WHERE tenant = ?1 AND kind = ?2 AND key >= ?3 {} AND revision = (
             SELECT max(w.revision) FROM versions w
             WHERE w.tenant = ?1 AND w.kind = ?2 AND w.key = v.key AND w.revision <= ?5
         )
         ORDER BY key {} LIMIT ?6",
        bounds.upper("key", "?4"),
        order(direction)
    )
}

fn index_sql(bounds: &Bounds, direction: Direction) -> String {
    let order = order(direction);
    format!(
        "SELECT place, key FROM places
         WHERE tenant = ?1 AND ordering = ?2 AND place >= ?3 {}
         ORDER BY place {order}, key {order} LIMIT ?5",
        bounds.upper("place", "?4")
    )
}

fn feed_sql(kinds: &[Kind]) -> String {
    let numbers: Vec<String> = kinds.iter().map(|kind| (*kind as u8).to_string()).collect();
    // Without the hint SQLite may collect all records of the kinds and sort them.
    format!(
        "SELECT revision, at, body, digest, kind, key, chain
         FROM versions INDEXED BY versions_by_revision
         WHERE tenant = ?1 AND revision > ?2 AND revision <= ?3 AND kind IN ({})
         ORDER BY revision, id LIMIT ?4",
        numbers.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    fn stretch(prefix: &[u8], after: Option<&[u8]>, direction: Direction) -> Stretch {
        Stretch {
            prefix: Bytes::copy_from_slice(prefix),
            after: after.map(Bytes::copy_from_slice),
            direction,
            limit: 10,
        }
    }

    #[test]
    fn a_prefix_ends_before_the_next_byte() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(b"ac".as_slice()));
        assert_eq!(prefix_end(b"a\xff\xff").as_deref(), Some(b"b".as_slice()));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    #[test]
    fn what_comes_after_is_within_the_prefix() {
        let forward = bounds(&stretch(b"b", Some(b"a"), Direction::Forward));
        assert_eq!(
            (&*forward.from, forward.to.as_deref()),
            (&b"b"[..], Some(&b"c"[..]))
        );
        let backward = bounds(&stretch(b"b", Some(b"x"), Direction::Backward));
        assert_eq!(
            (&*backward.from, backward.to.as_deref()),
            (&b"b"[..], Some(&b"c"[..]))
        );
        let backward = bounds(&stretch(b"\xff", Some(b"\xff\x01"), Direction::Backward));
        assert_eq!(backward.to.as_deref(), Some(&b"\xff\x01"[..]));
    }

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        super::super::steady_plans(&connection).unwrap();
        connection
            .execute_batch(include_str!("migrations/0001_initial.sql"))
            .unwrap();
        connection
    }

    fn statements() -> Vec<String> {
        let mut statements = vec![
            REVISION.to_owned(),
            RECORD.to_owned(),
            ROWS.to_owned(),
            MARKS.to_owned(),
            CHAIN.to_owned(),
            REQUEST.to_owned(),
            feed_sql(&Kind::ALL),
            feed_sql(&[Kind::Interrupt]),
        ];
        for direction in [Direction::Forward, Direction::Backward] {
            for prefix in [b"a".as_slice(), b""] {
                let bounds = bounds(&stretch(prefix, None, direction));
                statements.push(records_sql(&bounds, direction));
                statements.push(index_sql(&bounds, direction));
            }
        }
        statements
    }

    /// No statement sorts, or goes through more than it has to, whatever the
    /// planner thinks of the tables.
    #[test]
    fn every_statement_follows_an_index() {
        let connection = database();
        for sql in statements() {
            let mut explain = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let plan: Vec<String> = explain
                .raw_query()
                .mapped(|row| row.get(3))
                .collect::<rusqlite::Result<_>>()
                .unwrap();
            let plan = plan.join("; ");
            assert!(
                plan.contains("SEARCH") && !plan.contains("SCAN") && !plan.contains("TEMP"),
                "{plan}:\n{sql}"
            );
        }
    }

    #[test]
    fn no_statement_is_planned_anew_for_other_values() {
        let connection = database();
        for sql in statements() {
            let mut statement = connection.prepare(&sql).unwrap();
            for run in 1..5_i64 {
                for parameter in 1..=statement.parameter_count() {
                    statement.raw_bind_parameter(parameter, run).unwrap();
                }
                while statement.raw_query().next().unwrap().is_some() {}
            }
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
        }
    }
}
