//! Memories and their settings.

use super::common::{count, memory_ref, time};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::revision::Revision;
use crate::domain::session::{Memory, MemorySettings};
use crate::proto::v1;

/// The settings in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`]; [`Reason::NotImplemented`] for folding and
/// [`Reason::GroundingUnavailable`] for grounding.
pub fn settings(field: &str, settings: Option<v1::MemorySettings>) -> Result<MemorySettings> {
    let Some(settings) = settings else {
        return Err(Error::argument(field, "is required"));
    };
    let v1::MemorySettings {
        max_messages,
        compaction,
        grounding,
        protect_pinned,
    } = settings;
    if compaction.is_some() {
        let message = "compaction is not available yet; leave it out, and the window drops the oldest messages";
        return Err(Error::new(Reason::NotImplemented, message).at(format!("{field}.compaction")));
    }
    if grounding.is_some() {
        let message = "there is no graph to ground answers in; leave grounding out";
        return Err(
            Error::new(Reason::GroundingUnavailable, message).at(format!("{field}.grounding"))
        );
    }
    let default = MemorySettings::default();
    let max_messages = match max_messages {
        None => default.max_messages,
        Some(number) => u32::try_from(number)
            .map_err(|_| Error::argument(format!("{field}.max_messages"), "must be at least 1"))?,
    };
    let settings = MemorySettings {
        max_messages,
        protect_pinned,
        ..default
    };
    settings.check()?;
    Ok(settings)
}

/// A memory on the wire. `revision` is the commit that last changed it.
#[must_use]
pub fn memory(memory: &Memory, etags: (String, String), revision: Revision) -> v1::Memory {
    let (etag, settings_etag) = etags;
    v1::Memory {
        memory: Some(memory_ref(&memory.key)),
        user_id: memory.owner.as_ref().map(ToString::to_string),
        settings: Some(v1::MemorySettings {
            max_messages: Some(count(memory.settings.max_messages)),
            compaction: None,
            grounding: None,
            protect_pinned: memory.settings.protect_pinned,
        }),
        settings_etag,
        etag,
        message_count: count(memory.head.len()),
        last_seq: memory.head.last_seq,
        compaction: None,
        create_time: Some(time(memory.created_at)),
        update_time: Some(time(memory.updated_at)),
        revision: revision.get(),
    }
}
