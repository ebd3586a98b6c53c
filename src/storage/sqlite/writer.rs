//! The one thread that writes.
//!
//! It takes all jobs that wait, runs each behind a savepoint in one transaction,
//! commits once, and only then answers: nobody hears of a result, a refusal or a
//! replay that a crash could still undo.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::errors::{is_outcome_unknown, sort};
use super::reads::SqliteReads;
use super::{Shared, tenant_state};
use crate::domain::id::Tenant;
use crate::domain::log::Digest;
use crate::domain::revision::Revision;
use crate::domain::time::Timestamp;
use crate::storage::poll::to_end;
use crate::storage::{
    Abort, Boxed, Changes, Committed, ErasedOperation, Error, Reads as _, Result, integrity,
};

/// The most operations in one transaction.
const GROUP: usize = 64;

/// Past so many bytes of log the writer itself moves it into the database, since a
/// log that readers keep busy grows without end.
const WAL_BYTES: u64 = 16 << 20;

/// An operation that waits, and who wants to know.
pub(super) struct Job {
    pub(super) tenant: Tenant,
    pub(super) operation: Arc<dyn ErasedOperation>,
    pub(super) reply: oneshot::Sender<Result<Committed<Boxed>, Abort>>,
}

/// Where a tenant's history ends.
#[derive(Clone, Copy, Debug)]
struct End {
    number: i64,
    revision: Revision,
    chain: Digest,
    at: Timestamp,
}

/// Owns the connection that writes.
pub(super) struct Writer {
    connection: Connection,
    shared: Arc<Shared>,
    /// Ends of the tenants that were written to lately, as of the last commit.
    ends: HashMap<Tenant, End>,
    wal: std::path::PathBuf,
    /// Set after a failed sync: what the disk holds is unknown until a restart.
    broken: bool,
}

/// What came of a member of a group.
type Outcome = Result<Committed<Boxed>, Abort>;

impl Writer {
    pub(super) fn new(connection: Connection, shared: Arc<Shared>) -> Result<Self> {
        let mut wal = shared.path.as_os_str().to_owned();
        wal.push("-wal");
        Ok(Self {
            connection,
            shared,
            ends: HashMap::new(),
            wal: wal.into(),
            broken: false,
        })
    }

    /// Runs jobs until nobody can send any more.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut group = Vec::with_capacity(GROUP);
        while queue.blocking_recv_many(&mut group, GROUP) > 0 {
            // Whoever has stopped waiting before the start wants nothing stored.
            group.retain(|job| !job.reply.is_closed());
            self.commit(std::mem::take(&mut group));
            self.shrink_wal();
        }
        // The next start then reads no log.
        if let Err(error) = self
            .connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        {
            tracing::warn!(%error, "the write-ahead log was not moved into the database");
        }
    }

    /// Runs a group and answers its members.
    fn commit(&mut self, group: Vec<Job>) {
        if group.is_empty() {
            return;
        }
        let mut outcomes = self.attempt(&group);
        if outcomes.is_none() && group.len() > 1 {
            // Something undid the whole transaction. One by one, only the guilty
            // fails.
            outcomes = Some(group.iter().map(|job| self.alone(job)).collect());
        }
        let outcomes = outcomes.unwrap_or_default().into_iter();
        for (job, outcome) in group.into_iter().zip(outcomes) {
            if let Ok(committed) = &outcome {
                self.shared.wake.committed(&job.tenant, committed.revision);
            }
            // Whoever has stopped waiting meanwhile can ask with the request id.
            let _ = job.reply.send(outcome);
        }
    }

    /// Runs one job in a transaction of its own.
    fn alone(&mut self, job: &Job) -> Outcome {
        self.attempt(std::slice::from_ref(job))
            .and_then(|mut outcomes| outcomes.pop())
            .unwrap_or_else(|| Err(Error::Unavailable("the transaction was undone".into()).into()))
    }

    /// Runs jobs in one transaction. `None` when it was undone as a whole and the
    /// members should be tried alone.
    fn attempt(&mut self, group: &[Job]) -> Option<Vec<Outcome>> {
        if self.broken {
            let refuse =
                || Err(Error::Unavailable("a sync has failed; restart the server".into()).into());
            return Some(group.iter().map(|_| refuse()).collect());
        }
        if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
            return Some(same_for_all(group, || sort_ref(&error)));
        }
        let mut ends = HashMap::new();
        let mut outcomes = Vec::with_capacity(group.len());
        for job in group {
            outcomes.push(self.member(job, &mut ends));
            // A full disk undoes the whole transaction, not just the statement.
            if self.connection.is_autocommit() {
                return if group.len() > 1 {
                    None
                } else {
                    Some(outcomes)
                };
            }
        }
        match self.connection.execute_batch("COMMIT") {
            Ok(()) => {
                self.ends.extend(ends);
                Some(outcomes)
            }
            Err(error) => {
                let undone = self.connection.is_autocommit()
                    || self.connection.execute_batch("ROLLBACK").is_ok();
                if is_outcome_unknown(&error) {
                    self.broken = true;
                    tracing::error!(%error, "a commit did not reach the disk; no further write is taken");
                    return Some(same_for_all(group, || {
                        Error::OutcomeUnknown(error.to_string())
                    }));
                }
                if undone && group.len() > 1 {
                    None
                } else {
                    Some(same_for_all(group, || sort_ref(&error)))
                }
            }
        }
    }

    /// Runs one member of a group, behind a savepoint.
    fn member(&mut self, job: &Job, ends: &mut HashMap<Tenant, End>) -> Outcome {
        let mut end = match ends.get(&job.tenant).or_else(|| self.ends.get(&job.tenant)) {
            Some(end) => *end,
            None => self.find_end(&job.tenant)?,
        };
        let now = self.shared.clock.now().max(end.at);
        let mut reads = SqliteReads {
            connection: &mut self.connection,
            tenant: &job.tenant,
            number: end.number,
            now,
        };
        let (changes, output) = to_end(job.operation.run(&mut reads))?;
        if changes.is_empty() {
            return Ok(Committed {
                revision: end.revision,
                at: now,
                output,
            });
        }
        self.connection
            .execute_batch("SAVEPOINT member")
            .map_err(sort)?;
        match apply(&self.connection, &changes, &job.tenant, &mut end, now) {
            Ok(()) => {
                self.connection
                    .execute_batch("RELEASE member")
                    .map_err(sort)?;
                ends.insert(job.tenant.clone(), end);
                Ok(Committed {
                    revision: end.revision,
                    at: now,
                    output,
                })
            }
            Err(error) => {
                if !self.connection.is_autocommit() {
                    self.connection
                        .execute_batch("ROLLBACK TO member; RELEASE member")
                        .map_err(sort)?;
                }
                Err(error.into())
            }
        }
    }

    fn find_end(&mut self, tenant: &Tenant) -> Result<End> {
        let (number, at) = tenant_state(&self.connection, tenant)?;
        let mut reads = SqliteReads {
            connection: &mut self.connection,
            tenant,
            number,
            now: at,
        };
        let (revision, chain) = to_end(async {
            let revision = reads.revision().await?;
            Ok((revision, reads.chain(revision).await?))
        })
        .map_err(|abort| match abort {
            Abort::Store(error) => error,
            Abort::Refused(refusal) => Error::Internal(refusal.to_string()),
        })?;
        Ok(End {
            number,
            revision,
            chain: chain.unwrap_or_default(),
            at,
        })
    }

    /// Moves the log into the database, at the cost of a pause for writers only
    /// when readers have kept it from being moved.
    fn shrink_wal(&mut self) {
        let bytes = std::fs::metadata(&self.wal).map_or(0, |metadata| metadata.len());
        if bytes < WAL_BYTES {
            return;
        }
        if let Err(error) = self
            .connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        {
            tracing::warn!(%error, bytes, "the write-ahead log was not moved into the database");
        }
    }
}

