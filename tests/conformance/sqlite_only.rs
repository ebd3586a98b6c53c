//! What is particular to SQLite: groups, locks, files, and the ways they fail.

use std::fs;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use adjourn::domain::log::RowClass;
use adjourn::domain::revision::Revision;
use adjourn::storage::conformance::tools::{
    Hold, Increment, ReadNote, Write, check_feed, key, log, named, open, revision, tenant, text,
    write,
};
use adjourn::storage::sqlite::{Options, SqliteStore};
use adjourn::storage::{
    Abort, Changes, Corrupt, Error, Kind, Operation, Query, Reads, Result, Store,
};
use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::harness::SqliteHarness;

fn touch(name: &str) -> Write {
    Write::record(Kind::Session, &key(name), name)
}

/// A record of many bytes.
fn large(name: &str, bytes: usize) -> Write {
    Write::new().put(Kind::Session, &key(name), &vec![b'x'; bytes])
}

fn open_error(harness: &SqliteHarness) -> Error {
    SqliteStore::open(harness.path(), &Options::default()).unwrap_err()
}

/// How many commits the write-ahead log holds: frames that say how long the
/// database is after them.
fn commits_in_the_log(harness: &SqliteHarness) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24 + 8192;
    let mut wal = harness.path().into_os_string();
    wal.push("-wal");
    let log = fs::read(wal).unwrap();
    let frames = log.get(HEADER..).unwrap_or_default().chunks_exact(FRAME);
    frames.filter(|frame| frame[4..8] != [0; 4]).count()
}

/// Waits in its run until it is told to go on.
#[derive(Debug)]
struct Gate {
    begun: std::sync::Mutex<Option<oneshot::Sender<()>>>,
    go_on: std::sync::Mutex<mpsc::Receiver<()>>,
}

#[async_trait]
impl Operation for Gate {
    type Output = ();

