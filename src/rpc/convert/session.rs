//! Sessions, their bodies and listing metadata.

use std::collections::HashSet;

use super::common::{
    agent, count, id, inward_time, json, json_object, limit, metadata, page_size, session_ref,
    time, user,
};
use super::message;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::message::{Block, BlockKind, Content, Item, Message, Role};
use crate::domain::revision::Revision;
use crate::proto::v1;
use crate::service::caller::Caller;
use crate::service::history::Part;
use crate::service::session::SessionView;
use crate::service::session::body::{Body, BodyUpdate, ListingUpdate, MemoryLink};
use crate::service::session::load::{Expectations, RestoredFrom};
use crate::service::session::read::Filter;
use crate::service::stored::StoredItem;

/// Refuses a call of a writer: managed restore is not there yet, and a writer that
/// counts on its guard must not lose it silently.
///
/// # Errors
///
/// [`Reason::NotImplemented`].
pub fn no_writer(writer: Option<&v1::Writer>) -> Result<()> {
    if writer.is_none() {
        return Ok(());
    }
    let message = "managed restore is not available yet; leave writer out";
    Err(Error::new(Reason::NotImplemented, message).at("writer"))
}

/// The memory to link, in a field: an empty one unlinks.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn memory_link(field: &str, memory: Option<&str>) -> Result<MemoryLink> {
    match memory {
        None => Ok(MemoryLink::Keep),
        Some("") => Ok(MemoryLink::Unlink),
        Some(text) => id(field, text).map(MemoryLink::To),
    }
}

/// The named JSON values of plugins in a field.
fn plugin_states(field: &str, states: v1::PluginStates) -> Result<Vec<(String, String)>> {
    let v1::PluginStates { plugin_states } = states;
    let mut seen = HashSet::new();
    let mut named = Vec::with_capacity(plugin_states.len());
    for (at, state) in plugin_states.into_iter().enumerate() {
        let v1::PluginState { name, value_json } = state;
        let at = |part: &str| format!("{field}.plugin_states[{at}].{part}");
        if name.is_empty() {
            return Err(Error::argument(at("name"), "must not be empty"));
        }
        if !seen.insert(name.clone()) {
            return Err(Error::argument(at("name"), "is there twice"));
        }
        json(&at("value_json"), &value_json)?;
        named.push((name, value_json));
    }
    Ok(named)
}

/// The fields of a body, as calls that save one have them.
#[derive(Debug, Default)]
pub struct BodyFields {
    /// `system_prompt`.
    pub system_prompt: Option<String>,
    /// `instructions`.
    pub instructions: Option<String>,
    /// `plugin_states`.
    pub plugin_states: Option<v1::PluginStates>,
    /// `pending_input`.
    pub pending_input: Option<v1::MessageList>,
    /// `state_metadata_json`.
    pub state_metadata_json: Option<String>,
    /// `format_version`.
    pub format_version: Option<i64>,
    /// `evidence_scope_digest`.
    pub evidence_scope_digest: Option<String>,
    /// `task_scope_digest`.
    pub task_scope_digest: Option<String>,
}

impl BodyFields {
    /// What they change.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`] and
    /// [`Reason::LimitExceeded`], naming the field.
    pub fn update(self) -> Result<BodyUpdate> {
        let Self {
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            format_version,
            evidence_scope_digest,
            task_scope_digest,
        } = self;
        if let Some(text) = &state_metadata_json
            && !text.is_empty()
        {
            json_object("state_metadata_json", text)?;
        }
        Ok(BodyUpdate {
            system_prompt,
            instructions,
            plugin_states: plugin_states
                .map(|states| self::plugin_states("plugin_states", states))
                .transpose()?,
            pending_input: pending_input
                .map(|list| message::items("pending_input.messages", list.messages))
                .transpose()?,
            state_metadata_json,
            format_version,
            evidence_scope_digest,
            task_scope_digest,
        })
    }
}

