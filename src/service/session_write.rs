//! What every write to a session does: opening it, writing messages and state,
//! telling the timeline, and keeping the linked memory in step.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::caller::Caller;
use crate::domain::diff::{Candidate, Sketch, Standing, Step, common_ends, fragments, steps};
use crate::domain::error::{Error, Reason};
use crate::domain::id::{MemoryRef, SessionRef};
use crate::domain::log::{Head, History, LogId, Origin, Range, RowRef, Transcript};
use crate::domain::message::Item;
use crate::domain::revision::Stamp;
use crate::domain::session::{Listing, Memory, MemorySettings, Preconditions, Session};
use crate::domain::state::{Source, StateUpdate};
use crate::domain::time::Timestamp;
use crate::domain::timeline::{Entry, EntryKind, Link};
use crate::storage::entities::{memory_key, session_key, timeline_prefix};
use crate::storage::overlay::Overlay;
use crate::storage::typed::{
    ChangeSet, EncodedItem, Loaded, cells, decode, items, load, transcript,
};
use crate::storage::{Abort, Direction, Error as StoreError, Kind, Reads, Stretch};

/// How long a deleted session, thread or memory refuses late writes.
pub const TOMBSTONE_TTL: Duration = Duration::from_hours(30 * 24);

/// How many items at a time are looked at when a memory follows its session.
const CHUNK: u64 = 128;

/// What a call does to a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum MessageWrite {
    /// Nothing.
    Keep,
    /// Adds these at the end.
    Append(Vec<EncodedItem>),
    /// Makes these the whole of it. Only what is not stored yet is written.
    Replace(Vec<EncodedItem>),
}

/// Opens a session for writing: as it is stored, or new if it is absent.
///
/// # Errors
///
/// [`Reason::SessionNotFound`] under `must_exist`, [`Reason::AlreadyExists`] under
/// `must_not_exist`, [`Reason::Deleted`] without `recreate`,
/// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`].
pub async fn open_session(
    reads: &mut dyn Reads,
    key: &SessionRef,
    preconditions: &Preconditions,
    new_log: LogId,
) -> Result<Loaded<Session>, Abort> {
    let now = reads.now();
    let found = load::<Session>(reads, &session_key(key)).await?;
    let Some(mut found) = found else {
        if preconditions.must_exist {
            return Err(session_not_found().into());
        }
        // The timeline of a session outlives every trace of it.
        let timeline_rev = last_timeline_rev(reads, key).await?;
        let fresh = Session {
            timeline_rev,
            ..new_session(key, new_log, now)
        };
        preconditions.check("session", fresh.etag, 0)?;
        return Ok(Loaded::fresh(fresh));
    };
    let Some(deleted_at) = found.value.deleted_at else {
        if preconditions.must_not_exist {
            return Err(Error::new(
                Reason::AlreadyExists,
                "the session exists; drop must_not_exist to change it",
            )
            .into());
        }
        preconditions.check("session", found.value.etag, found.value.head.last_seq)?;
        return Ok(found);
    };
    if preconditions.must_exist {
        return Err(session_not_found().into());
    }
    if !preconditions.recreate && now < deleted_at.after(TOMBSTONE_TTL) {
        return Err(Error::new(
            Reason::Deleted,
            "the session was deleted; send recreate to make it anew, or use another session_id",
        )
        .into());
    }
    let timeline_rev = found.value.timeline_rev;
    found.value = Session {
        timeline_rev,
        ..new_session(key, new_log, now)
    };
    Ok(found)
}

/// The refusal of whoever names a session that is not there.
#[must_use]
pub fn session_not_found() -> Error {
    Error::new(
        Reason::SessionNotFound,
        "there is no such session; check agent_id, user_id and session_id",
    )
}

fn new_session(key: &SessionRef, log: LogId, now: Timestamp) -> Session {
    Session {
        key: key.clone(),
        generation: Stamp::THIS_COMMIT,
        etag: Stamp::THIS_COMMIT,
        listing_etag: Stamp::THIS_COMMIT,
        created_at: now,
        saved_at: now,
        head: Head::new(log),
        state: None,
        plugin_states: None,
        fields: Vec::new(),
        working_memory_count: 0,
        format_version: None,
        evidence_scope_digest: None,
        task_scope_digest: None,
        listing: Listing::default(),
        memory_id: None,
        timeline_rev: 0,
        turn: 0,
        non_message_count: 0,
        leased_by: None,
        branched_from: None,
        deleted_at: None,
    }
}

