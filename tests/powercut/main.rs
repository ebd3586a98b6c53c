//! Durability under power cuts. SIGKILL cannot show a missing sync, since the page cache outlives
//! the process: here all file operations are recorded (`shim.c`), and the directory is rebuilt as a
//! power cut at any point might have left it (`replay.rs`).
//!
//! To test one more thing, implement [`Subject`] and add it to [`subject`] under a name. A test of
//! durability should come with its planted bug, to see that it would have been noticed.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot run has failed"
)]

mod harness;
mod loose_files;
mod replay;
mod sqlite_store;
#[path = "../workload/mod.rs"]
mod workload;

use harness::{Subject, Survey};
use loose_files::{LooseFiles, OddCalls};
use replay::Disk;
use sqlite_store::{FILE, StoreUnderLoad};

/// The subjects by name; the name is how the child process is told what to do.
fn subject(name: &str) -> Option<Box<dyn Subject>> {
    let files = |sync_file, sync_dir| {
        Box::new(LooseFiles {
            sync_file,
            sync_dir,
        })
    };
    Some(match name {
        "sqlite" => Box::new(StoreUnderLoad { sync: true }),
        "sqlite-no-sync" => Box::new(StoreUnderLoad { sync: false }),
        "files" => files(true, true),
        "files-no-file-sync" => files(false, true),
        "files-no-dir-sync" => files(true, false),
        "odd-calls" => Box::new(OddCalls),
        _ => return None,
    })
}

/// Does the work of a subject in the recorded child process. Otherwise passes without doing
/// anything.
#[test]
fn worker_entry() {
    harness::work_if_told(subject).unwrap();
}

/// Nothing acknowledged is lost, and nothing is there in part.
fn survives(survey: &Survey) {
    assert!(
        survey.acked > 0,
        "nothing was acknowledged, so nothing was tested"
    );
    let (cuts, failed) = (survey.cuts, survey.failures.len());
    assert!(
        failed == 0,
        "{failed} of {cuts} cuts, the first: {}",
        survey.failures[0]
    );
}

/// The planted bug is noticed.
fn is_caught(survey: &Survey) {
    assert!(
        !survey.failures.is_empty(),
        "{} cuts showed nothing",
        survey.cuts
    );
}

fn survey(name: &str, cuts: usize) -> Survey {
    harness::record(name)
        .unwrap()
        .survey(&*subject(name).unwrap(), cuts)
}

#[test]
fn the_sqlite_store_survives() {
    survives(&survey("sqlite", 200));
}

/// What is acknowledged after a recovery lasts as well, and so does what was before.
#[test]
fn the_sqlite_store_survives_a_second_cut() {
    let name = "sqlite";
    let first = harness::record(name).unwrap();
    let records = first.trace.records.len();
    for (seed, k) in [(1, records / 3), (2, records * 2 / 3)] {
        let left = Disk::after(&first.trace, k).crash(seed);
        let second = harness::record_after(name, &left, first.trace.acks_before(k)).unwrap();
        survives(&second.survey(&*subject(name).unwrap(), 40));
    }
}

/// Each sync that the store makes is needed, and the lack of any one kind would show.
#[test]
fn the_sqlite_store_without_one_kind_of_sync_is_caught() {
    let recording = harness::record("sqlite").unwrap();
    let subject = subject("sqlite").unwrap();
    let log = format!("{FILE}-wal");
    for (what, missing) in [
        (" without syncs of the log", log.as_str()),
        (" without syncs of the database", FILE),
        (" without syncs of the directory", ""),
    ] {
        let survey = recording.survey_without_syncs(what, |name| name == missing, &*subject, 60);
        is_caught(&survey);
    }
}

#[test]
fn the_sqlite_store_without_sync_is_caught() {
    is_caught(&survey("sqlite-no-sync", 60));
}

#[test]
fn files_survive_with_both_syncs() {
    survives(&survey("files", 200));
}

#[test]
fn files_without_file_sync_are_caught() {
    is_caught(&survey("files-no-file-sync", 60));
}

#[test]
fn files_without_directory_sync_are_caught() {
    is_caught(&survey("files-no-dir-sync", 60));
}

/// Recording checks itself: the trace played to its end must give the directory as it is.
#[test]
fn the_recorder_misses_nothing() {
    let recording = harness::record("odd-calls").unwrap();
    assert_eq!(recording.trace.acks_before(usize::MAX), ["done"]);
}