/// The change of listing metadata in a field. `merge` says whether members of
/// `extra_json` are merged into the stored ones.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`] and
/// [`Reason::LimitExceeded`], naming the field.
pub fn listing(
    field: &str,
    listing: Option<v1::ListingMetadata>,
    merge: bool,
    delete_extra_keys: Vec<String>,
) -> Result<ListingUpdate> {
    let v1::ListingMetadata {
        title,
        description,
        tags,
        extra_json,
    } = listing.unwrap_or_default();
    let at = |name: &str| format!("{field}.{name}");
    for (name, text) in [("title", &title), ("description", &description)] {
        let bytes = text.as_ref().map_or(0, String::len);
        limit(&at(name), "bytes", bytes, super::common::MAX_METADATA)?;
    }
    if let Some(extra) = &extra_json
        && !extra.is_empty()
    {
        metadata(&at("extra_json"), extra)?;
    }
    let tags = tags.map(|v1::TagList { tags }| tags);
    if let Some(tags) = &tags {
        let bytes = tags.iter().map(String::len).sum();
        limit(&at("tags"), "bytes", bytes, super::common::MAX_METADATA)?;
        let mut seen = HashSet::new();
        if !tags.iter().all(|tag| seen.insert(tag)) {
            return Err(Error::argument(at("tags.tags"), "must be unique"));
        }
    }
    Ok(ListingUpdate {
        title,
        description,
        tags,
        extra_json,
        merge_extra: merge,
        delete_extra_keys,
    })
}

/// What is expected of a session, in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn expectations(
    field: &str,
    expectations: Option<v1::SessionExpectations>,
) -> Result<Expectations> {
    let v1::SessionExpectations {
        format_versions,
        agent_id,
        user_id,
        evidence_scope_digest,
        task_scope_digest,
    } = expectations.unwrap_or_default();
    Ok(Expectations {
        format_versions,
        agent: agent_id
            .as_deref()
            .map(|text| id(&format!("{field}.agent_id"), text))
            .transpose()?,
        user: user_id
            .as_deref()
            .map(|text| id(&format!("{field}.user_id"), text))
            .transpose()?,
        evidence_scope_digest,
        task_scope_digest,
    })
}

/// Which sessions a list is of, and how many at a time. A caller whose key names
/// an agent or a user lists only theirs.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] and [`Reason::PermissionDenied`].
pub fn filter(
    caller: &Caller,
    request: v1::ListSessionsRequest,
) -> Result<(Filter, usize, String)> {
    let v1::ListSessionsRequest {
        agent_id,
        user_id,
        tags,
        title_contains,
        min_create_time,
        max_create_time,
        min_save_time,
        max_save_time,
        page_size: size,
        page_token,
    } = request;
    let named = agent_id
        .as_deref()
        .map(|text| agent(caller, "agent_id", text))
        .transpose()?;
    let owner = match user_id.as_deref() {
        Some(text) => user(caller, "user_id", Some(text))?,
        None => caller.user.clone(),
    };
    let at = |field: &str, time: Option<prost_types::Timestamp>| {
        time.as_ref()
            .map(|time| inward_time(field, time))
            .transpose()
    };
    let filter = Filter {
        agent: named.or_else(|| caller.agent.clone()),
        user: owner,
        tags,
        title_contains,
        created_from: at("min_create_time", min_create_time)?,
        created_to: at("max_create_time", max_create_time)?,
        saved_from: at("min_save_time", min_save_time)?,
        saved_to: at("max_save_time", max_save_time)?,
    };
    Ok((filter, page_size("page_size", size)?, page_token))
}

/// Which part of a history is meant.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn part(order: i32, start: Option<i32>, end: Option<i32>) -> Result<Part> {
    let index = |field: &str, index: Option<i32>| {
        index
            .map(|index| {
                u64::try_from(index).map_err(|_| Error::argument(field, "must not be negative"))
            })
            .transpose()
    };
    Ok(Part {
        from: index("start_index", start)?,
        to: index("end_index", end)?,
        newest_first: match v1::SortOrder::try_from(order) {
            Ok(v1::SortOrder::Unspecified | v1::SortOrder::OldestFirst) => false,
            Ok(v1::SortOrder::NewestFirst) => true,
            Err(_) => return Err(Error::argument("order", "must be an order")),
        },
    })
}

/// The revision in `at_revision`.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is negative.
pub fn revision(at_revision: i64) -> Result<Revision> {
    if at_revision < 0 {
        return Err(Error::argument("at_revision", "must not be negative"));
    }
    Ok(Revision::new(at_revision))
}

/// What a run was asked, in a field.
///
/// # Errors
///
/// As [`message::items`].
pub fn run_input(field: &str, input: v1::RunInput) -> Result<Content> {
    let v1::RunInput { content } = input;
    match content {
        None => Err(Error::argument(field, "must have text or blocks")),
        Some(v1::run_input::Content::Text(text)) => Ok(Content::Text(text)),
        Some(v1::run_input::Content::Blocks(v1::Blocks { blocks })) => Ok(Content::Blocks(
            message::blocks(&format!("{field}.blocks.blocks"), blocks)?,
        )),
    }
}

