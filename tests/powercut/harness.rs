//! Runs a subject under the recorder, cuts the power at many points of its trace, and lets the
//! subject judge what each cut left behind.
//!
//! The recorder is a preloaded library, so the work needs a process of its own: the test binary
//! starts itself again with only the test `worker_entry` selected, and that test does the work.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use crate::replay::{Disk, Image, Record, Rng, Trace};

const SHIM: &str = include_str!("shim.c");

/// Something that promises to keep what it acknowledged.
pub(crate) trait Subject {
    /// Fills `dir`, acknowledging each thing as soon as it is promised to last. May use threads.
    fn work(&self, dir: &Path, acks: &Acks) -> Result<(), String>;

    /// Opens what a power cut left in `dir` and says what is wrong with it. `acked` are the lines
    /// acknowledged before the cut; more than these may be there, but nothing in part.
    fn verify(&self, dir: &Path, acked: &[String]) -> Result<(), String>;
}

/// Where a subject acknowledges. The recorder takes note of each line and of its place in time.
#[derive(Debug, Clone)]
pub(crate) struct Acks(Arc<File>);

impl Acks {
    fn create(dir: &Path) -> Result<Self, String> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("acks"));
        Ok(Self(Arc::new(file.map_err(|e| format!("acks: {e}"))?)))
    }

    /// One line, written in one call so that lines of several threads do not mix.
    pub(crate) fn ack(&self, line: &str) {
        let written = self.0.as_ref().write_all(format!("{line}\n").as_bytes());
        assert!(written.is_ok(), "cannot acknowledge: {written:?}");
    }
}

/// What the process started by [`record_after`] does; nothing in a normal test run.
pub(crate) fn work_if_told(find: impl Fn(&str) -> Option<Box<dyn Subject>>) -> Result<(), String> {
    let Some(name) = std::env::var_os("POWERCUT_WORKER") else {
        return Ok(());
    };
    let dir = PathBuf::from(std::env::var_os("POWERCUT_DIR").ok_or("no POWERCUT_DIR")?);
    let subject = find(&name.to_string_lossy()).ok_or("no such subject")?;
    subject.work(&dir, &Acks::create(&dir)?)
}

/// A finished run: the trace of it, and the temporary directory that holds all its files.
#[derive(Debug)]
pub(crate) struct Recording {
    name: String,
    pub(crate) trace: Trace,
    /// What was acknowledged before this run, if it started from what another had left.
    earlier: Vec<String>,
    scratch: TempDir,
}

/// Has a child process do the work of the subject called `name`, and records it.
pub(crate) fn record(name: &str) -> Result<Recording, String> {
    record_after(name, &Image::default(), Vec::new())
}

