//! The embedded default: one SQLite file, in WAL mode, written by one thread.
//!
//! The writer runs whatever operations wait in one transaction, each behind a
//! savepoint, and commits once: one sync for the group. Reads go over connections
//! of their own, each on a snapshot, on the caller's thread, since a small read
//! costs less than handing it to another thread.

mod checkpoint;
mod errors;
mod reads;
mod schema;
mod writer;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tokio::sync::{mpsc, oneshot, watch};

use self::checkpoint::Checkpoints;
use self::errors::sort;
use self::reads::{NO_TENANT, SqliteReads};
use self::writer::{Job, Writer};
use super::poll::to_end;
use super::wake::Wake;
use super::{
    Abort, Boxed, Committed, Corrupt, ErasedOperation, ErasedQuery, Error, Identity, Result, Store,
};
use crate::domain::id::Tenant;
use crate::domain::revision::Revision;
use crate::domain::time::{Clock, SystemClock, Timestamp};

/// How many operations may wait for the writer before callers wait to hand theirs
/// over.
const QUEUE: usize = 1024;

/// The bytes in a page of a new database.
const PAGE_BYTES: u32 = 8192;

/// How long to wait for another program that has the file locked.
const BUSY: Duration = Duration::from_secs(5);

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Whether a commit reaches the disk before it is acknowledged. Only the test
    /// that proves that it must turns it off.
    pub sync: bool,
    /// The most bytes that the database file may take; absent means as many as the
    /// disk has.
    pub max_bytes: Option<u64>,
    /// Past so many bytes of write-ahead log the writer stops to move it into the
    /// database. From a quarter of it on, it is moved beside the writer.
    pub log_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            sync: true,
            max_bytes: None,
            log_bytes: 16 << 20,
        }
    }
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
    /// Connections that no read uses now; `None` once the store is closed.
    idle: Mutex<Option<Vec<Connection>>>,
    /// Set after a failed sync: what the disk holds is unknown until a restart.
    broken: AtomicBool,
    /// How many groups were committed.
    groups: AtomicU64,
    /// Held as long as the store is open: one server for each file.
    lock: Mutex<Option<File>>,
}

impl SqliteStore {
    /// Opens the database in the file `path`, and makes it if it is absent.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when another process has it open, or the file cannot
    /// be opened; [`Error::Internal`] when it is another program's, or its schema
    /// is newer than this program.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = resolve(path.as_ref())?;
        let lock = lock(&path)?;
        let mut connection = connect(
            &path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        )?;
        schema::check_owner(&connection)?;
        configure(&connection, options)?;
        let identity = schema::prepare(&mut connection)?;
        let shared = Arc::new(Shared {
            path,
            identity,
            clock: Arc::clone(&options.clock),
            wake: Wake::default(),
            idle: Mutex::new(Some(Vec::new())),
            broken: AtomicBool::new(false),
            groups: AtomicU64::new(0),
            lock: Mutex::new(Some(lock)),
        });
        let (jobs, queue) = mpsc::channel(QUEUE);
        let checkpoints = Checkpoints::start(&shared.path, options)?;
        let writer = Writer::new(connection, Arc::clone(&shared), checkpoints);
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

    /// How many groups were committed since the store was opened: one sync each.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.shared.groups.load(Ordering::Relaxed)
    }

    fn jobs(&self) -> Result<mpsc::Sender<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(closed)
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

fn broken() -> Error {
    Error::Unavailable("a sync has failed; restart the server".into())
}

/// The failure of a read that refuses nothing.
fn store_error(abort: Abort) -> Error {
    match abort {
        Abort::Store(error) => error,
        Abort::Refused(refusal) => Error::Internal(refusal.to_string()),
    }
}

/// The path without links and dots, so that one file has one lock, whatever the
/// working directory is later, and so that SQLite reads nothing into the name.
fn resolve(path: &Path) -> Result<PathBuf> {
    let unavailable =
        |error: std::io::Error| Error::Unavailable(format!("{}: {error}", path.display()));
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(|| unavailable(error))?;
            let directory = directory(path).canonicalize().map_err(unavailable)?;
            Ok(directory.join(name))
        }
        Err(error) => Err(unavailable(error)),
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
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

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(sort)?;
    connection.busy_timeout(BUSY).map_err(sort)?;
    steady_plans(&connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Keeps statements as they were prepared.
///
/// SQLite otherwise looks at the values bound to a statement with a LIMIT to plan
/// it, and so plans it anew for each run: half of the time of a small read.
fn steady_plans(connection: &Connection) -> Result<()> {
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(sort)
        .map(drop)
}

/// Sets up the connection that writes.
fn configure(connection: &Connection, options: &Options) -> Result<()> {
    connection
        .execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES};"))
        .map_err(sort)?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(sort)?;
    if mode != "wal" {
        // As on file systems without shared memory: SQLite says so in passing.
        return Err(Error::Unavailable(format!(
            "the file system does not allow a write-ahead log (journal mode {mode}); put the database on a local disk"
        )));
    }
    set_sync(connection, options.sync)?;
    connection
        .execute_batch(
            // A savepoint keeps the pages it may have to restore in memory: in a
            // file they cost each group more than the commit itself.
            "PRAGMA temp_store = MEMORY;
             PRAGMA wal_autocheckpoint = 0;",
        )
        .map_err(sort)?;
    if let Some(bytes) = options.max_bytes {
        let pages = bytes / u64::from(PAGE_BYTES);
        connection
            .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
            .map_err(sort)?;
    }
    Ok(())
}

/// Says whether what the connection writes reaches the disk before it goes on.
fn set_sync(connection: &Connection, sync: bool) -> Result<()> {
    let synchronous = if sync { "FULL" } else { "OFF" };
    connection
        .execute_batch(&format!(
            // On macOS a plain sync does not reach the disk; elsewhere this does
            // nothing.
            "PRAGMA fullfsync = ON;
             PRAGMA checkpoint_fullfsync = ON;
             PRAGMA synchronous = {synchronous};"
        ))
        .map_err(sort)
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
            .as_mut()
            .ok_or_else(closed)?
            .pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
        };
        run(&connection, "BEGIN").map_err(sort)?;
        let outcome = read(&mut connection);
        // A connection that cannot end its transaction is not used again.
        if run(&connection, "COMMIT").is_ok()
            && let Some(idle) = &mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner)
        {
            idle.push(connection);
        }
        outcome
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// Runs a statement that is needed again and again.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
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
        let names = names.map_err(store_error)?;
        names
            .into_iter()
            .map(|name| {
                Tenant::try_from(name).map_err(|error| Error::Corrupt {
                    kind: Corrupt::Database,
                    key: "tenants".into(),
                    problem: error.to_string(),
                })
            })
            .collect()
    }

    async fn ready(&self) -> Result<()> {
        if self.shared.is_broken() {
            return Err(broken());
        }
        if self.jobs()?.is_closed() {
            return Err(Error::Unavailable("the writer stopped".into()));
        }
        let read = self.shared.reading(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT count(*) FROM meta")
                .map_err(sort)?;
            Ok(statement
                .query_row([], |row| row.get::<_, i64>(0))
                .map_err(sort)?)
        });
        read.map(drop).map_err(store_error)
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
            .take();
        // Only now may another server have the file.
        self.shared
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}
