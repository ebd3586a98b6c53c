//! Timeline entries.

use super::common::{session_ref, time};
use crate::domain::error::{Error, Result};
use crate::domain::revision::Revision;
use crate::domain::timeline::{Entry, EntryKind, Link};
use crate::proto::v1;
use crate::service::watch::Farewell;

/// The kinds of entry in a field.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`].
pub fn kinds(field: &str, filter: Option<v1::TimelineFilter>) -> Result<Vec<EntryKind>> {
    let v1::TimelineFilter { kinds } = filter.unwrap_or_default();
    let one = |(at, kind): (usize, i32)| match v1::timeline_entry::Kind::try_from(kind) {
        Ok(v1::timeline_entry::Kind::Run) => Ok(EntryKind::Run),
        Ok(v1::timeline_entry::Kind::Edit) => Ok(EntryKind::Edit),
        Ok(v1::timeline_entry::Kind::Branch) => Ok(EntryKind::Branch),
        Ok(v1::timeline_entry::Kind::Resume) => Ok(EntryKind::Resume),
        Ok(v1::timeline_entry::Kind::Snapshot) => Ok(EntryKind::Snapshot),
        Ok(v1::timeline_entry::Kind::Pause) => Ok(EntryKind::Pause),
        Ok(v1::timeline_entry::Kind::Interrupt) => Ok(EntryKind::Interrupt),
        Ok(v1::timeline_entry::Kind::Decision) => Ok(EntryKind::Decision),
        Ok(v1::timeline_entry::Kind::Restore) => Ok(EntryKind::Restore),
        Ok(v1::timeline_entry::Kind::Custom) => Ok(EntryKind::Custom),
        Ok(v1::timeline_entry::Kind::Unspecified) | Err(_) => Err(Error::argument(
            format!("{field}.kinds[{at}]"),
            "must be a kind of entry",
        )),
    };
    kinds.into_iter().enumerate().map(one).collect()
}

/// An entry on the wire. `revision` is the commit that wrote it.
#[must_use]
pub fn entry(entry: Entry, revision: Revision) -> v1::TimelineEntry {
    let kind = match entry.kind {
        EntryKind::Run => v1::timeline_entry::Kind::Run,
        EntryKind::Edit => v1::timeline_entry::Kind::Edit,
        EntryKind::Branch => v1::timeline_entry::Kind::Branch,
        EntryKind::Resume => v1::timeline_entry::Kind::Resume,
        EntryKind::Snapshot => v1::timeline_entry::Kind::Snapshot,
        EntryKind::Pause => v1::timeline_entry::Kind::Pause,
        EntryKind::Interrupt => v1::timeline_entry::Kind::Interrupt,
        EntryKind::Decision => v1::timeline_entry::Kind::Decision,
        EntryKind::Restore => v1::timeline_entry::Kind::Restore,
        EntryKind::Custom => v1::timeline_entry::Kind::Custom,
    };
    let link = entry.link.map(|link| match link {
        Link::Run(run) => v1::timeline_entry::Link::RunId(run.to_string()),
        Link::Checkpoint(id) => v1::timeline_entry::Link::Checkpoint(v1::CheckpointRef {
            thread: None,
            checkpoint_id: id.to_string(),
        }),
        Link::Interrupt(id) => v1::timeline_entry::Link::InterruptId(id.to_string()),
        Link::Snapshot(id) => v1::timeline_entry::Link::SnapshotId(id.to_string()),
        Link::Session(key) => v1::timeline_entry::Link::Branch(session_ref(&key)),
        Link::Item { seq } => v1::timeline_entry::Link::MessageSeq(seq),
    });
    v1::TimelineEntry {
        session: Some(session_ref(&entry.session)),
        rev: entry.rev,
        kind: kind.into(),
        label: entry.label,
        at: Some(time(entry.at)),
        principal: entry.principal.to_string(),
        link,
        data_json: entry.data_json,
        revision: revision.get(),
    }
}

/// A farewell on the wire.
#[must_use]
pub fn goodbye(farewell: Farewell) -> v1::Goodbye {
    let reason = match farewell {
        Farewell::Drain => v1::goodbye::Reason::Drain,
        Farewell::MaxAge => v1::goodbye::Reason::MaxAge,
    };
    v1::Goodbye {
        reason: reason.into(),
    }
}
