//! Sessions.

use super::common::{count, inward_time, json, limit, metadata, session_ref, time};
use super::message::{items, outward, page, state};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::SessionRef;
use crate::domain::message::{Block, BlockKind, Content, Item, Message, Role};
use crate::domain::revision::Revision;
use crate::domain::session::{Session, field};
use crate::proto::v1;
use crate::service::caller::Caller;
use crate::service::session::{FieldsUpdate, ListingUpdate, SessionContent, SessionFilter};

/// The most tags of a session.
const MAX_TAGS: usize = 100;

/// What stands beside history and state, as several calls carry it.
#[derive(Debug, Default)]
pub struct Fields {
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The instructions.
    pub instructions: Option<String>,
    /// The plugin states.
    pub plugin_states: Option<v1::PluginStates>,
    /// The pending input.
    pub pending_input: Option<v1::MessageList>,
    /// Metadata stored with the body.
    pub state_metadata_json: Option<String>,
    /// The format version.
    pub format_version: Option<i64>,
    /// The evidence scope.
    pub evidence_scope_digest: Option<String>,
    /// The task scope.
    pub task_scope_digest: Option<String>,
}

/// What stands beside history and state.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`], [`Reason::LimitExceeded`].
pub fn fields(fields: Fields) -> Result<FieldsUpdate> {
    let Fields {
        system_prompt,
        instructions,
        plugin_states,
        pending_input,
        state_metadata_json,
        format_version,
        evidence_scope_digest,
        task_scope_digest,
    } = fields;
    if let Some(text) = &state_metadata_json
        && !text.is_empty()
    {
        metadata("state_metadata_json", text)?;
    }
    let plugin_states = plugin_states.map(plugins).transpose()?;
    let pending_input = pending_input
        .map(|list| items("pending_input.messages", list.messages))
        .transpose()?;
    Ok(FieldsUpdate {
        system_prompt,
        instructions,
        plugin_states,
        pending_input,
        state_metadata: state_metadata_json,
        format_version,
        evidence_scope_digest,
        task_scope_digest,
    })
}

fn plugins(states: v1::PluginStates) -> Result<Vec<(String, String)>> {
    let mut named: Vec<(String, String)> = Vec::new();
    for (at, v1::PluginState { name, value_json }) in states.plugin_states.into_iter().enumerate() {
        let at = |part: &str| format!("plugin_states.plugin_states[{at}].{part}");
        if name.is_empty() || named.iter().any(|(known, _)| *known == name) {
            return Err(Error::argument(at("name"), "must be there and be unique"));
        }
        json(&at("value_json"), &value_json)?;
        named.push((name, value_json));
    }
    Ok(named)
}

/// What lists show.
///
/// # Errors
///
/// [`Reason::JsonInvalid`], [`Reason::LimitExceeded`].
pub fn listing(
    listing: v1::ListingMetadata,
    merge_extra: bool,
    delete_extra: Vec<String>,
) -> Result<ListingUpdate> {
    let v1::ListingMetadata {
        title,
        description,
        tags,
        extra_json,
    } = listing;
    let bytes = title.as_ref().map_or(0, String::len) + description.as_ref().map_or(0, String::len);
    limit(
        "listing",
        "bytes of title and description",
        bytes,
        super::common::MAX_METADATA,
    )?;
    if let Some(text) = &extra_json
        && !text.is_empty()
    {
        metadata("listing.extra_json", text)?;
    }
    let tags = tags.map(|list| list.tags);
    limit(
        "listing.tags",
        "tags",
        tags.as_ref().map_or(0, Vec::len),
        MAX_TAGS,
    )?;
    Ok(ListingUpdate {
        title,
        description,
        tags,
        extra_json,
        merge_extra,
        delete_extra,
    })
}

/// A session on the wire. `revision` is the commit that last changed it.
#[must_use]
pub fn session(session: &Session, etags: (String, String), revision: Revision) -> v1::Session {
    let (etag, listing_etag) = etags;
    v1::Session {
        session: Some(session_ref(&session.key)),
        etag,
        listing_etag,
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
        has_pending_input: session
            .fields
            .iter()
            .any(|cell| cell.name == field::PENDING_INPUT),
        format_version: session.format_version,
        create_time: Some(time(session.created_at)),
        save_time: Some(time(session.saved_at)),
        lineage: session.branched_from.as_ref().map(|from| v1::Lineage {
            parent: Some(session_ref(&from.session)),
            label: from.label.clone(),
            parent_revision: from.revision.get(),
        }),
        revision: revision.get(),
    }
}

/// The data of a session on the wire: the first page of its history, and the rest.
#[must_use]
pub fn data(content: SessionContent) -> v1::SessionData {
    let session = &content.session;
    v1::SessionData {
        messages: Some(v1::MessageList {
            messages: page(content.messages, 0),
        }),
        state: Some(state(content.state)),
        system_prompt: content.system_prompt,
        instructions: content.instructions,
        plugin_states: Some(v1::PluginStates {
            plugin_states: content
                .plugin_states
                .into_iter()
                .map(|(name, value_json)| v1::PluginState { name, value_json })
                .collect(),
        }),
        pending_input: Some(v1::MessageList {
            messages: content.pending_input.into_iter().map(outward).collect(),
        }),
        state_metadata_json: content.state_metadata,
        format_version: session.format_version,
        evidence_scope_digest: session.evidence_scope_digest.clone(),
        task_scope_digest: session.task_scope_digest.clone(),
    }
}

