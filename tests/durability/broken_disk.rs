//! The disk fills up, refuses a write or a sync, or takes nothing at all. The
//! process goes on, says so, and loses nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use adjourn::storage::{Abort, Error, Store};
use tempfile::TempDir;

use crate::kill::report;
use crate::worker::{self, Worker, acknowledge};
use crate::workload;

const BALLAST: &str = "ballast";

/// Works until something fails, and answers how.
async fn work_until_it_fails(
    store: &Arc<dyn Store>,
    run: &str,
    acked: &Mutex<Vec<String>>,
) -> Error {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let outcome = workload::work(store, run, (64, 300), move |line| {
        sink.lock().unwrap().push(line);
    })
    .await;
    acked.lock().unwrap().append(&mut lines.lock().unwrap());
    match outcome {
        Err(Abort::Store(error)) => error,
        other => panic!("the disk is not broken: {other:?}"),
    }
}

/// A shell's words for running the worker with the power to mount, and the mounts
/// to be seen by nobody else.
fn with_mounts(script: &str) -> Option<String> {
    let possible = Command::new("unshare").args(["-rm", "true"]).status();
    if possible.is_ok_and(|status| status.success()) {
        return Some(format!(
            "exec unshare -rm sh -ec '{script}; exec \"$@\"' sh \"$@\""
        ));
    }
    report("no mount namespaces here; this is tested only where there are");
    None
}

#[test]
fn a_full_disk_loses_nothing_and_is_used_again_once_there_is_room() {
    let dir = TempDir::new().unwrap();
    let mount = r#"mount -t tmpfs -o size=6m tmpfs "$DURABILITY_DIR""#;
    if let Some(wrap) = with_mounts(mount) {
        Worker::start("full", "", dir.path(), Some(&wrap)).finish();
    }
}

/// Runs in the worker, in a directory of 6 MiB.
pub(crate) async fn fill_up(dir: &Path) {
    fs::write(dir.join(BALLAST), vec![0; 2 << 20]).unwrap();
    let store = worker::open(dir).unwrap();
    let acked = Mutex::new(Vec::new());
    for round in 0..5 {
        let error = work_until_it_fails(&store, &format!("full{round}"), &acked).await;
        assert!(matches!(error, Error::Full(_)), "{error:?}");
        // What there is can be read, and the store is in order.
        let acked = acked.lock().unwrap().clone();
        workload::verify(&store, &acked).await.unwrap();
        store.ready().await.unwrap();
    }
    fs::remove_file(dir.join(BALLAST)).unwrap();
    workload::work(&store, "room", (8, 4), |_| ())
        .await
        .unwrap();
    store.close().await;
    let acked = acked.into_inner().unwrap();
    assert!(acked.len() > 100, "{}", acked.len());
    worker_check(dir, &acked).await;
}

/// [`worker::check`] from within the runtime.
async fn worker_check(dir: &Path, acked: &[String]) {
    let (dir, acked) = (dir.to_owned(), acked.to_vec());
    tokio::task::spawn_blocking(move || worker::check(&dir, &acked))
        .await
        .unwrap();
}

#[test]
fn a_write_that_fails_is_not_applied_and_stops_nothing_else() {
    let dir = TempDir::new().unwrap();
    // The signal that comes with the limit would end the process.
    let wrap = r#"trap "" XFSZ; ulimit -f 8192; exec "$@""#;
    let acked = Worker::start("limited", "", dir.path(), Some(wrap)).finish();
    assert!(acked.len() > 100, "{}", acked.len());
    worker::check(dir.path(), &acked);
    wait_for_room(dir.path());
}

/// Without the limit the store works on.
fn wait_for_room(dir: &Path) {
    worker::wait_for(async {
        let store = worker::open(dir).unwrap();
        workload::work(&store, "room", (8, 4), |_| ())
            .await
            .unwrap();
        store.close().await;
    });
}

/// Runs in the worker, where no file may get longer than a limit.
pub(crate) async fn reach_the_limit(dir: &Path) {
    let store = worker::open(dir).unwrap();
    let acked = Mutex::new(Vec::new());
    for round in 0..5 {
        let error = work_until_it_fails(&store, &format!("limit{round}"), &acked).await;
        assert!(
            matches!(error, Error::Unavailable(_) | Error::Full(_)),
            "{error:?}"
        );
        let acked = acked.lock().unwrap().clone();
        workload::verify(&store, &acked).await.unwrap();
        store.ready().await.unwrap();
    }
    for line in acked.into_inner().unwrap() {
        acknowledge(&line);
    }
    store.close().await;
}

/// Makes every sync fail as long as the file `no-sync` is in the directory.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int allowed(void) {
    const char *flag = getenv("NO_SYNC_FLAG");
    if (flag == NULL || access(flag, F_OK) != 0) return 1;
    errno = EIO;
    return 0;
}

int fsync(int fd) { return allowed() ? (int)syscall(SYS_fsync, fd) : -1; }
int fdatasync(int fd) { return allowed() ? (int)syscall(SYS_fdatasync, fd) : -1; }
"#;

#[test]
fn a_sync_that_fails_leaves_the_outcome_open_and_stops_writes() {
    let dir = TempDir::new().unwrap();
    let (source, library) = (dir.path().join("shim.c"), dir.path().join("shim.so"));
    fs::write(&source, SHIM).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success(), "the shim does not build");
    let wrap = r#"export LD_PRELOAD="$DURABILITY_DIR/shim.so" NO_SYNC_FLAG="$DURABILITY_DIR/no-sync"; exec "$@""#;
    let acked = Worker::start("no-sync", "", dir.path(), Some(wrap)).finish();
    assert!(acked.len() > 10, "{}", acked.len());
    // After a restart the disk says what it holds.
    worker::check(dir.path(), &acked);
    wait_for_room(dir.path());
}

/// Runs in the worker, under the shim.
pub(crate) async fn lose_a_sync(dir: &Path) {
    let store = worker::open(dir).unwrap();
    workload::work(&store, "before", (16, 2), |line| acknowledge(&line))
        .await
        .unwrap();
    let flag = dir.join("no-sync");
    fs::write(&flag, "").unwrap();
    let acked = Mutex::new(Vec::new());
    let error = work_until_it_fails(&store, "lost", &acked).await;
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert!(acked.lock().unwrap().is_empty());
    // That the next sync succeeds proves nothing about the one before.
    fs::remove_file(&flag).unwrap();
    let error = work_until_it_fails(&store, "later", &acked).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(acked.lock().unwrap().is_empty());
    assert!(matches!(store.ready().await, Err(Error::Unavailable(_))));
    workload::verify(&store, &[]).await.unwrap();
    store.close().await;
}

#[test]
fn a_read_only_directory_is_refused_in_words() {
    let dir = TempDir::new().unwrap();
    wait_for_room(dir.path());
    let mount = r#"mount --bind "$DURABILITY_DIR" "$DURABILITY_DIR"; mount -o remount,bind,ro "$DURABILITY_DIR""#;
    if let Some(wrap) = with_mounts(mount) {
        Worker::start("read-only", "", dir.path(), Some(&wrap)).finish();
    }
    worker::check(dir.path(), &[]);
}

/// Runs in the worker, in a directory that nothing can be written to.
pub(crate) fn find_no_place(dir: &Path) {
    let refused = |error: Error| {
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains("Read-only"), "{error}");
    };
    refused(worker::open(dir).unwrap_err());
    let new = dir.join("new.db");
    let options = adjourn::storage::sqlite::Options::default();
    refused(adjourn::storage::sqlite::SqliteStore::open(new, &options).unwrap_err());
}
