//! What the SQLite store costs beside what SQLite itself costs, in one run on one
//! machine: `cargo bench --bench storage`.
//!
//! Ratios count, not numbers. Each is the median of several rounds in which the
//! store and its bare counterpart take turns on the same disk.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a measurement that cannot be made has failed, and its numbers are its product"
)]

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adjourn::domain::id::Tenant;
use adjourn::domain::log::{Head, LogId, Origin};
use adjourn::domain::message::{Content, Item, Message, Role};
use adjourn::domain::revision::{Revision, Stamp};
use adjourn::storage::sqlite::{Options, SqliteStore};
use adjourn::storage::typed::{self, ChangeSet, EncodedItem, Loaded};
use adjourn::storage::{
    Abort, Changes, Entity, Index, IndexEntry, Key, Kind, Operation, Query, Reads, Result, Store,
};
use async_trait::async_trait;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use uuid::Uuid;

const ROUNDS: usize = 5;
const CALLERS: usize = 64;
const APPENDS: usize = 25_600;
const BODY: usize = 1024;

/// What a session is to the store: a small record with a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Account {
    name: String,
    head: Head,
    etag: Stamp,
    saved: i64,
}

impl Entity for Account {
    const KIND: Kind = Kind::Session;

    fn key(&self) -> Key {
        Key::of(&[self.name.as_bytes()])
    }

    fn resolve(&mut self, stored: Revision) {
        self.etag.resolve(stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        let place = [&self.saved.to_be_bytes(), self.name.as_bytes()].concat();
        vec![IndexEntry {
            index: Index::SessionSaved,
            place: place.into(),
        }]
    }
}

#[derive(Debug)]
struct Append {
    account: String,
    log: LogId,
    request: Uuid,
    item: EncodedItem,
}

#[async_trait]
impl Operation for Append {
    type Output = i64;

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, i64), Abort> {
        let request = Key::of(&[self.request.as_bytes(), b"principal", b"Append"]);
        assert!(typed::request(reads, &request).await?.is_none());
        let key = Key::of(&[self.account.as_bytes()]);
        let mut account = typed::load::<Account>(reads, &key)
            .await?
            .unwrap_or_else(|| {
                Loaded::fresh(Account {
                    name: self.account.clone(),
                    head: Head::new(self.log),
                    etag: Stamp::THIS_COMMIT,
                    saved: 0,
                })
            });
        let mut changes = ChangeSet::new(reads.tenant());
        changes.append_item(&mut account.value.head, Origin::Said, &self.item);
        account.value.saved = reads.now().as_micros();
        account.value.etag = Stamp::THIS_COMMIT;
        changes.update(&account)?;
        changes.record_request(request, vec![b'x'; 120].into());
        Ok((changes.finish(), account.value.head.last_seq))
    }
}

