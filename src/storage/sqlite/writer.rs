//! The one thread that writes.
//!
//! It takes all jobs that wait, runs each behind a savepoint in one transaction,
//! commits once, and only then answers: nobody hears of a result, a refusal or a
//! replay that a crash could still undo.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::Checkpoints;
use super::errors::{is_outcome_unknown, sort, sort_ref};
use super::reads::SqliteReads;
use super::{Shared, run, store_error, tenant_state};
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

/// The most tenants whose ends are remembered.
const ENDS: usize = 4096;

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
    checkpoints: Checkpoints,
    /// Ends of the tenants that were written to lately, as of the last commit.
    ends: HashMap<Tenant, End>,
}

/// What came of a member of a group.
type Outcome = Result<Committed<Boxed>, Abort>;

/// The transaction is gone, and with it all that the members before had done.
#[derive(Debug)]
struct Undone(Abort);

impl Writer {
    pub(super) fn new(
        connection: Connection,
        shared: Arc<Shared>,
        checkpoints: Checkpoints,
    ) -> Self {
        Self {
            connection,
            shared,
            checkpoints,
            ends: HashMap::new(),
        }
    }

    /// Runs jobs until nobody can send any more.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut group = Vec::with_capacity(GROUP);
        while queue.blocking_recv_many(&mut group, GROUP) > 0 {
            // Whoever has stopped waiting before the start wants nothing stored.
            group.retain(|job| !job.reply.is_closed());
            if group.is_empty() {
                continue;
            }
            self.commit(&mut group);
            if !self.shared.is_broken() {
                self.checkpoints.after_group(&self.connection);
            }
        }
        self.checkpoints.finish(&self.connection);
    }

    /// Runs a group and answers its members.
    fn commit(&mut self, group: &mut Vec<Job>) {
        let outcomes = match self.attempt(group) {
            Ok(outcomes) => outcomes,
            // Something undid the whole transaction. One by one, only the guilty
            // fails.
            Err(Undone(abort)) if group.len() > 1 => {
                tracing::debug!(%abort, members = group.len(), "a group was undone");
                group.iter().map(|job| self.alone(job)).collect()
            }
            Err(Undone(abort)) => vec![Err(abort)],
        };
        for (job, outcome) in group.drain(..).zip(outcomes) {
            if let Ok(committed) = &outcome {
                self.shared.wake.committed(&job.tenant, committed.revision);
            }
            // Whoever has stopped waiting meanwhile can ask with the request id.
            let _ = job.reply.send(outcome);
        }
    }

    /// Runs one job in a transaction of its own.
    fn alone(&mut self, job: &Job) -> Outcome {
        match self.attempt(std::slice::from_ref(job)) {
            Ok(mut outcomes) => outcomes.pop().unwrap_or_else(|| Err(undone())),
            Err(Undone(abort)) => Err(abort),
        }
    }

    /// Runs jobs in one transaction.
    fn attempt(&mut self, group: &[Job]) -> Result<Vec<Outcome>, Undone> {
        if self.shared.is_broken() {
            return Ok(same_for_all(group, super::broken));
        }
        if let Err(error) = run(&self.connection, "BEGIN IMMEDIATE") {
            return Ok(same_for_all(group, || sort_ref(&error)));
        }
        let mut ends = HashMap::new();
        let mut outcomes = Vec::with_capacity(group.len());
        for job in group {
            let outcome = self.member(job, &mut ends);
            // A full disk undoes the whole transaction, not just the statement.
            let gone = self.connection.is_autocommit();
            match outcome {
                Ok(outcome) if !gone => outcomes.push(outcome),
                Ok(Err(abort)) | Err(Undone(abort)) => {
                    self.undo();
                    return Err(Undone(abort));
                }
                Ok(Ok(_)) => return Err(Undone(undone())),
            }
        }
        if ends.is_empty() {
            // Nothing to keep: all were refused, or changed nothing.
            self.undo();
            return Ok(outcomes);
        }
        match run(&self.connection, "COMMIT") {
            Ok(()) => {
                self.shared.groups.fetch_add(1, Ordering::Relaxed);
                if self.ends.len() > ENDS {
                    self.ends.clear();
                }
                self.ends.extend(ends);
                Ok(outcomes)
            }
            Err(error) => {
                self.undo();
                if is_outcome_unknown(&error) {
                    self.shared.broken.store(true, Ordering::Relaxed);
                    tracing::error!(%error, "a commit did not reach the disk; no further write is taken");
                    return Ok(same_for_all(group, || {
                        Error::OutcomeUnknown(error.to_string())
                    }));
                }
                Err(Undone(sort(error).into()))
            }
        }
    }

    /// Undoes the transaction, if it still stands.
    fn undo(&self) {
        if self.connection.is_autocommit() {
            return;
        }
        if let Err(error) = run(&self.connection, "ROLLBACK") {
            // The next COMMIT would keep what was refused.
            self.shared.broken.store(true, Ordering::Relaxed);
            tracing::error!(%error, "a transaction cannot be undone; no further write is taken");
        }
    }

    /// Runs one member of a group, behind a savepoint.
    fn member(&mut self, job: &Job, ends: &mut HashMap<Tenant, End>) -> Result<Outcome, Undone> {
        let end = match ends.get(&job.tenant).or_else(|| self.ends.get(&job.tenant)) {
            Some(end) => *end,
            None => match self.find_end(&job.tenant) {
                Ok(end) => end,
                Err(error) => return Ok(Err(error.into())),
            },
        };
        let now = self.shared.clock.now().max(end.at);
        let mut reads = SqliteReads {
            connection: &mut self.connection,
            tenant: &job.tenant,
            number: end.number,
            now,
        };
        let (changes, output) = match to_end(job.operation.run(&mut reads)) {
            Ok(done) => done,
            Err(abort) => return Ok(Err(abort)),
        };
        if self.connection.is_autocommit() {
            // The operation made nothing of it that a read failed and undid all.
            return Err(Undone(undone()));
        }
        if changes.is_empty() {
            return Ok(Ok(Committed {
                revision: end.revision,
                at: now,
                output,
            }));
        }
        Ok(match self.store(&changes, &job.tenant, end, now)? {
            Ok(end) => {
                ends.insert(job.tenant.clone(), end);
                Ok(Committed {
                    revision: end.revision,
                    at: now,
                    output,
                })
            }
            Err(error) => Err(error.into()),
        })
    }

    /// Stores what an operation returned, or nothing of it. The tenant's end is
    /// the new one only if this says so.
    fn store(
        &self,
        changes: &Changes,
        tenant: &Tenant,
        end: End,
        now: Timestamp,
    ) -> Result<Result<End>, Undone> {
        let gone = |error: rusqlite::Error| Undone(sort(error).into());
        run(&self.connection, "SAVEPOINT member").map_err(gone)?;
        let stored = apply(&self.connection, changes, tenant, end, now);
        if stored.is_err() {
            if self.connection.is_autocommit() {
                return Ok(stored);
            }
            run(&self.connection, "ROLLBACK TO member").map_err(gone)?;
        }
        run(&self.connection, "RELEASE member").map_err(gone)?;
        Ok(stored)
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
        .map_err(store_error)?;
        Ok(End {
            number,
            revision,
            chain: chain.unwrap_or_default(),
            at,
        })
    }
}

/// The same failure for every member.
fn same_for_all(group: &[Job], error: impl Fn() -> Error) -> Vec<Outcome> {
    group.iter().map(|_| Err(error().into())).collect()
}

/// What a member hears whose work was undone without a word of why.
fn undone() -> Abort {
    Error::Unavailable("the transaction was undone".into()).into()
}

/// Stores what an operation returned, and says where the tenant's history ends
/// with it.
fn apply(
    connection: &Connection,
    changes: &Changes,
    tenant: &Tenant,
    mut end: End,
    now: Timestamp,
) -> Result<End> {
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
                "INSERT INTO places (tenant, ordering, place, key) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING",
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
            "INSERT OR REPLACE INTO requests (tenant, key, revision, at, body, digest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            &[
                &number,
                &request.key.as_bytes(),
                &revision,
                &at,
                &&*request.body,
                &request.digest.0,
            ],
        )?;
    }
    Ok(end)
}
