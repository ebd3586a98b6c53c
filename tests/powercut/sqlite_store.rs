//! Adjourn's SQLite store under load, as a server uses it.

use std::path::Path;
use std::sync::Arc;

use adjourn::storage::Store;
use adjourn::storage::sqlite::{Options, SqliteStore};
use rusqlite::Connection;

use crate::harness::{Acks, Subject};
use crate::workload;

pub(crate) const FILE: &str = "store.db";

const CALLERS: usize = 64;
const ROUNDS: usize = 6;

#[derive(Debug)]
pub(crate) struct StoreUnderLoad {
    /// What [`Options::sync`] is set to.
    pub(crate) sync: bool,
}

fn open(dir: &Path, sync: bool) -> Result<Arc<dyn Store>, String> {
    let options = Options {
        sync,
        // Short enough for many checkpoints to fall into one run.
        log_bytes: 1 << 20,
        ..Options::default()
    };
    match SqliteStore::open(dir.join(FILE), &options) {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => Err(error.to_string()),
    }
}

fn wait_for<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.map_err(|error| error.to_string())?.block_on(future)
}

impl Subject for StoreUnderLoad {
    fn work(&self, dir: &Path, acks: &Acks) -> Result<(), String> {
        wait_for(async {
            let store = open(dir, self.sync)?;
            // A second run on the same file has requests of its own.
            let run = format!("r{}", store.tenants().await.map_err(fail)?.len());
            let acks = acks.clone();
            workload::work(&store, &run, (CALLERS, ROUNDS), move |line| acks.ack(&line))
                .await
                .map_err(fail)?;
            store.close().await;
            Ok(())
        })
    }

    fn verify(&self, dir: &Path, acked: &[String]) -> Result<(), String> {
        wait_for(async {
            // What is looked at here need not outlast anything.
            let store = open(dir, false)?;
            workload::verify(&store, acked).await?;
            // What came back must also be fit to go on with.
            workload::work(&store, "after", (2, 2), |_| ())
                .await
                .map_err(fail)?;
            store.close().await;
            Ok(())
        })?;
        let db = Connection::open(dir.join(FILE)).map_err(fail)?;
        let check: String = db
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .map_err(fail)?;
        if check == "ok" {
            Ok(())
        } else {
            Err(format!("integrity_check: {check}"))
        }
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "used as a function of an error"
)]
fn fail(error: impl ToString) -> String {
    error.to_string()
}