#[derive(Debug)]
struct ReadAccount(&'static str);

#[async_trait]
impl Query for ReadAccount {
    type Output = Option<Account>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<Account>, Abort> {
        let key = Key::of(&[self.0.as_bytes()]);
        let account = typed::load::<Account>(reads, &key).await?;
        Ok(account.map(|account| account.value))
    }
}

#[derive(Debug)]
struct ReadLast(&'static str, u64);

#[async_trait]
impl Query for ReadLast {
    type Output = usize;

    async fn run(&self, reads: &mut dyn Reads) -> Result<usize, Abort> {
        let key = Key::of(&[self.0.as_bytes()]);
        let account = typed::load::<Account>(reads, &key).await?.unwrap().value;
        let history = account.head.history();
        let from = history.len().saturating_sub(self.1);
        let items = typed::items(reads, &history, from, history.len()).await?;
        Ok(items.len())
    }
}

fn item() -> EncodedItem {
    EncodedItem::new(&Item::Message(Message {
        id: None,
        role: Role::User,
        content: Content::Text("x".repeat(BODY)),
        name: None,
        tool_call_id: None,
        tool_name: None,
        pinned: None,
        created_at: None,
        extra_json: None,
    }))
    .unwrap()
}

fn tenant() -> Tenant {
    Tenant::try_from("tenant".to_owned()).unwrap()
}

/// An id whose order is that of its making, as clients make them.
fn request_id(number: usize) -> Uuid {
    Uuid::from_u128((number as u128) << 64 | 0x5eed)
}

fn open(path: &Path) -> (Arc<SqliteStore>, Arc<dyn Store>) {
    let store = Arc::new(SqliteStore::open(path, &Options::default()).unwrap());
    (Arc::clone(&store), store)
}

/// Appends of many callers at once: how many a second, and groups for each append.
async fn store_appends(path: &Path) -> (f64, f64) {
    let (sqlite, store) = open(path);
    let item = item();
    let begin = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (store, item) = (Arc::clone(&store), item.clone());
        calls.spawn(async move {
            let tenant = tenant();
            for round in 0..APPENDS / CALLERS {
                let append = Append {
                    account: format!("session-{caller:04}"),
                    log: LogId(Uuid::from_u128(caller as u128)),
                    request: request_id(round * CALLERS + caller),
                    item: item.clone(),
                };
                store.transact(&tenant, append).await.unwrap();
            }
        });
    }
    calls.join_all().await;
    let rate = APPENDS as f64 / begin.elapsed().as_secs_f64();
    let groups = sqlite.groups() as f64 / APPENDS as f64;
    store.close().await;
    (rate, groups)
}

/// The same rows by the same statements in a bare loop, a transaction for each
/// group. SQLite moves its log itself, as it does by default.
fn bare_appends(db: &Connection, group: usize, appends: usize) -> f64 {
    let (body, receipt, record) = (vec![b'x'; BODY + 60], vec![b'x'; 120], vec![b'x'; 300]);
    let digest = [7_u8; 16];
    let find = |sql: &str, key: &[u8]| {
        let mut statement = db.prepare_cached(sql).unwrap();
        let mut rows = statement.query(params![key]).unwrap();
        let row = rows.next().unwrap();
        row.map(|row| row.get::<_, Vec<u8>>(0).unwrap())
    };
    let run = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
        db.prepare_cached(sql).unwrap().execute(params).unwrap();
    };
    let begin = Instant::now();
    for number in 0..appends {
        let member = number % group;
        if member == 0 {
            run("BEGIN IMMEDIATE", params![]);
        }
        let request = request_id(number);
        let request = [request.as_bytes().as_slice(), b"\0principal\0Append"].concat();
        let key = format!("session-{member:04}");
        let log = Uuid::from_u128(member as u128);
        let place = |saved: i64| [&saved.to_be_bytes(), key.as_bytes()].concat();
        let now = i64::try_from(number).unwrap();
        let before = now - i64::try_from(group).unwrap();
        find(
            "SELECT body FROM requests WHERE tenant = 1 AND key = ?1",
            &request,
        );
        find(
            "SELECT body FROM versions WHERE tenant = 1 AND kind = 1 AND key = ?1
             ORDER BY revision DESC LIMIT 1",
            key.as_bytes(),
        );
        run("SAVEPOINT member", params![]);
        run(
            "INSERT INTO log_rows (tenant, log, class, number, origin, at, body, digest, chain, mark)
             VALUES (1, ?1, 1, ?2, 1, ?2, ?3, ?4, ?4, ?4)",
            params![log.as_bytes(), now, body, digest],
        );
        run(
            "DELETE FROM places WHERE tenant = 1 AND ordering = 1 AND place = ?1 AND key = ?2",
            params![place(before), key.as_bytes()],
        );
        run(
            "INSERT INTO places (tenant, ordering, place, key) VALUES (1, 1, ?1, ?2)
             ON CONFLICT DO NOTHING",
            params![place(now), key.as_bytes()],
        );
        run(
            "INSERT INTO versions (tenant, kind, key, revision, at, body, digest, chain)
             VALUES (1, 1, ?1, ?2, ?2, ?3, ?4, ?4)",
            params![key.as_bytes(), now, record, digest],
        );
        run(
            "INSERT OR REPLACE INTO requests (tenant, key, revision, at, body, digest)
             VALUES (1, ?1, ?2, ?2, ?3, ?4)",
            params![request, now, receipt, digest],
        );
        run("RELEASE member", params![]);
        if member + 1 == group || number + 1 == appends {
            run("COMMIT", params![]);
        }
    }
    appends as f64 / begin.elapsed().as_secs_f64()
}

/// A database with the store's schema, and no store.
fn bare(runtime: &Runtime, path: &Path) -> Connection {
    let (_, store) = open(path);
    runtime.block_on(store.close());
    let db = Connection::open(path).unwrap();
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .unwrap();
    db.set_prepared_statement_cache_capacity(64);
    db.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA temp_store = MEMORY;
         INSERT INTO tenants (name) VALUES ('tenant');",
    )
    .unwrap();
    db
}

