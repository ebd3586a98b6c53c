//! What a session holds beside its history and state: prompts, plugin states,
//! pending input, listing metadata, and the link to a memory.

use serde::{Deserialize, Serialize};

use super::bytes_of;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{MemoryId, MemoryRef};
use crate::domain::json;
use crate::domain::log::Cell;
use crate::domain::message::Item;
use crate::domain::revision::Revision;
use crate::domain::session::{Listing, Memory, Session, field};
use crate::domain::state::{StateMode, StateUpdate};
use crate::domain::thread::{Token, check_token};
use crate::service::cover::covering_thread;
use crate::service::session_write::write_state;
use crate::storage::entities::memory_key;
use crate::storage::typed::{ChangeSet, Loaded, cell_text, cells, load_at};
use crate::storage::{Abort, Error as StoreError, Reads};

/// The plugin whose entries lists count.
const WORKING_MEMORY: &str = "working_memory";

/// What a call changes of a session beside its history and state. Absent keeps,
/// present and empty empties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BodyUpdate {
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The instructions.
    pub instructions: Option<String>,
    /// Names and JSON texts of all plugin states, names unique.
    pub plugin_states: Option<Vec<(String, String)>>,
    /// Input that no turn has answered.
    pub pending_input: Option<Vec<Item>>,
    /// A JSON object stored with the body; an empty text removes it.
    pub state_metadata_json: Option<String>,
    /// The format version of the client's data.
    pub format_version: Option<i64>,
    /// The digest of the evidence scope.
    pub evidence_scope_digest: Option<String>,
    /// The digest of the task scope.
    pub task_scope_digest: Option<String>,
}

/// The body of a session without its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Keys and JSON texts of the state, in order.
    pub state: Vec<(String, String)>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The instructions.
    pub instructions: Option<String>,
    /// Names and JSON texts of the plugin states.
    pub plugin_states: Vec<(String, String)>,
    /// Input that no turn has answered.
    pub pending_input: Vec<Item>,
    /// A JSON object.
    pub state_metadata_json: Option<String>,
}

/// The cell that holds a field of a session.
#[must_use]
pub fn field_cell<'a>(session: &'a Session, name: &str) -> Option<&'a Cell> {
    session.fields.iter().find(|cell| cell.name == name)
}

/// Writes the fields of a session, and says whether one changed.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn write_body(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    update: &BodyUpdate,
) -> Result<bool, Abort> {
    let BodyUpdate {
        system_prompt,
        instructions,
        plugin_states,
        pending_input,
        state_metadata_json,
        format_version,
        evidence_scope_digest,
        task_scope_digest,
    } = update;
    let before = session.clone();
    for (name, value) in [
        (field::SYSTEM_PROMPT, system_prompt),
        (field::INSTRUCTIONS, instructions),
    ] {
        if let Some(value) = value {
            write_text(changes, session, name, value);
        }
    }
    match state_metadata_json.as_deref() {
        None => {}
        Some("") => clear(session, field::STATE_METADATA),
        Some(object) => write_text(changes, session, field::STATE_METADATA, object),
    }
    match pending_input {
        None => {}
        Some(items) if items.is_empty() => clear(session, field::PENDING_INPUT),
        Some(items) => {
            let text = serde_json::to_string(items)
                .map_err(|error| StoreError::Internal(error.to_string()))?;
            write_text(changes, session, field::PENDING_INPUT, &text);
        }
    }
    if let Some(states) = plugin_states {
        write_plugin_states(reads, changes, session, states).await?;
    }
    for (stored, given) in [
        (&mut session.evidence_scope_digest, evidence_scope_digest),
        (&mut session.task_scope_digest, task_scope_digest),
    ] {
        if let Some(given) = given {
            *stored = (!given.is_empty()).then(|| given.clone());
        }
    }
    session.format_version = format_version.or(session.format_version);
    Ok(*session != before)
}

fn write_text(changes: &mut ChangeSet, session: &mut Session, name: &str, value: &str) {
    let before = field_cell(session, name).cloned();
    let cell = changes.write_cell(&mut session.head, name, &bytes_of(value), before.as_ref());
    set(session, cell);
}

fn set(session: &mut Session, cell: Cell) {
    let stored = session
        .fields
        .iter_mut()
        .find(|field| field.name == cell.name);
    if let Some(stored) = stored {
        *stored = cell;
    } else {
        session.fields.push(cell);
    }
}

fn clear(session: &mut Session, name: &str) {
    session.fields.retain(|cell| cell.name != name);
}