async fn last_timeline_rev(reads: &mut dyn Reads, key: &SessionRef) -> Result<i64, Abort> {
    let stretch = Stretch {
        prefix: timeline_prefix(key),
        after: None,
        direction: Direction::Backward,
        limit: 1,
    };
    let last = reads
        .records(
            Kind::TimelineEntry,
            &stretch,
            crate::domain::revision::Revision::LATEST,
        )
        .await?;
    match last.first() {
        Some((key, version)) => Ok(decode::<Entry>(reads.tenant(), key, version)?.value.rev),
        None => Ok(0),
    }
}

/// Marks a session's content as changed by this commit.
pub fn touch(session: &mut Session, now: Timestamp) {
    session.etag = Stamp::THIS_COMMIT;
    session.saved_at = now;
}

/// What a write did to a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Whether the history is another now.
    pub changed: bool,
    /// How many of the items were stored already.
    pub matched: u64,
    /// How many were new to the log, edits included.
    pub new: u64,
}

/// Writes messages, and says what that did to the history.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn write_messages(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    write: &MessageWrite,
    now: Timestamp,
) -> Result<Written, Abort> {
    let written = match write {
        MessageWrite::Keep => Written::default(),
        MessageWrite::Append(sent) => {
            append(changes, session, sent);
            added(0, sent)
        }
        MessageWrite::Replace(sent) => replace(reads, changes, session, sent).await?,
    };
    if written.changed {
        touch(session, now);
    }
    Ok(written)
}

/// What adding items to a history, of which some were stored already, did.
const fn added(matched: u64, new: &[EncodedItem]) -> Written {
    Written {
        changed: !new.is_empty(),
        matched,
        new: new.len() as u64,
    }
}

/// Counts a new item.
fn count(session: &mut Session, item: &EncodedItem) {
    session.turn += i64::from(item.sketch().is_user());
    session.non_message_count += u64::from(item.sketch().role.is_none());
}

fn append(changes: &mut ChangeSet, session: &mut Session, sent: &[EncodedItem]) {
    for item in sent {
        changes.append_item(&mut session.head, Origin::Said, item);
        count(session, item);
    }
}

/// Makes `sent` the history, writing only what is not stored.
async fn replace(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    sent: &[EncodedItem],
) -> Result<Written, Abort> {
    let history = session.head.history();
    let before = transcript(reads, &history).await?;
    let stored = standings(reads, &before).await?;
    let sketches: Vec<Sketch> = sent.iter().map(EncodedItem::sketch).collect();
    let ends = common_ends(&stored, &sketches);
    let (middle_from, middle_to) = (ends.prefix, stored.len() - ends.suffix);

    let stored_items = if middle_from == middle_to || ends.prefix + ends.suffix == sent.len() {
        Vec::new()
    } else {
        items(reads, &history, middle_from as u64, middle_to as u64).await?
    };
    let stored_middle: Vec<_> = stored_items
        .iter()
        .map(|stored| Candidate::of(&stored.item))
        .collect();
    let unmatched = match stored_items.as_slice() {
        [] => &[],
        _ => sent
            .get(ends.prefix..sent.len() - ends.suffix)
            .unwrap_or_default(),
    };
    let sent_items: Vec<Item> = unmatched
        .iter()
        .map(EncodedItem::item)
        .collect::<Result<_, _>>()?;
    let sent_middle: Vec<_> = sent_items.iter().map(Candidate::of).collect();
    let steps = steps(&stored, &sketches, ends, &stored_middle, &sent_middle);

    let kept = steps
        .iter()
        .zip(&stored)
        .take_while(|(step, stored)| **step == Step::Keep(stored.range))
        .count();
    let rest = steps.get(kept..).unwrap_or_default();
    let only_adds = kept == stored.len() && rest.iter().all(|step| matches!(step, Step::Write(_)));
    if only_adds {
        let new = sent.get(sent.len() - rest.len()..).unwrap_or_default();
        append(changes, session, new);
        return Ok(added(kept as u64, new));
    }

    let mut written = Written {
        changed: true,
        ..Written::default()
    };
    let mut after = Transcript::default();
    for step in steps {
        match step {
            Step::Keep(range) => {
                written.matched += 1;
                after.push(range);
            }
            Step::Write(at) => {
                let Some(item) = sent.get(at) else { continue };
                written.new += 1;
                let row = changes.append_item(&mut session.head, Origin::Said, item);
                count(session, item);
                after.push(one(row, None));
            }
            Step::Edit {
                stored: from,
                sent: at,
            } => {
                let Some(item) = sent.get(at) else { continue };
                written.new += 1;
                let mut edited = item.item()?;
                let known = stored_items
                    .get(from.wrapping_sub(middle_from))
                    .and_then(|stored| stored.item.created_at());
                if let Some(known) = known {
                    edited.stamp(known);
                }
                let row = changes.append_item(
                    &mut session.head,
                    Origin::Edit,
                    &EncodedItem::new(&edited)?,
                );
                after.push(one(row, None));
            }
        }
    }
    if written.new == 0 {
        session.head.skip_seq();
    }
    rebase(reads, changes, &mut session.head, &after).await?;
    Ok(written)
}

