//! The embedded default: one SQLite file, in WAL mode, written by one thread.
//!
//! The writer runs whatever operations wait in one transaction, each behind a
//! savepoint, and commits once: one sync for the group. Reads go over connections
//! of their own, each on a snapshot, on the caller's thread, since a small read
//! costs less than handing it to another thread.

mod errors;
mod reads;
mod schema;
mod writer;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tokio::sync::{mpsc, oneshot, watch};

use self::errors::sort;
use self::reads::{NO_TENANT, SqliteReads};
use self::writer::{Job, Writer};
use super::poll::to_end;
use super::wake::Wake;
use super::{
    Abort, Boxed, Committed, ErasedOperation, ErasedQuery, Error, Identity, Result, Store,
};
use crate::domain::id::Tenant;
use crate::domain::revision::Revision;
use crate::domain::time::{Clock, Timestamp};

/// How many operations may wait for the writer before callers wait to hand theirs
/// over.
const QUEUE: usize = 1024;

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Whether a commit reaches the disk before it is acknowledged. Only the test
    /// that proves that it must turns it off.
    pub sync: bool,
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    shared: Arc<Shared>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What readers and the writer share.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    identity: Identity,
    clock: Arc<dyn Clock>,
    wake: Wake,
    /// Connections that no read uses now.
    idle: Mutex<Vec<Connection>>,
    /// Held as long as the store is open: one server for each file.
    _lock: File,
}

impl SqliteStore {
    /// Opens the database in the file `path`, and makes it if it is absent.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when another process has it open, or the file cannot
    /// be opened; [`Error::Internal`] when its schema is newer than this program.
    pub fn open(path: impl Into<PathBuf>, options: &Options) -> Result<Self> {
        let path = path.into();
        let lock = lock(&path)?;
        let mut connection = connect(
            &path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        )?;
        let synchronous = if options.sync { "FULL" } else { "OFF" };
        connection
            .execute_batch(&format!(
                "PRAGMA page_size = 8192;
                 PRAGMA journal_mode = WAL;
                 PRAGMA synchronous = {synchronous};
                 PRAGMA wal_autocheckpoint = 0;"
            ))
            .map_err(sort)?;
        let identity = schema::prepare(&mut connection)?;
        if options.sync {
            sync_directory(&path)?;
        }
        let shared = Arc::new(Shared {
            path,
            identity,
            clock: Arc::clone(&options.clock),
            wake: Wake::default(),
            idle: Mutex::default(),
            _lock: lock,
        });
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = Writer::new(connection, Arc::clone(&shared))?;
        let writer = std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || writer.run(queue))
            .map_err(|error| Error::Unavailable(format!("cannot start the writer: {error}")))?;
        Ok(Self {
            shared,
            jobs: Mutex::new(Some(jobs)),
            writer: Mutex::new(Some(writer)),
        })
    }

    fn jobs(&self) -> Result<mpsc::Sender<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(closed)
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

/// Takes the lock that keeps other servers from the file.
fn lock(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let unavailable =
        |problem: String| Error::Unavailable(format!("{}: {problem}", name.display()));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(|error| unavailable(error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(unavailable(
            "another server has this database open; stop it, or use another file".into(),
        )),
        Err(TryLockError::Error(error)) => Err(unavailable(error.to_string())),
    }
}

/// Makes the entries of the directory durable: the files themselves are SQLite's.
fn sync_directory(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| Error::Unavailable(format!("{}: {error}", directory.display())))
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(sort)?;
    connection
        .busy_timeout(Duration::from_secs(5))
        .map_err(sort)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

impl Shared {
    /// Lends a connection for a read, and takes it back.
    fn reading<T>(
        &self,
        read: impl FnOnce(&mut Connection) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
        };
        connection.execute_batch("BEGIN").map_err(sort)?;
        let outcome = read(&mut connection);
        // A connection that cannot end its transaction is not used again.
        if connection.execute_batch("COMMIT").is_ok() {
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
        }
        outcome
    }
}

/// A tenant's number and the time of its last commit.
fn tenant_state(connection: &Connection, tenant: &Tenant) -> Result<(i64, Timestamp)> {
    let mut statement = connection
        .prepare_cached(
            "SELECT t.id, coalesce((SELECT v.at FROM versions v WHERE v.tenant = t.id ORDER BY v.revision DESC LIMIT 1), 0)
             FROM tenants t WHERE t.name = ?1",
        )
        .map_err(sort)?;
    let found = statement
        .query_row([tenant.as_str()], |row| {
            Ok((row.get(0)?, Timestamp::from_micros(row.get(1)?)))
        })
        .optional()
        .map_err(sort)?;
    Ok(found.unwrap_or((NO_TENANT, Timestamp::default())))
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    async fn execute(
        &self,
        tenant: &Tenant,
        operation: Arc<dyn ErasedOperation>,
    ) -> Result<Committed<Boxed>, Abort> {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            tenant: tenant.clone(),
            operation,
            reply,
        };
        self.jobs()?.send(job).await.map_err(|_| closed())?;
        // The writer answers every job it takes, or has gone down with it.
        answer
            .await
            .map_err(|_| Error::OutcomeUnknown("the writer stopped".into()))?
    }

    async fn inspect(&self, tenant: &Tenant, query: &dyn ErasedQuery) -> Result<Boxed, Abort> {
        self.jobs()?;
        self.shared.reading(|connection| {
            let (number, last) = tenant_state(connection, tenant)?;
            let now = self.shared.clock.now().max(last);
            to_end(query.run(&mut SqliteReads {
                connection,
                tenant,
                number,
                now,
            }))
        })
    }

    fn commits(&self, tenant: &Tenant) -> watch::Receiver<Revision> {
        self.shared.wake.subscribe(tenant)
    }

    async fn tenants(&self) -> Result<Vec<Tenant>> {
        let names = self.shared.reading(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT name FROM tenants ORDER BY name")
                .map_err(sort)?;
            let names = statement
                .query_map([], |row| row.get::<_, String>(0))
                .map_err(sort)?;
            Ok(names.collect::<rusqlite::Result<Vec<_>>>().map_err(sort)?)
        });
        let names = names.map_err(|abort| match abort {
            Abort::Store(error) => error,
            Abort::Refused(refusal) => Error::Internal(refusal.to_string()),
        })?;
        names
            .into_iter()
            .map(|name| {
                Tenant::try_from(name)
                    .map_err(|error| Error::Internal(format!("a stored tenant: {error}")))
            })
            .collect()
    }

    async fn ready(&self) -> Result<()> {
        self.tenants().await.map(drop)
    }

    async fn close(&self) {
        // Without senders the writer finishes what it has and ends.
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(writer) = writer {
            // A writer that panicked has nothing left to finish.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        self.shared
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