/// The same, starting from what a power cut left and with what was acknowledged before it: the
/// recovery is a part of the work, and later cuts hit it too.
pub(crate) fn record_after(
    name: &str,
    left: &Image,
    acked: Vec<String>,
) -> Result<Recording, String> {
    let mut scratch = TempDir::new().map_err(|e| e.to_string())?;
    scratch.disable_cleanup(keep());
    let shim = build_shim(scratch.path())?;
    let dir = scratch.path().join("live");
    fs::create_dir(&dir)
        .and_then(|()| left.write_to(&dir))
        .map_err(|e| e.to_string())?;
    let trace = scratch.path().join("trace");
    let output = std::env::current_exe()
        .and_then(|exe| {
            Command::new(exe)
                .args(["worker_entry", "--exact", "--nocapture", "--test-threads=1"])
                .env("LD_PRELOAD", &shim)
                .env("POWERCUT_DIR", &dir)
                .env("POWERCUT_TRACE", &trace)
                .env("POWERCUT_WORKER", name)
                .output()
        })
        .map_err(|e| format!("worker: {e}"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        return Err(format!(
            "worker {name} failed:\n{}",
            String::from_utf8_lossy(&text)
        ));
    }
    let trace = Trace::read(&trace)?;
    // If the trace missed anything, conclusions drawn from it would be worthless.
    let live = Image::read_from(&dir).map_err(|e| e.to_string())?;
    let replayed = Disk::after(&trace, trace.records.len()).everything();
    match replayed.difference(&live) {
        Some(what) => Err(format!(
            "the trace of {name} is not the whole truth: {what}"
        )),
        None => Ok(Recording {
            name: name.to_owned(),
            trace,
            earlier: acked,
            scratch,
        }),
    }
}

/// Set this variable to look at the files of a failure afterwards.
fn keep() -> bool {
    std::env::var_os("POWERCUT_KEEP").is_some()
}

fn build_shim(dir: &Path) -> Result<PathBuf, String> {
    let source = dir.join("shim.c");
    let library = dir.join("shim.so");
    fs::write(&source, SHIM).map_err(|e| e.to_string())?;
    let cc = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let output = Command::new(&cc)
        .args(["-shared", "-fPIC", "-O2", "-pthread", "-o"])
        .args([&library, &source])
        .output()
        .map_err(|e| format!("{}: {e}", cc.display()))?;
    if output.status.success() {
        Ok(library)
    } else {
        Err(format!(
            "the shim does not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// What many power cuts showed.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) cuts: usize,
    /// Lines acknowledged before the last cut point.
    pub(crate) acked: usize,
    pub(crate) failures: Vec<String>,
}

impl Recording {
    /// Cuts the power at `cuts` random points. Every other cut comes right after an
    /// acknowledgement, where the promise is freshest and a missing sync shows best.
    pub(crate) fn survey(&self, subject: &dyn Subject, cuts: usize) -> Survey {
        self.survey_of(&self.trace, "", subject, cuts)
    }

    /// The same, as if the syncs of some files had not been made: see [`Trace::without_syncs`].
    pub(crate) fn survey_without_syncs(
        &self,
        what: &str,
        of: impl Fn(&str) -> bool,
        subject: &dyn Subject,
        cuts: usize,
    ) -> Survey {
        self.survey_of(&self.trace.without_syncs(of), what, subject, cuts)
    }

    fn survey_of(&self, trace: &Trace, what: &str, subject: &dyn Subject, cuts: usize) -> Survey {
        let mut rng = Rng::new(0x5eed);
        let records = trace.records.len();
        // A start from what was left begins with that, which no power cut can take away.
        let start = trace
            .records
            .iter()
            .position(|r| *r == Record::AllDurable)
            .map_or(0, |i| i + 1);
        let is_ack = |k: &usize| matches!(trace.records.get(k - 1), Some(Record::Ack { .. }));
        let promises: Vec<usize> = (1..=records).filter(is_ack).collect();
        let mut points: Vec<(usize, u64)> = (0..cuts)
            .map(|i| {
                let anywhere = start + rng.below(records + 1 - start);
                let fresh = promises.get(rng.below(promises.len())).copied();
                let k = if i % 2 == 0 {
                    anywhere
                } else {
                    fresh.unwrap_or(anywhere)
                };
                (k, rng.next())
            })
            .collect();
        points.sort_unstable();

        let mut disk = Disk::default();
        let mut played = 0;
        let mut failures = Vec::new();
        let mut acked = 0;
        for (k, seed) in points {
            disk.play(trace.records.iter().take(k).skip(played));
            played = k;
            let lasting = [self.earlier.as_slice(), &trace.acks_before(k)].concat();
            acked = lasting.len();
            if let Err(wrong) = self.judge(subject, &disk.crash(seed), &lasting) {
                let before = trace.tail(k, 12);
                failures.push(format!(
                    "cut {k} of {records}, seed {seed:#x}: {wrong}\n{before}"
                ));
            }
        }
        report(&format!(
            "{}{what}: {records} records, {acked} acknowledged, {cuts} cuts, {} failures",
            self.name,
            failures.len(),
        ));
        Survey {
            cuts,
            acked,
            failures,
        }
    }

    fn judge(&self, subject: &dyn Subject, left: &Image, acked: &[String]) -> Result<(), String> {
        let mut dir = TempDir::new_in(self.scratch.path()).map_err(|e| e.to_string())?;
        left.write_to(dir.path()).map_err(|e| e.to_string())?;
        let verdict = subject.verify(dir.path(), acked);
        if verdict.is_err() && keep() {
            dir.disable_cleanup(true);
            return verdict.map_err(|wrong| format!("{wrong} (in {})", dir.path().display()));
        }
        verdict
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the numbers of a passing run are worth seeing"
)]
fn report(line: &str) {
    eprintln!("{line}");
}