    async fn run(&self, _reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        if let Some(begun) = self.begun.lock().unwrap().take() {
            begun.send(()).unwrap();
        }
        let _ = self
            .go_on
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(5));
        Ok((Changes::default(), ()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_wait_together_are_committed_together() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    write(&store, &tenant(), touch("first")).await;
    let before = commits_in_the_log(&harness);
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for number in 0..40 {
        let store = Arc::clone(&store);
        let commit = touch(&format!("m{number}"));
        calls.spawn(async move { store.transact(&named("many"), commit).await.unwrap() });
    }
    hold.release().await;
    calls.join_all().await;
    assert_eq!(commits_in_the_log(&harness) - before, 1);
    assert_eq!(revision(&store, &named("many")).await, Revision::new(40));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_that_changes_nothing_writes_nothing() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let tenant = tenant();
    write(&store, &tenant, touch("first")).await;
    let before = commits_in_the_log(&harness);
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for number in 0..9 {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        let commit = match number % 3 {
            0 => touch("a").refused(),
            1 => Write::new(),
            // This one writes, is refused by a constraint, and is undone.
            _ => touch("a").put(Kind::Session, &key("a"), b"twice"),
        };
        calls.spawn(async move { store.transact(&tenant, commit).await.is_ok() });
    }
    hold.release().await;
    let outcomes = calls.join_all().await;
    assert_eq!(outcomes.iter().filter(|ok| **ok).count(), 3);
    assert_eq!(commits_in_the_log(&harness), before);
    assert_eq!(revision(&store, &tenant).await, Revision::new(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_answered_before_the_commit_of_its_group() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let hold = Hold::on(&store).await;
    let mut early = Vec::new();
    for commit in [touch("a"), touch("b").refused(), Write::new()] {
        let store = Arc::clone(&store);
        early.push(tokio::spawn(async move {
            store.transact(&tenant(), commit).await.map(drop)
        }));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (begun, has_begun) = oneshot::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let gate = Gate {
        begun: std::sync::Mutex::new(Some(begun)),
        go_on: std::sync::Mutex::new(may_go_on),
    };
    let last = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.transact(&tenant(), gate).await.unwrap() })
    };
    hold.release().await;
    has_begun.await.unwrap();
    // The others have run, and what came of them could still be undone.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(early.iter().all(|call| !call.is_finished()));
    assert_eq!(text(&store, &tenant(), Kind::Session, "a").await, "(none)");
    go_on.send(()).unwrap();
    last.await.unwrap();
    let mut outcomes = Vec::new();
    for call in early {
        outcomes.push(call.await.unwrap().is_ok());
    }
    assert_eq!(outcomes, [true, false, true]);
    assert_eq!(text(&store, &tenant(), Kind::Session, "a").await, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn for_a_caller_that_stopped_waiting_nothing_is_begun() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let hold = Hold::on(&store).await;
    let mut calls = Vec::new();
    for number in 0..4 {
        let store = Arc::clone(&store);
        let commit = touch(&format!("m{number}"));
        calls.push(tokio::spawn(async move {
            store.transact(&tenant(), commit).await.map(drop)
        }));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    hold.release().await;
    write(&store, &tenant(), touch("after")).await;
    assert_eq!(revision(&store, &tenant()).await, Revision::new(1));
}

/// Awaits something that is no read.
#[derive(Debug)]
struct Dawdle;

#[async_trait]
impl Operation for Dawdle {
    type Output = ();

    async fn run(&self, _reads: &mut dyn Reads) -> Result<(Changes, ()), Abort> {
        tokio::task::yield_now().await;
        Ok((Changes::default(), ()))
    }
}

#[tokio::test]
async fn an_operation_that_awaits_anything_but_reads_is_a_fault() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let outcome = store.transact(&tenant(), Dawdle).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Internal(_)))),
        "{outcome:?}"
    );
    write(&store, &tenant(), touch("after")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_that_fills_the_disk_harms_no_other() {
    let harness = SqliteHarness::new();
    let store: Arc<dyn Store> = harness.open_with(&Options {
        max_bytes: Some(1 << 20),
        ..Options::default()
    });
    for round in 0..3 {
        let hold = Hold::on(&store).await;
        let mut calls = JoinSet::new();
        let mut greedy = Vec::new();
        for number in 0..9_u8 {
            let store = Arc::clone(&store);
            let name = format!("{round}-{number}");
            // Tenants that are new, too.
            let tenant = named(&format!("t{}", number % 3 + round));
            if number % 4 == 1 {
                // A full disk undoes a single statement, or the whole transaction,
                // depending on the statement.
                let commit = if number == 1 {
                    large(&name, 2 << 20)
                } else {
                    let body = "x".repeat(2 << 20);
                    touch(&name).row(log(number.into()), RowClass::Item, 1, &body)
                };
                greedy.push(tokio::spawn(async move {
                    store.transact(&tenant, commit).await.map(drop)
                }));
            } else {
                calls.spawn(async move { store.transact(&tenant, touch(&name)).await });
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        hold.release().await;
        for outcome in calls.join_all().await {
            outcome.unwrap();
        }
        for call in greedy {
            let outcome = call.await.unwrap();
            assert!(
                matches!(outcome, Err(Abort::Store(Error::Full(_)))),
                "{outcome:?}"
            );
        }
    }
    for tenant in store.tenants().await.unwrap() {
        check_feed(&store, &tenant).await;
    }
    // Room that is left can be used.
    write(&store, &tenant(), large("fits", 100_000)).await;
    store.ready().await.unwrap();
}

#[tokio::test]
async fn the_log_is_kept_short_under_load() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let mut wal = harness.path().into_os_string();
    wal.push("-wal");
    let mut longest = 0;
    for round in 0..40 {
        let mut calls = JoinSet::new();
        for caller in 0..8 {
            let store = Arc::clone(&store);
            let commit = large(&format!("{round}-{caller}"), 200_000);
            calls.spawn(async move { store.transact(&tenant(), commit).await.unwrap() });
        }
        calls.join_all().await;
        longest = longest.max(fs::metadata(&wal).unwrap().len());
    }
    // 64 MB were written.
    assert!(longest < 24 << 20, "{longest}");
    store.close().await;
    assert_eq!(fs::metadata(&wal).map_or(0, |log| log.len()), 0);
    let check: String = harness
        .raw()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn a_reader_that_stays_stops_no_writer() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    write(&store, &tenant(), touch("a")).await;
    let mut reader = harness.raw();
    let snapshot = reader.transaction().unwrap();
    let count = || -> i64 {
        snapshot
            .query_row("SELECT count(*) FROM versions", [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(count(), 1);
    let begin = std::time::Instant::now();
    for round in 0..200 {
        write(&store, &tenant(), large(&format!("{round}"), 200_000)).await;
    }
    // Now and then the writer waits for the reader, but not after each group.
    assert!(
        begin.elapsed() < Duration::from_secs(9),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(count(), 1);
}

#[tokio::test]
async fn a_second_server_is_refused() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let error = open_error(&harness);
    assert!(matches!(&error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("another server"), "{error}");
    // Nor by another name of the file.
    let link = harness.path().with_file_name("link.db");
    std::os::unix::fs::symlink(harness.path(), &link).unwrap();
    let error = SqliteStore::open(&link, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("another server"), "{error}");
    store.close().await;
    // Whoever still holds the closed store holds no lock.
    let next = open(&harness).await;
    write(&next, &tenant(), touch("a")).await;
}

#[tokio::test]
async fn a_program_that_locks_the_file_makes_writes_unavailable() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    write(&store, &tenant(), touch("a")).await;
    let other = harness.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let outcome = store.transact(&tenant(), touch("b")).await;
    assert!(
        matches!(outcome, Err(Abort::Store(Error::Unavailable(_)))),
        "{outcome:?}"
    );
    assert_eq!(text(&store, &tenant(), Kind::Session, "a").await, "a");
    other.execute_batch("ROLLBACK").unwrap();
    write(&store, &tenant(), touch("b")).await;
}

#[tokio::test]
async fn a_file_of_another_program_is_left_alone() {
    let harness = SqliteHarness::new();
    harness
        .raw()
        .execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
        .unwrap();
    let before = fs::read(harness.path()).unwrap();
    let error = open_error(&harness);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(fs::read(harness.path()).unwrap(), before);
    fs::write(
        harness.path(),
        "no database at all, but a text of some length".repeat(99),
    )
    .unwrap();
    assert!(matches!(
        open_error(&harness),
        Error::Corrupt {
            kind: Corrupt::Database,
            ..
        }
    ));
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let harness = SqliteHarness::new();
    open(&harness).await.close().await;
    harness
        .raw()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let error = open_error(&harness);
    assert!(error.to_string().contains("newer program"), "{error}");
}

#[tokio::test]
async fn a_place_that_is_not_there_is_unavailable() {
    let harness = SqliteHarness::new();
    for path in ["no/such/directory/store.db", "..", "/"] {
        let path = harness.path().with_file_name(path);
        let error = SqliteStore::open(&path, &Options::default()).unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_name_is_only_a_name() {
    let harness = SqliteHarness::new();
    for name in [":memory:", "file:x?mode=memory", "ä b.db"] {
        let path = harness.path().with_file_name(name);
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&path, &Options::default()).unwrap());
        write(&store, &tenant(), touch("a")).await;
        assert_eq!(text(&store, &tenant(), Kind::Session, "a").await, "a");
        store.close().await;
        assert!(fs::metadata(&path).unwrap().len() > 0);
    }
}

/// What SQLite says when it is asked to do what may not be done.
fn forbidden(db: &Connection, sql: &str) -> String {
    let error = db.execute_batch(sql).unwrap_err();
    assert_eq!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation),
        "{error}"
    );
    error.to_string()
}

#[tokio::test]
async fn the_database_itself_keeps_history_from_being_changed() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let commit = Write::record(Kind::TimelineEntry, &key("entry"), "what happened").row(
        log(1),
        RowClass::Item,
        1,
        "said",
    );
    write(&store, &tenant(), commit).await;
    store.close().await;
    let db = harness.raw();
    forbidden(&db, "UPDATE versions SET body = x'00' WHERE kind = 8");
    forbidden(&db, "UPDATE versions SET at = 0");
    forbidden(&db, "DELETE FROM versions WHERE kind = 8");
    forbidden(&db, "DELETE FROM versions");
    let again = "INTO versions (tenant, kind, key, revision, at, body, digest, chain)
                 SELECT tenant, kind, key, revision + 1, at, body, digest, chain FROM versions";
    forbidden(&db, &format!("INSERT {again}"));
    forbidden(&db, &format!("INSERT OR REPLACE {again}"));
    forbidden(
        &db,
        &format!("REPLACE {}", again.replace("revision + 1", "revision")),
    );
    forbidden(&db, "UPDATE log_rows SET body = x'00'");
    forbidden(&db, "UPDATE log_rows SET number = 2");
}

#[tokio::test]
async fn a_value_of_the_wrong_shape_is_corrupt_and_names_the_record() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    for name in ["a", "b"] {
        let increment = Increment {
            name: name.into(),
            meeting: None,
        };
        store.transact(&tenant(), increment).await.unwrap();
    }
    store.close().await;
    harness
        .raw()
        .execute_batch(
            "DROP TRIGGER versions_are_written_once;
             UPDATE versions SET digest = x'0102' WHERE key = x'61'",
        )
        .unwrap();
    let store = open(&harness).await;
    let outcome = store.read(&tenant(), ReadNote("a")).await;
    assert!(
        matches!(&outcome, Err(Abort::Store(Error::Corrupt {
            kind: Corrupt::Record(Kind::Session), key, ..
        })) if key == "a"),
        "{outcome:?}"
    );
    let note = store.read(&tenant(), ReadNote("b")).await.unwrap();
    assert_eq!(note.unwrap().count, 1);
}

/// The body of a record, unchecked.
#[derive(Debug)]
struct RawText(String);

#[async_trait]
impl Query for RawText {
    type Output = Option<String>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<String>, Abort> {
        let version = reads
            .record(Kind::Session, &key(&self.0), Revision::LATEST)
            .await?;
        Ok(version.map(|version| String::from_utf8(version.body.to_vec()).unwrap()))
    }
}

#[tokio::test]
async fn a_page_that_was_overwritten_is_corrupt_and_not_empty() {
    let harness = SqliteHarness::new();
    let store = open(&harness).await;
    let mut commit = Write::new();
    for number in 0..2_000 {
        let name = format!("{number:05}");
        commit = commit.put(Kind::Session, &key(&name), name.as_bytes());
    }
    write(&store, &tenant(), commit).await;
    store.close().await;
    let whole = fs::read(harness.path()).unwrap();
    let mut noticed = 0;
    for page in 1..whole.len() / 8192 {
        let mut damaged = whole.clone();
        damaged[page * 8192..(page + 1) * 8192].fill(0);
        fs::write(harness.path(), &damaged).unwrap();
        // Either all is as it was, or somebody says that it is not.
        let Ok(store) = SqliteStore::open(harness.path(), &Options::default()) else {
            noticed += 1;
            continue;
        };
        let store: Arc<dyn Store> = Arc::new(store);
        for number in [0, 700, 1_400, 1_999] {
            let name = format!("{number:05}");
            let outcome = store.read(&tenant(), RawText(name.clone())).await;
            match outcome {
                Ok(found) => assert_eq!(found, Some(name), "page {page}"),
                Err(Abort::Store(Error::Corrupt { .. })) => noticed += 1,
                Err(other) => panic!("page {page}: {other:?}"),
            }
        }
        store.close().await;
    }
    assert!(noticed > 4, "{noticed}");
}