/// The message of the last turn of a run.
///
/// V0 is its plain text, V1 puts what the model thought before it. Blocks that are
/// no text are kept in either, since nothing that was said is thrown away.
///
/// # Errors
///
/// As [`message::items`].
pub fn final_turn(field: &str, turn: v1::FinalTurn, output_version: i32) -> Result<Item> {
    let v1::FinalTurn {
        thinking,
        blocks,
        message_id,
    } = turn;
    let blocks = message::blocks(&format!("{field}.blocks"), blocks)?;
    let is_v1 = match v1::OutputVersion::try_from(output_version) {
        Ok(v1::OutputVersion::Unspecified | v1::OutputVersion::V0) => false,
        Ok(v1::OutputVersion::V1) => true,
        Err(_) => return Err(Error::argument("output_version", "must be V0 or V1")),
    };
    let texts: Vec<&str> = blocks.iter().filter_map(text_of).collect();
    let content = if is_v1 && !thinking.is_empty() {
        let thought = Block::from(BlockKind::Reasoning {
            reasoning: thinking,
        });
        Content::Blocks(std::iter::once(thought).chain(blocks).collect())
    } else if !is_v1 && texts.len() == blocks.len() {
        Content::Text(texts.concat())
    } else {
        Content::Blocks(blocks)
    };
    Ok(Item::Message(Message {
        id: message_id,
        role: Role::Assistant,
        content,
        name: None,
        tool_call_id: None,
        tool_name: None,
        pinned: None,
        created_at: None,
        extra_json: None,
    }))
}

fn text_of(block: &Block) -> Option<&str> {
    match &block.kind {
        BlockKind::Text { text } if block.extra_json.is_none() => Some(text),
        BlockKind::Text { .. }
        | BlockKind::Reasoning { .. }
        | BlockKind::Image(_)
        | BlockKind::Audio(_)
        | BlockKind::File(_)
        | BlockKind::ToolCall(_)
        | BlockKind::NonStandard { .. } => None,
    }
}

/// A session on the wire.
#[must_use]
pub fn session(view: &SessionView) -> v1::Session {
    let session = &view.session;
    v1::Session {
        session: Some(session_ref(&session.key)),
        etag: view.etag.clone(),
        listing_etag: view.listing_etag.clone(),
        listing: Some(v1::ListingMetadata {
            title: session.listing.title.clone(),
            description: session.listing.description.clone(),
            tags: Some(v1::TagList {
                tags: session.listing.tags.clone(),
            }),
            extra_json: session.listing.metadata_json.clone(),
        }),
        memory_id: session.memory_id.as_ref().map(ToString::to_string),
        last_seq: session.head.last_seq,
        message_count: count(session.head.len()),
        working_memory_count: count(session.working_memory_count),
        has_pending_input: view.has_pending_input(),
        format_version: session.format_version,
        create_time: Some(time(session.created_at)),
        save_time: Some(time(session.saved_at)),
        lineage: session.branched_from.as_ref().map(|from| v1::Lineage {
            parent: Some(session_ref(&from.session)),
            label: from.label.clone(),
            parent_revision: from.revision.get(),
        }),
        revision: view.revision.get(),
    }
}

/// The body of a session on the wire, with the first page of its messages.
#[must_use]
pub fn data(view: Option<&SessionView>, body: Body, messages: Vec<StoredItem>) -> v1::SessionData {
    let Body {
        state,
        system_prompt,
        instructions,
        plugin_states,
        pending_input,
        state_metadata_json,
    } = body;
    let session = view.map(|view| &view.session);
    v1::SessionData {
        messages: Some(v1::MessageList {
            messages: message::page(messages, 0),
        }),
        state: Some(message::state(state)),
        system_prompt,
        instructions,
        plugin_states: Some(v1::PluginStates {
            plugin_states: plugin_states
                .into_iter()
                .map(|(name, value_json)| v1::PluginState { name, value_json })
                .collect(),
        }),
        pending_input: Some(v1::MessageList {
            messages: pending_input.into_iter().map(message::outward).collect(),
        }),
        state_metadata_json,
        format_version: session.and_then(|session| session.format_version),
        evidence_scope_digest: session.and_then(|session| session.evidence_scope_digest.clone()),
        task_scope_digest: session.and_then(|session| session.task_scope_digest.clone()),
    }
}

/// Where the messages of a loaded session come from, on the wire.
#[must_use]
pub fn restored_from(from: RestoredFrom) -> v1::load_session_response::RestoredFrom {
    match from {
        RestoredFrom::Session => v1::load_session_response::RestoredFrom::Session,
        RestoredFrom::Memory => v1::load_session_response::RestoredFrom::Memory,
        RestoredFrom::Seed => v1::load_session_response::RestoredFrom::Seed,
        RestoredFrom::New => v1::load_session_response::RestoredFrom::New,
    }
}