/// A range of one row.
#[must_use]
pub const fn one(row: RowRef, pinned: Option<bool>) -> Range {
    Range {
        log: row.log,
        from: row.number,
        to: row.number,
        pinned,
    }
}

/// Each item of a transcript by its sketch, without its body.
async fn standings(reads: &mut dyn Reads, transcript: &Transcript) -> Result<Vec<Standing>, Abort> {
    let mut standings = Vec::new();
    for range in transcript.ranges() {
        let marks = reads.marks(range.log, range.from, range.to).await?;
        if marks.len() as u64 != range.len() {
            return Err(missing_rows(range).into());
        }
        standings.extend(marks.into_iter().map(|mark| Standing {
            range: Range {
                from: mark.number,
                to: mark.number,
                ..*range
            },
            sketch: Sketch::from_digest(mark.mark),
        }));
    }
    Ok(standings)
}

fn missing_rows(range: &Range) -> StoreError {
    StoreError::Corrupt {
        kind: crate::storage::Corrupt::Log,
        key: range.log.0.to_string(),
        problem: format!("rows are missing between {} and {}", range.from, range.to),
    }
}

/// The items of ranges that are too short for how many there are.
async fn joined_items(
    reads: &mut dyn Reads,
    transcript: &Transcript,
) -> Result<Vec<Option<Vec<EncodedItem>>>, Abort> {
    let mut joined = Vec::new();
    for (range, copied) in transcript.ranges().iter().zip(fragments(transcript)) {
        joined.push(if copied {
            let mut stored = Vec::new();
            crate::storage::typed::read_range(reads, range, &mut stored).await?;
            let encoded: Result<Vec<_>, _> = stored
                .iter()
                .map(|stored| EncodedItem::new(&stored.item))
                .collect();
            Some(encoded?)
        } else {
            None
        });
    }
    Ok(joined)
}

/// Makes a transcript the history, with ranges to join written anew.
fn set_transcript(
    changes: &mut ChangeSet,
    head: &mut Head,
    transcript: &Transcript,
    joined: &[Option<Vec<EncodedItem>>],
) -> Result<(), StoreError> {
    let mut after = Transcript::default();
    for (range, joined) in transcript.ranges().iter().zip(joined) {
        match joined {
            None => after.push(*range),
            Some(items) => {
                for item in items {
                    // Its pin is in the item that was read.
                    let row = changes.append_item(head, Origin::Restore, item);
                    after.push(one(row, None));
                }
            }
        }
    }
    changes.rebase(head, &after)
}

/// Makes a transcript a head's history, with at most as many ranges as allowed.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn rebase(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    head: &mut Head,
    transcript: &Transcript,
) -> Result<(), Abort> {
    let mut overlay = Overlay::new(reads, changes);
    let joined = joined_items(&mut overlay, transcript).await?;
    Ok(set_transcript(changes, head, transcript, &joined)?)
}

/// Writes a change of a list of named values, and answers with the new list.
///
/// A value equal to the one before makes no new cell, and an unchanged list no new
/// node.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn write_state(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    head: &mut Head,
    current: Option<RowRef>,
    update: &StateUpdate,
) -> Result<Option<RowRef>, Abort> {
    let before = cells(reads, current).await?;
    let named: Vec<(&str, usize)> = before
        .iter()
        .enumerate()
        .map(|(at, cell)| (cell.name.as_str(), at))
        .collect();
    let mut after = Vec::new();
    for (name, source) in update.apply(&named) {
        match source {
            Source::Stored(at) => after.extend(before.get(at).cloned()),
            Source::Given(given, known) => {
                let Some((_, value)) = update.entries.get(given) else {
                    continue;
                };
                let value = Bytes::copy_from_slice(value.as_bytes());
                after.push(changes.write_cell(
                    head,
                    name,
                    &value,
                    known.and_then(|at| before.get(at)),
                ));
            }
        }
    }
    if after == before {
        return Ok(current);
    }
    Ok(changes.write_cells(head, &after)?)
}

/// Adds an entry to a session's timeline. The session is the caller's to store.
///
/// # Errors
///
/// [`StoreError::Internal`] when it cannot be spelled as JSON.
pub fn push_entry(
    changes: &mut ChangeSet,
    session: &mut Session,
    caller: &Caller,
    kind: EntryKind,
    label: &str,
    link: Option<Link>,
    now: Timestamp,
) -> Result<i64, StoreError> {
    session.timeline_rev += 1;
    changes.insert(&Entry {
        session: session.key.clone(),
        rev: session.timeline_rev,
        kind,
        label: label.to_owned(),
        at: now,
        principal: caller.principal.clone(),
        link,
        data_json: None,
    })?;
    Ok(session.timeline_rev)
}

