//! Commits are whole and acknowledged ones are kept, when the server is killed at
//! any moment, the disk fills up, a write or a sync fails, or the directory is
//! read-only.
//!
//! SIGKILL cannot show a missing sync, since the page cache outlives the process;
//! `tests/powercut` does. It does show commits that are not whole, answers that come
//! too early, and recovery that goes wrong.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot run has failed"
)]

mod broken_disk;
mod kill;
mod worker;
#[path = "../workload/mod.rs"]
#[expect(clippy::indexing_slicing, reason = "a test that cannot run has failed")]
mod workload;

/// Does what the process was started for, if it was started by one of the tests.
/// Otherwise passes without doing anything.
#[test]
fn worker_entry() {
    worker::work_if_told();
}
