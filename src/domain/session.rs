//! Sessions and memories: who owns a history, and what stands beside it.

use serde::{Deserialize, Serialize};

use super::error::{Error, Reason, Result};
use super::id::{AgentId, MemoryId, MemoryRef, SessionRef, ThreadId};
use super::log::{Cell, Head, RowRef};
use super::revision::{Revision, Stamp};
use super::time::Timestamp;

/// A session's current state. Contents are in its log; this is small.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Which session.
    pub key: SessionRef,
    /// The commit that made it; another one after it was deleted and made anew.
    pub generation: Stamp,
    /// The last change of content.
    pub etag: Stamp,
    /// The last change of title, description, tags or listing metadata.
    pub listing_etag: Stamp,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its content was last written.
    pub saved_at: Timestamp,
    /// The history.
    pub head: Head,
    /// The node with the state's cells; absent means no state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RowRef>,
    /// The node with the plugin states' cells; absent means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin_states: Option<RowRef>,
    /// Prompts, pending input and the like, by [`field`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Cell>,
    /// How many entries the plugin state `working_memory` has.
    #[serde(default)]
    pub working_memory_count: u64,
    /// The format of the client's data, as the client numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format_version: Option<i64>,
    /// Compared when a client says which evidence scope it expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence_scope_digest: Option<String>,
    /// Compared when a client says which task scope it expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_scope_digest: Option<String>,
    /// For lists.
    #[serde(default)]
    pub listing: Listing,
    /// The linked memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_id: Option<MemoryId>,
    /// The `rev` of the last entry of its timeline.
    #[serde(default)]
    pub timeline_rev: i64,
    /// The turn of the conversation, for the journal: counts user messages.
    #[serde(default)]
    pub turn: i64,
    /// How many items that are no messages were ever written to the log.
    #[serde(default)]
    pub non_message_count: u64,
    /// The thread whose lease covers the session, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_by: Option<ThreadId>,
    /// Where it was branched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<Lineage>,
    /// Set once it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// Names of [`Session::fields`].
pub mod field {
    /// The system prompt: plain text.
    pub const SYSTEM_PROMPT: &str = "system_prompt";
    /// The instructions: plain text.
    pub const INSTRUCTIONS: &str = "instructions";
    /// The pending input: a JSON array of items.
    pub const PENDING_INPUT: &str = "pending_input";
    /// The metadata stored with the body: JSON text.
    pub const STATE_METADATA: &str = "state_metadata";
}

/// What lists show of a session and filter by. A save never wipes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// A title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Anything else: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_json: Option<String>,
}

/// Where a branch comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The parent.
    pub session: SessionRef,
    /// The parent's generation.
    pub generation: Revision,
    /// The revision of the parent that was branched.
    pub revision: Revision,
    /// The branch's label.
    pub label: String,
}

/// A memory: a named, windowed history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Which memory.
    pub key: MemoryRef,
    /// The user it belongs to, if it was made for one. Checked, not part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<super::id::UserId>,
    /// The commit that made it.
    pub generation: Stamp,
    /// The last change of content.
    pub etag: Stamp,
    /// The last change of the settings.
    pub settings_etag: Stamp,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// The history.
    pub head: Head,
    /// How it is kept in bounds.
    pub settings: MemorySettings,
    /// The thread whose lease covers it, through the session that links it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_by: Option<(AgentId, ThreadId)>,
    /// Set once it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// How a memory is kept in bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySettings {
    /// The newest so many items are kept. At least 1.
    pub max_messages: u32,
    /// Whether pinned messages take no place in the window and are never dropped.
    #[serde(default)]
    pub protect_pinned: bool,
    /// How items beyond a cap are folded; absent means they are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionSettings>,
    /// How many facts a load adds; absent means no grounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grounding_facts: Option<u32>,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            max_messages: 50,
            protect_pinned: false,
            compaction: None,
            grounding_facts: None,
        }
    }
}

/// How a memory is folded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionSettings {
    /// Fold when there are more items than this. At least 1, at most the window.
    pub max_messages: u32,
    /// Who writes the summary: `extractive`, `client`, or the name of a configured
    /// summarizer.
    pub summarizer: String,
}

impl MemorySettings {
    /// Checks the bounds.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], naming the field.
    pub fn check(&self) -> Result<()> {
        if self.max_messages < 1 {
            return Err(Error::argument(
                "settings.max_messages",
                "must be at least 1",
            ));
        }
        if let Some(compaction) = &self.compaction {
            if compaction.max_messages < 1 {
                return Err(Error::argument(
                    "settings.compaction.max_messages",
                    "must be at least 1",
                ));
            }
            if compaction.max_messages > self.max_messages {
                return Err(Error::argument(
                    "settings.compaction.max_messages",
                    "must not be above settings.max_messages, or nothing would ever be folded",
                ));
            }
        }
        Ok(())
    }
}

/// What a caller says about the resource it wants to change, beyond naming it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own on the wire, and any of them may be combined"
)]
pub struct Preconditions {
    /// The etag must still be this.
    pub etag: Option<Revision>,
    /// The last `seq` must still be this.
    pub base_seq: Option<i64>,
    /// Replace whatever is there.
    pub overwrite: bool,
    /// Refuse to make it.
    pub must_exist: bool,
    /// Refuse to change it.
    pub must_not_exist: bool,
    /// Make it anew although it was deleted lately.
    pub recreate: bool,
}

impl Preconditions {
    /// Whether one of them lets a call replace what is stored.
    #[must_use]
    pub const fn allows_replacing(&self) -> bool {
        self.etag.is_some() || self.base_seq.is_some() || self.overwrite
    }

    /// Checks the etag and the sequence number against what is stored.
    ///
    /// # Errors
    ///
    /// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`].
    pub fn check(&self, what: &str, etag: Stamp, last_seq: i64) -> Result<()> {
        if let Some(seen) = self.etag
            && !etag.is(seen)
        {
            return Err(Error::new(
                Reason::EtagMismatch,
                format!("the {what} has changed since this etag; read it again, then decide again"),
            ));
        }
        if let Some(seq) = self.base_seq
            && seq != last_seq
        {
            return Err(Error::new(
                Reason::SeqMismatch,
                format!("the {what} is at seq {last_seq}, not {seq}; read what was added, then decide again"),
            )
            .with("last_seq", last_seq));
        }
        Ok(())
    }
}
