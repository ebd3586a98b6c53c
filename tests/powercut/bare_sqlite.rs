//! SQLite without anything of ours around it: shows that the power-cut tool sees what SQLite
//! promises with `synchronous=FULL`, and what it does not promise below that.
//!
//! Several threads ask one writer, which commits what has come together (a group) in one
//! transaction, as a server would.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::harness::{Acks, Subject};

const FILE: &str = "store.db";
const THREADS: usize = 4;
const REQUESTS: usize = 40;
/// Rows of one request; they belong together.
const ROWS: u32 = 3;

#[derive(Debug)]
pub(crate) struct BareSqlite {
    /// The value of `PRAGMA synchronous`.
    pub(crate) synchronous: &'static str,
}

/// A request, and where to say that it is committed.
struct Request {
    name: String,
    done: Sender<()>,
}

/// What the row holds, computable from its key: of very different lengths, so that small commits
/// and such with overflow pages both occur.
fn payload(name: &str, row: u32) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(7, |n, b| (n * 31 + usize::from(b)) % 65_521);
    let len = if seed.is_multiple_of(7) {
        20_000
    } else {
        100 + seed % 3_000
    };
    format!("{row} of {name}; ")
        .repeat(2_000)
        .into_bytes()
        .drain(..len)
        .collect()
}

fn open(dir: &Path, synchronous: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(dir.join(FILE))?;
    // Small enough a limit for several checkpoints to fall into one run.
    db.execute_batch(&format!(
        "PRAGMA page_size = 8192;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous};
         PRAGMA wal_autocheckpoint = 40;"
    ))?;
    Ok(db)
}

fn write_groups(
    db: &mut Connection,
    mut group_number: u32,
    requests: &Receiver<Request>,
) -> rusqlite::Result<()> {
    while let Ok(first) = requests.recv() {
        // A short wait lets the other threads join in.
        let mut group = vec![first];
        while let Ok(next) = requests.recv_timeout(Duration::from_micros(200)) {
            group.push(next);
            if group.len() == THREADS {
                break;
            }
        }
        group_number += 1;
        let group_rows: u32 = group.iter().map(|_| ROWS).sum();
        let tx = db.transaction()?;
        for request in &group {
            for row in 0..ROWS {
                tx.execute(
                    "INSERT INTO rows VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![
                        request.name,
                        row,
                        group_number,
                        group_rows,
                        payload(&request.name, row)
                    ],
                )?;
            }
        }
        tx.commit()?;
        for request in group {
            // A thread that failed has nothing to be told.
            let _gone = request.done.send(());
        }
    }
    Ok(())
}

impl Subject for BareSqlite {
    fn work(&self, dir: &Path, acks: &Acks) -> Result<(), String> {
        let fail = |e: rusqlite::Error| e.to_string();
        let mut db = open(dir, self.synchronous).map_err(fail)?;
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS rows (
                 name TEXT, row INT, group_number INT, group_rows INT, data BLOB,
                 PRIMARY KEY (name, row)
             ) STRICT;
             CREATE INDEX IF NOT EXISTS by_group ON rows (group_number);",
        )
        .map_err(fail)?;
        // A second run on the same file carries on with other names and groups.
        let last: u32 = db
            .query_row(
                "SELECT coalesce(max(group_number), 0) FROM rows",
                [],
                |row| row.get(0),
            )
            .map_err(fail)?;
        let (ask, requests) = mpsc::channel();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (ask, acks) = (ask.clone(), acks.clone());
                scope.spawn(move || {
                    for i in 0..REQUESTS {
                        let name = format!("{last}-{thread}-{i}");
                        let (done, wait) = mpsc::channel();
                        let asked = ask.send(Request {
                            name: name.clone(),
                            done,
                        });
                        if asked.is_err() || wait.recv().is_err() {
                            return;
                        }
                        acks.ack(&name);
                    }
                });
            }
            drop(ask);
            write_groups(&mut db, last, &requests).map_err(fail)
        })
    }

    fn verify(&self, dir: &Path, acked: &[String]) -> Result<(), String> {
        verify(dir, acked).map_err(|e| e.to_string())?
    }
}

/// The outer error: SQLite refuses to work with the file. The inner one: it does, but something is
/// missing.
fn verify(dir: &Path, acked: &[String]) -> rusqlite::Result<Result<(), String>> {
    let db = open(dir, "OFF")?;
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if check != "ok" {
        return Ok(Err(format!("integrity_check: {check}")));
    }
    if !db.table_exists(None, "rows")? {
        let nothing_promised = acked.is_empty();
        return Ok(nothing_promised
            .then_some(())
            .ok_or_else(|| "the table is gone".to_owned()));
    }
    let mut rows_of: BTreeMap<String, u32> = BTreeMap::new();
    let mut groups: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    let mut statement = db.prepare("SELECT name, row, group_number, group_rows, data FROM rows")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let number: u32 = row.get(1)?;
        if row.get::<_, Vec<u8>>(4)? != payload(&name, number) {
            return Ok(Err(format!("row {number} of {name} is damaged")));
        }
        *rows_of.entry(name).or_default() += 1;
        let group = groups.entry(row.get(2)?).or_insert((0, row.get(3)?));
        group.0 += 1;
    }
    if let Some((group, (have, want))) = groups.iter().find(|(_, (have, want))| have != want) {
        return Ok(Err(format!("group {group} has {have} of {want} rows")));
    }
    if let Some(lost) = acked.iter().find(|name| rows_of.get(*name) != Some(&ROWS)) {
        return Ok(Err(format!(
            "{lost} was acknowledged and is not there whole"
        )));
    }
    // What came back must also be fit to go on with.
    db.execute("INSERT INTO rows VALUES ('after', 0, 0, 1, x'')", [])?;
    Ok(Ok(()))
}
