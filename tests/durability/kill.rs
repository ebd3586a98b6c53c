//! The process is killed while it works.

use std::time::Duration;

use tempfile::TempDir;

use crate::worker::{self, Worker};

const KILLS: u64 = 200;

/// After so many kills the next one finds an empty directory, so that first starts
/// are hit too, and what has to be looked through stays short.
const SERIES: u64 = 10;

/// Small, seeded, and good enough to choose moments (`SplitMix64`).
fn scatter(number: u64) -> u64 {
    let z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn a_server_that_is_killed_keeps_what_it_acknowledged() {
    let mut dir = TempDir::new().unwrap();
    let mut acked = Vec::new();
    let mut total = 0;
    let mut empty = 0;
    for kill in 0..KILLS {
        if kill % SERIES == 0 {
            dir = TempDir::new().unwrap();
            acked.clear();
        }
        let worker = Worker::start("serve", &format!("k{kill}"), dir.path(), None);
        // Half of the moments may fall into the start and the recovery.
        let micros = if kill % 2 == 0 {
            scatter(kill) % 90_000
        } else {
            worker.wait_for_an_ack();
            scatter(kill) % 40_000
        };
        std::thread::sleep(Duration::from_micros(micros));
        let more = worker.kill();
        total += more.len();
        empty += usize::from(more.is_empty());
        acked.extend(more);
        worker::check(dir.path(), &acked);
    }
    report(&format!(
        "{KILLS} kills, {total} acknowledged, {empty} times nothing"
    ));
    assert!(total > 1_000, "hardly anything was tested: {total}");
}

#[test]
fn a_second_process_is_refused_until_the_first_is_gone() {
    let dir = TempDir::new().unwrap();
    let first = Worker::start("serve", "first", dir.path(), None);
    let mut lock = None;
    for _ in 0..500 {
        std::thread::sleep(Duration::from_millis(10));
        if dir.path().join("store.db-wal").exists() {
            lock = Some(worker::open(dir.path()).map(drop));
            break;
        }
    }
    let error = lock.unwrap().unwrap_err().to_string();
    assert!(error.contains("another server"), "{error}");
    let acked = first.kill();
    worker::check(dir.path(), &acked);
}

#[expect(
    clippy::print_stderr,
    reason = "the numbers of a passing run are worth seeing"
)]
pub(crate) fn report(line: &str) {
    eprintln!("{line}");
}
