//! Timeline entries: what happened to a session, in order, for ever.

use serde::{Deserialize, Serialize};

use super::id::{CheckpointId, InterruptId, PrincipalName, RunId, SessionRef, SnapshotId};
use super::time::Timestamp;

/// The most characters of a run's input that its label shows.
pub const RUN_LABEL_CHARS: usize = 60;

/// One line of a session's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Of which session.
    pub session: SessionRef,
    /// Its place: 1, 2, 3, … without gaps.
    pub rev: i64,
    /// What happened.
    pub kind: EntryKind,
    /// For people; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Who did it, as the server knows them.
    pub principal: PrincipalName,
    /// What the commit made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// More about a custom entry: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_json: Option<String>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A run ended.
    Run,
    /// A message was edited.
    Edit,
    /// A branch was made, of it or from it.
    Branch,
    /// A thread was resumed.
    Resume,
    /// A snapshot was made.
    Snapshot,
    /// A run was paused.
    Pause,
    /// A person is asked.
    Interrupt,
    /// An answer was given.
    Decision,
    /// A snapshot was restored.
    Restore,
    /// A client's own entry.
    Custom,
}

/// What an entry points to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A run.
    Run(RunId),
    /// A checkpoint.
    Checkpoint(CheckpointId),
    /// An interrupt.
    Interrupt(InterruptId),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// Another session.
    Session(SessionRef),
    /// The item that an edit wrote.
    Item {
        /// Its `seq`.
        seq: i64,
    },
}

/// The label of a run: the first characters of its input, or `blocks`.
#[must_use]
pub fn run_label(input: &super::message::Content) -> String {
    match input {
        super::message::Content::Text(text) => text.chars().take(RUN_LABEL_CHARS).collect(),
        super::message::Content::Blocks(_) => "blocks".to_owned(),
    }
}
