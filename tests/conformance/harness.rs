//! How the suite gets at our backends.

use std::path::PathBuf;
use std::sync::Arc;

use adjourn::domain::id::Tenant;
use adjourn::domain::time::Clock;
use adjourn::storage::Store;
use adjourn::storage::conformance::{Durable, Harness, Place, Wound};
use adjourn::storage::memory::MemoryStore;
use adjourn::storage::sqlite::{Options, SqliteStore};
use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tempfile::TempDir;

#[derive(Debug)]
pub(crate) struct MemoryHarness;

#[async_trait]
impl Harness for MemoryHarness {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock).unwrap())
    }
}

/// A database file in a directory of its own.
#[derive(Debug)]
pub(crate) struct SqliteHarness {
    directory: TempDir,
}

impl SqliteHarness {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    /// The database without the store, which must be closed.
    pub(crate) fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    pub(crate) fn open_with(&self, options: &Options) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(self.path(), options).unwrap())
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        let options = Options {
            clock,
            ..Options::default()
        };
        self.open_with(&options)
    }
}

/// The triggers that stand in the way of damage.
const TRIGGERS: [&str; 2] = ["versions_are_written_once", "log_rows_are_written_once"];

#[async_trait]
impl Durable for SqliteHarness {
    async fn damage(&self, wound: Wound) {
        let db = self.raw();
        for trigger in TRIGGERS {
            db.execute_batch(&format!("DROP TRIGGER {trigger}"))
                .unwrap();
        }
        match wound {
            Wound::Flip(place) => {
                let Located { table, id } = Located::find(&db, &place);
                let mut body: Vec<u8> = db
                    .query_row(
                        &format!("SELECT body FROM {table} WHERE id = ?1"),
                        [id],
                        |row| row.get(0),
                    )
                    .unwrap();
                // A digit, if there is one: what is read then still makes sense.
                let last = |of: fn(&u8) -> bool| body.iter().rposition(of);
                let at = last(u8::is_ascii_digit).or_else(|| last(|_| true)).unwrap();
                body[at] ^= 1;
                let sql = format!("UPDATE {table} SET body = ?1 WHERE id = ?2");
                assert_eq!(db.execute(&sql, (body, id)).unwrap(), 1);
            }
            Wound::Move(from, to) => {
                let Located { table, id } = Located::find(&db, &from);
                let to = columns(&db, &to);
                let set: Vec<String> = to.iter().map(|(name, _)| format!("{name} = ?")).collect();
                let sql = format!("UPDATE {table} SET {} WHERE id = {id}", set.join(", "));
                let values = params_from_iter(to.into_iter().map(|(_, value)| value));
                assert_eq!(db.execute(&sql, values).unwrap(), 1);
            }
        }
    }
}

/// Where something is stored.
struct Located {
    table: &'static str,
    id: i64,
}

impl Located {
    fn find(db: &Connection, place: &Place) -> Self {
        let table = match place {
            Place::Record(..) => "versions",
            Place::Row(..) => "log_rows",
            Place::Request(..) => "requests",
        };
        let columns = columns(db, place);
        let names: Vec<String> = columns
            .iter()
            .map(|(name, _)| format!("{name} = ?"))
            .collect();
        let sql = format!("SELECT max(id) FROM {table} WHERE {}", names.join(" AND "));
        let values = params_from_iter(columns.into_iter().map(|(_, value)| value));
        let id = db.query_row(&sql, values, |row| row.get(0)).unwrap();
        Self { table, id }
    }
}

/// The columns that a place is known by.
fn columns(db: &Connection, place: &Place) -> Vec<(&'static str, Value)> {
    let tenant = |tenant: &Tenant| {
        let number: i64 = db
            .query_row(
                "SELECT id FROM tenants WHERE name = ?1",
                [tenant.as_str()],
                |row| row.get(0),
            )
            .unwrap();
        ("tenant", Value::Integer(number))
    };
    match place {
        Place::Record(of, kind, key) => vec![
            tenant(of),
            ("kind", Value::Integer(*kind as i64)),
            ("key", Value::Blob(key.as_bytes().to_vec())),
        ],
        Place::Row(of, log, class, number) => vec![
            tenant(of),
            ("log", Value::Blob(log.0.as_bytes().to_vec())),
            ("class", Value::Integer(*class as i64)),
            ("number", Value::Integer(*number)),
        ],
        Place::Request(of, key) => {
            vec![tenant(of), ("key", Value::Blob(key.as_bytes().to_vec()))]
        }
    }
}