async fn write_plugin_states(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    states: &[(String, String)],
) -> Result<(), Abort> {
    let working_memory = states.iter().find(|(name, _)| name == WORKING_MEMORY);
    session.working_memory_count = working_memory.map_or(0, |(_, value)| entries(value));
    let update = StateUpdate {
        mode: StateMode::Replace,
        entries: states.to_vec(),
        delete_keys: Vec::new(),
    };
    let current = session.plugin_states;
    session.plugin_states =
        write_state(reads, changes, &mut session.head, current, &update).await?;
    Ok(())
}

/// How many entries the state of the working memory has.
fn entries(value: &str) -> u64 {
    #[derive(Deserialize)]
    struct WorkingMemory {
        #[serde(default)]
        entries: Vec<serde::de::IgnoredAny>,
    }

    serde_json::from_str::<WorkingMemory>(value)
        .map_or(0, |memory| u64::try_from(memory.entries.len()).unwrap_or(0))
}

/// The body of a session.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn read_body(reads: &mut dyn Reads, session: &Session) -> Result<Body, Abort> {
    let pending_input = match read_text(reads, session, field::PENDING_INPUT).await? {
        None => Vec::new(),
        Some(text) => serde_json::from_str(&text).map_err(|error| StoreError::Corrupt {
            kind: crate::storage::Corrupt::Log,
            key: session.head.log.0.to_string(),
            problem: format!("the pending input cannot be read: {error}"),
        })?,
    };
    Ok(Body {
        state: read_cells(reads, session.state).await?,
        system_prompt: read_text(reads, session, field::SYSTEM_PROMPT).await?,
        instructions: read_text(reads, session, field::INSTRUCTIONS).await?,
        plugin_states: read_cells(reads, session.plugin_states).await?,
        pending_input,
        state_metadata_json: read_text(reads, session, field::STATE_METADATA).await?,
    })
}

async fn read_text(
    reads: &mut dyn Reads,
    session: &Session,
    name: &str,
) -> Result<Option<String>, Abort> {
    match field_cell(session, name) {
        Some(cell) => Ok(Some(cell_text(reads, cell.at).await?)),
        None => Ok(None),
    }
}

async fn read_cells(
    reads: &mut dyn Reads,
    list: Option<crate::domain::log::RowRef>,
) -> Result<Vec<(String, String)>, Abort> {
    let mut values = Vec::new();
    for cell in cells(reads, list).await? {
        let value = cell_text(reads, cell.at).await?;
        values.push((cell.name, value));
    }
    Ok(values)
}

/// A change of listing metadata. Absent keeps, present and empty clears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ListingUpdate {
    /// The title.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The tags.
    pub tags: Option<Vec<String>>,
    /// A JSON object; an empty text removes it.
    pub extra_json: Option<String>,
    /// Whether the members of `extra_json` are merged into the stored ones instead
    /// of replacing them.
    pub merge_extra: bool,
    /// Members to remove from the stored ones.
    pub delete_extra_keys: Vec<String>,
}

/// Changes listing metadata, and says whether it is another now.
///
/// # Errors
///
/// [`Reason::LimitExceeded`] when what is merged is too large.
pub fn write_listing(listing: &mut Listing, update: &ListingUpdate, most: usize) -> Result<bool> {
    let before = listing.clone();
    for (stored, given) in [
        (&mut listing.title, &update.title),
        (&mut listing.description, &update.description),
    ] {
        if let Some(given) = given {
            *stored = (!given.is_empty()).then(|| given.clone());
        }
    }
    if let Some(tags) = &update.tags {
        listing.tags.clone_from(tags);
    }
    match (update.extra_json.as_deref(), update.merge_extra) {
        (Some(""), _) => listing.metadata_json = None,
        (Some(given), false) => listing.metadata_json = Some(given.to_owned()),
        (given, true) if given.is_some() || !update.delete_extra_keys.is_empty() => {
            let stored = listing.metadata_json.as_deref().unwrap_or("{}");
            let merged = merge(stored, given.unwrap_or("{}"), &update.delete_extra_keys);
            if merged.len() > most {
                return Err(too_large(merged.len(), most));
            }
            listing.metadata_json = Some(merged);
        }
        (_, _) => {}
    }
    Ok(*listing != before)
}

fn too_large(actual: usize, most: usize) -> Error {
    let message = format!(
        "listing.extra_json would have {actual} bytes, and {most} is the most; remove keys"
    );
    Error::new(Reason::LimitExceeded, message)
        .at("listing.extra_json")
        .with("limit", most)
        .with("actual", actual)
}