/// Sets the linked memory to the session's history, system messages left out, in
/// the memory's window. By reference: no message is written again.
///
/// # Errors
///
/// [`Reason::Deleted`] when the memory was deleted; [`Abort::Store`] from `reads`.
pub async fn sync_memory(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &Session,
) -> Result<(), Abort> {
    let Some(memory_id) = &session.memory_id else {
        return Ok(());
    };
    let key = MemoryRef {
        agent: session.key.agent.clone(),
        memory: memory_id.clone(),
    };
    let now = reads.now();
    let found = changes.load::<Memory>(reads, &memory_key(&key)).await?;
    let mut memory = match found {
        Some(found) if found.value.deleted_at.is_none() => found,
        Some(_) => {
            return Err(Error::new(
                Reason::Deleted,
                "the session's memory was deleted; link another one, or make it anew with recreate",
            )
            .into());
        }
        // A log of its own for a memory that nothing else has written to: one id in
        // the session's log's name space, so that the operation can run again.
        None => Loaded::fresh(Memory {
            owner: session.key.user.clone(),
            leased_by: session
                .leased_by
                .clone()
                .map(|thread| (key.agent.clone(), thread)),
            ..new_memory(&key, memory_log(session), now)
        }),
    };
    let mut overlay = Overlay::new(reads, changes);
    let wanted = window_of(
        &mut overlay,
        &session.head.history(),
        &memory.value.settings,
        WindowOf::Session {
            has_non_messages: session.non_message_count > 0,
        },
    )
    .await?;
    let current = transcript(&mut overlay, &memory.value.head.history()).await?;
    if wanted != current || memory.is_fresh() {
        memory.value.head.skip_seq();
        rebase(reads, changes, &mut memory.value.head, &wanted).await?;
        memory.value.etag = Stamp::THIS_COMMIT;
        memory.value.updated_at = now;
        changes.update(&memory)?;
    }
    Ok(())
}

/// The log of a memory that its session makes: a name made from the session's log
/// and the memory's id.
fn memory_log(session: &Session) -> LogId {
    use sha2::{Digest as _, Sha256};

    let mut hash = Sha256::new();
    hash.update(session.head.log.0.as_bytes());
    hash.update(session.head.last_seq.to_be_bytes());
    hash.update(
        session
            .memory_id
            .as_ref()
            .map_or("", |memory| memory.as_str()),
    );
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    LogId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// A memory that nothing was written to.
#[must_use]
pub fn new_memory(key: &MemoryRef, log: LogId, now: Timestamp) -> Memory {
    Memory {
        key: key.clone(),
        owner: None,
        generation: Stamp::THIS_COMMIT,
        etag: Stamp::THIS_COMMIT,
        settings_etag: Stamp::THIS_COMMIT,
        created_at: now,
        updated_at: now,
        head: Head::new(log),
        settings: MemorySettings::default(),
        leased_by: None,
        deleted_at: None,
    }
}

/// Whose history a memory is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOf {
    /// A session's: system messages are left out.
    Session {
        /// Whether an item that is no message was ever written to it.
        has_non_messages: bool,
    },
    /// The memory's own.
    Memory,
}

/// The part of a history that a memory holds: the newest that its window has room
/// for, and whatever is no message, which takes no place and is never dropped.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn window_of(
    reads: &mut dyn Reads,
    history: &History,
    settings: &MemorySettings,
    of: WindowOf,
) -> Result<Transcript, Abort> {
    let whole = transcript(reads, history).await?;
    let room = u64::from(settings.max_messages);
    // From the end, so that the cost is the window's and not the history's. What
    // stays in any case may be anywhere, so that takes a look at everything.
    let to_the_start = settings.protect_pinned
        || match of {
            WindowOf::Session { has_non_messages } => has_non_messages,
            WindowOf::Memory => true,
        };
    let (mut taken, mut end, mut newest) = (0_u64, whole.len(), Vec::new());
    while end > 0 && (taken < room || to_the_start) {
        let start = end.saturating_sub(CHUNK);
        let part = whole.slice(start, end);
        for standing in standings(reads, &part).await?.into_iter().rev() {
            if of != WindowOf::Memory && standing.sketch.is_system() {
                continue;
            }
            let stays =
                standing.sketch.role.is_none() || (settings.protect_pinned && standing.is_pinned());
            if stays || taken < room {
                newest.push(standing.range);
                taken += u64::from(!stays);
            }
        }
        end = start;
    }
    Ok(Transcript::new(newest.into_iter().rev()))
}