fn sorted(mut latencies: Vec<Duration>) -> Vec<Duration> {
    latencies.sort_unstable();
    latencies
}

/// In microseconds.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1e6
}

/// What a sync of a small overwrite costs here.
fn sync_latencies(dir: &Path) -> Vec<Duration> {
    let mut file = File::create(dir.join("sync")).unwrap();
    file.write_all(&vec![0; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let latencies = (0..400).map(|at| {
        file.seek(SeekFrom::Start(at % 100 * 8192)).unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let begin = Instant::now();
        file.sync_data().unwrap();
        begin.elapsed()
    });
    sorted(latencies.collect())
}

/// What one caller waits for each append, in the order of the appends.
async fn one_caller(store: &Arc<dyn Store>, appends: usize) -> Vec<Duration> {
    let (tenant, item) = (tenant(), item());
    let mut latencies = Vec::with_capacity(appends);
    for number in 0..appends {
        let append = Append {
            account: "single".into(),
            log: LogId(Uuid::from_u128(1)),
            request: request_id(number),
            item: item.clone(),
        };
        let begin = Instant::now();
        store.transact(&tenant, append).await.unwrap();
        latencies.push(begin.elapsed());
    }
    latencies
}

async fn reads<Q: Query>(store: &Arc<dyn Store>, query: impl Fn() -> Q) -> Vec<Duration> {
    let tenant = tenant();
    let mut latencies = Vec::new();
    for _ in 0..5_000 {
        let begin = Instant::now();
        store.read(&tenant, query()).await.unwrap();
        latencies.push(begin.elapsed());
    }
    sorted(latencies)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn many_callers(runtime: &Runtime) {
    let (mut grouped, mut alone) = (Vec::new(), Vec::new());
    let (mut store, mut groups, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let db = bare(runtime, &dir.path().join("alone.db"));
        alone.push(bare_appends(&db, 1, 2_000));
        let db = bare(runtime, &dir.path().join("grouped.db"));
        let bare_rate = bare_appends(&db, CALLERS, APPENDS);
        let (rate, each) = runtime.block_on(store_appends(&dir.path().join("store.db")));
        let ratio = rate / bare_rate;
        println!("  round {round}: bare {bare_rate:.0} /s, store {rate:.0} /s, ratio {ratio:.2}");
        grouped.push(bare_rate);
        store.push(rate);
        groups.push(each);
        ratios.push(ratio);
    }
    let (grouped, alone, store) = (median(grouped), median(alone), median(store));
    println!("durable appends of 1 KB, medians");
    println!("  bare loop, a transaction each       {alone:>9.0} /s");
    println!("  bare loop, groups of {CALLERS}             {grouped:>9.0} /s");
    println!("  store, {CALLERS} callers                   {store:>9.0} /s");
    println!(
        "  store / bare groups                 {:>9.2}",
        median(ratios)
    );
    println!(
        "  store / a transaction each          {:>9.2}",
        store / alone
    );
    println!(
        "  groups, with a sync each, an append {:>9.4}    1 / 16 is 0.0625",
        median(groups)
    );
}

fn one_caller_and_reads(runtime: &Runtime) {
    const APPENDS: usize = 10_000;
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_, store) = open(&dir.path().join("store.db"));
    let sync = percentile(&sync_latencies(dir.path()), 50);
    let appends = runtime.block_on(one_caller(&store, APPENDS));
    let tenth = APPENDS / 10;
    let first = percentile(&sorted(appends[..tenth].to_vec()), 50);
    let last = percentile(&sorted(appends[APPENDS - tenth..].to_vec()), 50);
    let all = sorted(appends);
    let (p50, p99) = (percentile(&all, 50), percentile(&all, 99));
    println!("one caller");
    println!("  fdatasync p50                       {sync:>9.0} us");
    println!("  append p50                          {p50:>9.0} us");
    println!("  append p99                          {p99:>9.0} us");
    println!(
        "  last tenth of {APPENDS} / first tenth   {:>9.2}",
        last / first
    );
    let record = runtime.block_on(reads(&store, || ReadAccount("single")));
    let items = runtime.block_on(reads(&store, || ReadLast("single", 50)));
    let (record, items) = (percentile(&record, 50), percentile(&items, 50));
    println!("  read of a record p50                {record:>9.1} us");
    println!("  read of the last 50 items p50       {items:>9.1} us");
    runtime.block_on(store.close());
}

fn main() {
    let runtime = Runtime::new().unwrap();
    many_callers(&runtime);
    one_caller_and_reads(&runtime);
}