/// The members of two JSON objects, the second's before the first's, each with its
/// text as it was written.
fn merge(stored: &str, given: &str, delete: &[String]) -> String {
    let stored = json::members(stored).unwrap_or_default();
    let given = json::members(given).unwrap_or_default();
    let find = |key: &str| given.iter().find(|(name, _)| name == key);
    let kept = stored
        .iter()
        .filter(|(key, _)| !delete.iter().any(|name| name == key))
        .map(|(key, value)| (key, find(key).map_or(*value, |(_, value)| *value)));
    let added = given
        .iter()
        .filter(|(key, _)| {
            delete.iter().any(|name| name == key) || !stored.iter().any(|(name, _)| name == key)
        })
        .map(|(key, value)| (key, *value));
    let members: Vec<String> = kept
        .chain(added)
        .map(|(key, value)| format!("{}:{value}", serde_json::Value::from(key.as_ref())))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// What a call does to the link between a session and a memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum MemoryLink {
    /// Nothing.
    #[default]
    Keep,
    /// Links this memory instead of any other.
    To(MemoryId),
    /// Links none.
    Unlink,
}

/// The memory that a session links.
#[must_use]
pub fn linked(session: &Session) -> Option<MemoryRef> {
    session.memory_id.as_ref().map(|memory| MemoryRef {
        agent: session.key.agent.clone(),
        memory: memory.clone(),
    })
}

/// The memory that a session links, if it is there.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn linked_memory(
    reads: &mut dyn Reads,
    session: &Session,
    at: Revision,
) -> Result<Option<Loaded<Memory>>, Abort> {
    let Some(key) = linked(session) else {
        return Ok(None);
    };
    let found = load_at::<Memory>(reads, &memory_key(&key), at).await?;
    Ok(found.filter(|memory| memory.value.deleted_at.is_none()))
}

/// Refuses to write to the linked memory when it belongs to another user, or when
/// a lease covers it, through another session, that the token does not prove.
///
/// # Errors
///
/// [`Reason::PermissionDenied`], [`Reason::TokenRequired`], [`Reason::Fenced`].
pub async fn check_linked(
    reads: &mut dyn Reads,
    session: &Session,
    token: Option<&Token>,
) -> Result<(), Abort> {
    let Some(memory) = linked_memory(reads, session, Revision::LATEST).await? else {
        return Ok(());
    };
    if memory.value.owner.is_some() && memory.value.owner != session.key.user {
        return Err(Error::new(
            Reason::PermissionDenied,
            "the linked memory belongs to another user; use another memory_id",
        )
        .at("memory_id")
        .into());
    }
    let Some((agent, thread)) = &memory.value.leased_by else {
        return Ok(());
    };
    let covering = covering_thread(reads, agent, Some(thread)).await?;
    let covering = covering.as_ref().map(|thread| &thread.value);
    if covering.is_some_and(|thread| thread.lease.is_some()) {
        check_token(covering, token)?;
    }
    Ok(())
}

/// Links a session to another memory, or to none, and says whether that changed
/// it. Copies nothing.
///
/// # Errors
///
/// [`Reason::PreconditionRequired`] when another memory is linked and no etag was
/// sent; and as [`check_linked`].
pub async fn relink(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    link: &MemoryLink,
    has_etag: bool,
    token: Option<&Token>,
) -> Result<bool, Abort> {
    let memory = match link {
        MemoryLink::Keep => return Ok(false),
        MemoryLink::To(memory) => Some(memory),
        MemoryLink::Unlink => None,
    };
    if session.memory_id.as_ref() == memory {
        return Ok(false);
    }
    if session.memory_id.is_some() && !has_etag {
        return Err(Error::new(
            Reason::PreconditionRequired,
            "the session links another memory; to change that, send the session's etag",
        )
        .at("memory_id")
        .into());
    }
    let own = session
        .leased_by
        .clone()
        .map(|thread| (session.key.agent.clone(), thread));
    if let Some(mut before) = linked_memory(reads, session, Revision::LATEST).await?
        && own.is_some()
        && before.value.leased_by == own
    {
        before.value.leased_by = None;
        changes.update(&before)?;
    }
    session.memory_id = memory.cloned();
    check_linked(reads, session, token).await?;
    if let Some(mut after) = linked_memory(reads, session, Revision::LATEST).await?
        && own.is_some()
        && after.value.leased_by != own
    {
        after.value.leased_by = own;
        changes.update(&after)?;
    }
    Ok(true)
}