/// The same failure for every member.
fn same_for_all(group: &[Job], error: impl Fn() -> Error) -> Vec<Outcome> {
    group.iter().map(|_| Err(error().into())).collect()
}

/// [`sort`] for an error that several members share.
fn sort_ref(error: &rusqlite::Error) -> Error {
    match error.sqlite_error() {
        Some(code) => sort(rusqlite::Error::SqliteFailure(
            *code,
            Some(error.to_string()),
        )),
        None => Error::Internal(error.to_string()),
    }
}

/// Stores what an operation returned.
fn apply(
    connection: &Connection,
    changes: &Changes,
    tenant: &Tenant,
    end: &mut End,
    now: Timestamp,
) -> Result<()> {
    if changes.puts.is_empty() {
        return Err(Error::Internal("a commit has to change a record".into()));
    }
    if end.number == super::NO_TENANT {
        let mut statement =
            connection.prepare_cached("INSERT INTO tenants (name) VALUES (?1) ON CONFLICT DO UPDATE SET name = name RETURNING id").map_err(sort)?;
        end.number = statement
            .query_row([tenant.as_str()], |row| row.get(0))
            .map_err(sort)?;
    }
    end.revision = end.revision.next();
    end.at = now;
    let (number, revision, at) = (end.number, end.revision.get(), now.as_micros());
    let execute = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> Result<()> {
        connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(params))
            .map_err(sort)
            .map(drop)
    };
    for row in &changes.appends {
        execute(
            "INSERT INTO log_rows (tenant, log, class, number, origin, at, body, digest, chain, mark)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            &[
                &number,
                &row.log.0.as_bytes(),
                &(row.class as u8),
                &row.number,
                &(row.origin as u8),
                &at,
                &&*row.body,
                &row.digest.0,
                &row.chain.0,
                &row.mark.0,
            ],
        )?;
    }
    for put in &changes.puts {
        let key = put.key.as_bytes();
        end.chain = integrity::feed_chain(end.chain, end.revision, put.kind, &put.key, put.digest);
        for entry in &put.unindex {
            execute(
                "DELETE FROM places WHERE tenant = ?1 AND ordering = ?2 AND place = ?3 AND key = ?4",
                &[&number, &(entry.index as u8), &&*entry.place, &key],
            )?;
        }
        for entry in &put.index {
            execute(
                "INSERT INTO places (tenant, ordering, place, key) VALUES (?1, ?2, ?3, ?4)",
                &[&number, &(entry.index as u8), &&*entry.place, &key],
            )?;
        }
        execute(
            "INSERT INTO versions (tenant, kind, key, revision, at, body, digest, chain)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            &[
                &number,
                &(put.kind as u8),
                &key,
                &revision,
                &at,
                &&*put.body,
                &put.digest.0,
                &end.chain.0,
            ],
        )?;
    }
    if let Some(request) = &changes.request {
        execute(
            "INSERT OR REPLACE INTO requests (tenant, key, revision, at, body) VALUES (?1, ?2, ?3, ?4, ?5)",
            &[
                &number,
                &request.key.as_bytes(),
                &revision,
                &at,
                &&*request.body,
            ],
        )?;
    }
    Ok(())
}
