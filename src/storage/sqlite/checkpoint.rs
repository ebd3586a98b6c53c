//! Moves the write-ahead log into the database, beside the writer.
//!
//! A thread with a connection of its own runs PASSIVE checkpoints, which wait for
//! nobody and hold up nobody, so most of the moving costs writers nothing. Under
//! load that alone lets the log grow without end, since it starts anew only when
//! all of it was moved: past a bound the writer itself moves the rest between two
//! groups, when nothing is added.

use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::errors::sort;
use super::{BUSY, Options, PAGE_BYTES, connect, set_sync};
use crate::storage::{Error, Result};

/// How long the writer waits for readers and for a checkpoint that runs, before it
/// goes on and lets the log grow.
const PATIENCE: Duration = Duration::from_millis(100);

/// Keeps the log short. Belongs to the writer.
#[derive(Debug)]
pub(super) struct Checkpoints {
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
    /// After so many new pages of log a PASSIVE checkpoint is due.
    passive_pages: u64,
    /// Past so many pages of log the writer moves the rest itself.
    restart_pages: u64,
    /// How long the log may grow before the next PASSIVE checkpoint, in pages.
    next_passive: u64,
    /// How long the log may grow before the writer moves it, in pages.
    next_restart: u64,
}

/// What SQLite says of the log.
#[derive(Clone, Copy, Debug)]
struct Log {
    /// Whether a reader, or another checkpoint, kept a part from being moved.
    busy: bool,
    /// Its length, in pages.
    pages: u64,
}

impl Checkpoints {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the file cannot be opened, or no thread started.
    pub(super) fn start(path: &Path, options: &Options) -> Result<Self> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        set_sync(&connection, options.sync)?;
        let restart_pages = (options.log_bytes / u64::from(PAGE_BYTES)).max(4);
        let passive_pages = restart_pages / 4;
        // One call waiting is enough: it covers all that was written before.
        let (wake, calls) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("sqlite-checkpoint".into())
            .spawn(move || {
                while calls.recv().is_ok() {
                    if let Err(error) = checkpoint(&connection, "PASSIVE") {
                        tracing::warn!(%error, "the write-ahead log was not moved into the database");
                    }
                }
            })
            .map_err(|error| {
                Error::Unavailable(format!("cannot start the checkpoints: {error}"))
            })?;
        Ok(Self {
            wake,
            thread,
            passive_pages,
            restart_pages,
            next_passive: passive_pages,
            next_restart: restart_pages,
        })
    }

    /// Does what is due after a group, with the writer's connection.
    pub(super) fn after_group(&mut self, writer: &Connection) {
        // NOOP only tells the length.
        let pages = match checkpoint(writer, "NOOP") {
            Ok(log) => log.pages,
            Err(error) => {
                tracing::warn!(%error, "the length of the write-ahead log is unknown");
                return;
            }
        };
        if pages < self.passive_pages {
            // It has started anew.
            self.next_passive = self.passive_pages;
            self.next_restart = self.restart_pages;
        }
        if pages >= self.next_restart {
            self.restart(writer);
        } else if pages >= self.next_passive {
            // A full channel means that one is due already.
            let _ = self.wake.try_send(());
            self.next_passive = pages + self.passive_pages;
        }
    }

    fn restart(&mut self, writer: &Connection) {
        let outcome = writer
            .busy_timeout(PATIENCE)
            .map_err(sort)
            .and_then(|()| checkpoint(writer, "RESTART"));
        let restored = writer.busy_timeout(BUSY);
        match outcome {
            Ok(log) if log.busy => {
                tracing::debug!(log.pages, "readers hold the write-ahead log");
                // Not after each group again: every try stops all writers.
                self.next_restart = log.pages + self.passive_pages;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the write-ahead log was not moved into the database");
                self.next_restart += self.passive_pages;
            }
        }
        if let Err(error) = restored {
            tracing::warn!(%error, "the wait for locks was not set");
        }
    }

    /// Ends the thread, then moves all of the log, so that the next start reads
    /// none.
    pub(super) fn finish(self, writer: &Connection) {
        let Self { wake, thread, .. } = self;
        drop(wake);
        if thread.join().is_err() {
            tracing::warn!("the checkpoint thread panicked");
        }
        match checkpoint(writer, "TRUNCATE") {
            Ok(log) if log.busy => {
                tracing::debug!("readers hold the write-ahead log; the next start reads it");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the write-ahead log was not moved into the database");
            }
        }
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> Result<Log> {
    let mut statement = connection
        .prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))
        .map_err(sort)?;
    statement
        .query_row([], |row| {
            Ok(Log {
                busy: row.get(0)?,
                // -1 when there is no log.
                pages: row.get::<_, i64>(1)?.max(0).unsigned_abs(),
            })
        })
        .map_err(sort)
}