/// Compares a session with what a client expects of it.
///
/// # Errors
///
/// [`Reason::RestoreRejected`], naming the first mismatch.
pub fn expect(session: &Session, expected: v1::SessionExpectations) -> Result<()> {
    let v1::SessionExpectations {
        format_versions,
        agent_id,
        user_id,
        evidence_scope_digest,
        task_scope_digest,
    } = expected;
    let rejected = |what: &str| {
        Err(Error::new(
            Reason::RestoreRejected,
            format!("the stored session has another {what} than expected; nothing was changed"),
        )
        .with("mismatch", what)
        .at(format!("expectations.{what}")))
    };
    if !format_versions.is_empty()
        && !session
            .format_version
            .is_some_and(|version| format_versions.contains(&version))
    {
        return rejected("format_versions");
    }
    let user = session.key.user.as_ref().map(|user| user.as_str());
    for (name, expected, stored) in [
        ("agent_id", &agent_id, Some(session.key.agent.as_str())),
        ("user_id", &user_id, user),
        (
            "evidence_scope_digest",
            &evidence_scope_digest,
            session.evidence_scope_digest.as_deref(),
        ),
        (
            "task_scope_digest",
            &task_scope_digest,
            session.task_scope_digest.as_deref(),
        ),
    ] {
        if expected.is_some() && expected.as_deref() != stored {
            return rejected(name);
        }
    }
    Ok(())
}

/// The filter of a list, narrowed to what the caller's key names.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::PermissionDenied`].
pub fn filter(request: &v1::ListSessionsRequest, caller: &Caller) -> Result<SessionFilter> {
    let instant = |name: &str, time: &Option<prost_types::Timestamp>| {
        time.as_ref()
            .map(|time| inward_time(name, time))
            .transpose()
    };
    Ok(SessionFilter {
        agent: match request.agent_id.as_deref() {
            Some(text) => Some(super::common::agent(caller, "agent_id", text)?),
            None => caller.agent.clone(),
        },
        user: match request.user_id.as_deref() {
            Some(text) => super::common::user(caller, "user_id", Some(text))?,
            None => caller.user.clone(),
        },
        tags: request.tags.clone(),
        title: request.title_contains.clone(),
        created_from: instant("min_create_time", &request.min_create_time)?,
        created_to: instant("max_create_time", &request.max_create_time)?,
        saved_from: instant("min_save_time", &request.min_save_time)?,
        saved_to: instant("max_save_time", &request.max_save_time)?,
    })
}

/// The last turn of a run, as it is stored.
///
/// Version 0 keeps the text alone; version 1 puts what the model thought before it.
/// Blocks that are no text are kept in either, since nothing said is thrown away.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`].
pub fn final_turn(turn: v1::FinalTurn, version: i32) -> Result<Item> {
    let v1::FinalTurn {
        thinking,
        blocks,
        message_id,
    } = turn;
    let blocks = super::message::blocks("final_turn.blocks", blocks)?;
    let with_thinking = match v1::OutputVersion::try_from(version) {
        Ok(v1::OutputVersion::Unspecified | v1::OutputVersion::V0) => false,
        Ok(v1::OutputVersion::V1) => !thinking.is_empty(),
        Err(_) => return Err(Error::argument("output_version", "must be V0 or V1")),
    };
    let texts: Vec<&str> = blocks.iter().filter_map(text_of).collect();
    let content = if with_thinking {
        let thought = Block::from(BlockKind::Reasoning {
            reasoning: thinking,
        });
        Content::Blocks(std::iter::once(thought).chain(blocks).collect())
    } else if texts.len() == blocks.len() {
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

/// What a run was asked.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::JsonInvalid`].
pub fn input(input: v1::RunInput) -> Result<Content> {
    match input.content {
        Some(v1::run_input::Content::Text(text)) => Ok(Content::Text(text)),
        Some(v1::run_input::Content::Blocks(v1::Blocks { blocks })) => Ok(Content::Blocks(
            super::message::blocks("input.blocks.blocks", blocks)?,
        )),
        None => Err(Error::argument("input", "must have text or blocks")),
    }
}

/// The index in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is negative.
pub fn index(field: &str, index: Option<i32>) -> Result<Option<u64>> {
    index
        .map(|index| {
            u64::try_from(index).map_err(|_| Error::argument(field, "must not be negative"))
        })
        .transpose()
}

/// The revision in a field; absent means the newest.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is negative.
pub fn at_revision(at: Option<i64>) -> Result<Revision> {
    match at {
        None => Ok(Revision::LATEST),
        Some(number) if number >= 0 => Ok(Revision::new(number)),
        Some(_) => Err(Error::argument("at_revision", "must not be negative")),
    }
}

/// The session that a request names, made up if it names none.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::PermissionDenied`].
pub fn session_or_new(
    caller: &Caller,
    key: Option<v1::SessionRef>,
    new_id: impl FnOnce() -> Result<crate::domain::id::SessionId>,
) -> Result<SessionRef> {
    let key = key.unwrap_or_default();
    if key.session_id.is_empty() {
        let v1::SessionRef {
            agent_id,
            user_id,
            session_id: _,
        } = key;
        return Ok(SessionRef {
            agent: super::common::agent(caller, "session.agent_id", &agent_id)?,
            user: super::common::user(caller, "session.user_id", user_id.as_deref())?,
            session: new_id()?,
        });
    }
    super::common::session(caller, "session", Some(key))
}
