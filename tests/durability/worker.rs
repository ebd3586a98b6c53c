//! The other process: the test binary itself, started again with only the test
//! `worker_entry` selected.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use adjourn::storage::sqlite::{Options, SqliteStore};
use adjourn::storage::{Error, Store};

use crate::{broken_disk, workload};

const MARK: &str = "ack ";

/// Opens the store in a directory.
pub(crate) fn open(dir: &Path) -> Result<Arc<dyn Store>, Error> {
    let options = Options {
        // Short enough for checkpoints to come often.
        log_bytes: 512 << 10,
        ..Options::default()
    };
    Ok(Arc::new(SqliteStore::open(dir.join("store.db"), &options)?))
}

/// Runs a future to its end.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Tells whoever started this process that something is promised to last.
pub(crate) fn acknowledge(line: &str) {
    // In one call, so that lines of several threads do not mix.
    let line = format!("{MARK}{line}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// What this process was started for; nothing in a normal test run.
pub(crate) fn work_if_told() {
    let Some(what) = std::env::var_os("DURABILITY_WORKER") else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os("DURABILITY_DIR").unwrap());
    let run = std::env::var_os("DURABILITY_RUN").unwrap_or_default();
    let run = run.to_string_lossy();
    wait_for(async {
        match &*what.to_string_lossy() {
            "serve" => {
                let store = open(&dir).unwrap();
                // Until the process is killed.
                let endless = (64, usize::MAX);
                workload::work(&store, &run, endless, |line| acknowledge(&line))
                    .await
                    .unwrap();
            }
            "full" => broken_disk::fill_up(&dir).await,
            "limited" => broken_disk::reach_the_limit(&dir).await,
            "no-sync" => broken_disk::lose_a_sync(&dir).await,
            "read-only" => broken_disk::find_no_place(&dir),
            other => panic!("what is {other}?"),
        }
    });
}

/// A process that works.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    acks: JoinHandle<Vec<String>>,
    /// Says so when the first acknowledgement comes.
    first: mpsc::Receiver<()>,
}

impl Worker {
    /// Starts one. `wrap` is put before the program, as a shell would have it:
    /// `"$@"` stands for the program.
    pub(crate) fn start(what: &str, run: &str, dir: &Path, wrap: Option<&str>) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut command = match wrap {
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-ec", script, "sh"]).arg(&exe);
                command
            }
            None => Command::new(&exe),
        };
        let mut child = command
            .args(["worker_entry", "--exact", "--nocapture", "--test-threads=1"])
            .env("DURABILITY_WORKER", what)
            .env("DURABILITY_RUN", run)
            .env("DURABILITY_DIR", dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (tell, first) = mpsc::channel();
        let acks = std::thread::spawn(move || read_acks(stdout, &tell));
        Self { child, acks, first }
    }

    /// Waits for the first acknowledgement.
    pub(crate) fn wait_for_an_ack(&self) {
        self.first.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    /// Ends the process without a warning, and answers what it acknowledged.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(!status.success(), "the worker had ended by itself");
        self.acks.join().unwrap()
    }

    /// Waits until the process ends, and answers what it acknowledged.
    pub(crate) fn finish(mut self) -> Vec<String> {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the worker failed");
        self.acks.join().unwrap()
    }
}

/// The lines that came whole.
fn read_acks(stdout: ChildStdout, first: &mpsc::Sender<()>) -> Vec<String> {
    let mut acks = Vec::new();
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 0 {
        // The test runner has lines of its own, and does not always end them.
        let ack = line.split_once(MARK).map(|(_, ack)| ack);
        if let Some(ack) = ack.and_then(|ack| ack.strip_suffix('\n')) {
            if acks.is_empty() {
                // Not everybody waits for it.
                let _ = first.send(());
            }
            acks.push(ack.to_owned());
        }
        line.clear();
    }
    acks
}

/// Says what is wrong with what a process left.
pub(crate) fn check(dir: &Path, acked: &[String]) {
    wait_for(async {
        let store = open(dir).unwrap();
        workload::verify(&store, acked).await.unwrap();
        store.close().await;
    });
    let db = rusqlite::Connection::open(dir.join("store.db")).unwrap();
    let check: String = db
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}
