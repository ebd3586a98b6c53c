//! Messages and state.

use super::common::{count, inward_time, json, json_object, limit, time};
use crate::domain::error::{Error, Result};
use crate::domain::log::Origin;
use crate::domain::message::{Block, BlockKind, Content, Item, Media, Message, Role, ToolCall};
use crate::domain::state::{StateMode, StateUpdate};
use crate::proto::v1;
use crate::service::stored::StoredItem;

/// The most bytes of one message.
pub const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// The most messages in one call.
pub const MAX_MESSAGES: usize = 10_000;

/// The items in a field.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`],
/// [`crate::domain::error::Reason::JsonInvalid`] and
/// [`crate::domain::error::Reason::LimitExceeded`], naming the field.
pub fn items(field: &str, messages: Vec<v1::Message>) -> Result<Vec<Item>> {
    limit(field, "messages", messages.len(), MAX_MESSAGES)?;
    messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| item(&format!("{field}[{at}]"), message))
        .collect()
}

/// The item in a field.
///
/// # Errors
///
/// As [`items`].
pub fn item(field: &str, message: v1::Message) -> Result<Item> {
    limit(
        field,
        "bytes",
        prost::Message::encoded_len(&message),
        MAX_MESSAGE,
    )?;
    // What the server fills in is not read.
    let v1::Message {
        id,
        role,
        content,
        name,
        tool_call_id,
        tool_name,
        pinned,
        created_at,
        extra_json,
        seq: _,
        index: _,
        origin: _,
        summarizes: _,
    } = message;
    let at = |name: &str| format!("{field}.{name}");
    let created_at = created_at
        .as_ref()
        .map(|time| inward_time(&at("created_at"), time))
        .transpose()?;
    let content = match content {
        None => {
            return Err(Error::argument(
                at("content"),
                "is required: text, blocks, or non_standard_json",
            ));
        }
        Some(v1::message::Content::NonStandardJson(value_json)) => {
            json(&at("non_standard_json"), &value_json)?;
            return Ok(Item::NonStandard {
                id,
                value_json,
                created_at,
            });
        }
        Some(v1::message::Content::Text(text)) => Content::Text(text),
        Some(v1::message::Content::Blocks(v1::Blocks { blocks })) => {
            Content::Blocks(self::blocks(&at("blocks.blocks"), blocks)?)
        }
    };
    if let Some(extra) = &extra_json {
        json_object(&at("extra_json"), extra)?;
    }
    Ok(Item::Message(Message {
        id,
        role: self::role(&at("role"), role)?,
        content,
        name,
        tool_call_id,
        tool_name,
        pinned,
        created_at,
        extra_json,
    }))
}

fn role(field: &str, role: i32) -> Result<Role> {
    match v1::message::Role::try_from(role) {
        Ok(v1::message::Role::System) => Ok(Role::System),
        Ok(v1::message::Role::User) => Ok(Role::User),
        Ok(v1::message::Role::Assistant) => Ok(Role::Assistant),
        Ok(v1::message::Role::Tool) => Ok(Role::Tool),
        Ok(v1::message::Role::Developer) => Ok(Role::Developer),
        Ok(v1::message::Role::Unspecified) | Err(_) => Err(Error::argument(
            field,
            "must be one of system, user, assistant, tool, developer",
        )),
    }
}

/// The blocks in a field.
///
/// # Errors
///
/// As [`items`].
pub fn blocks(field: &str, blocks: Vec<v1::Block>) -> Result<Vec<Block>> {
    blocks
        .into_iter()
        .enumerate()
        .map(|(at, block)| self::block(&format!("{field}[{at}]"), block))
        .collect()
}

fn block(field: &str, block: v1::Block) -> Result<Block> {
    let v1::Block { kind, extra_json } = block;
    let at = |name: &str| format!("{field}.{name}");
    if let Some(extra) = &extra_json {
        json_object(&at("extra_json"), extra)?;
    }
    let kind = match kind {
        None => return Err(Error::argument(field, "must have a kind")),
        Some(v1::block::Kind::Text(text)) => BlockKind::Text { text },
        Some(v1::block::Kind::Reasoning(reasoning)) => BlockKind::Reasoning { reasoning },
        Some(v1::block::Kind::Image(media)) => BlockKind::Image(inward_media(media)),
        Some(v1::block::Kind::Audio(media)) => BlockKind::Audio(inward_media(media)),
        Some(v1::block::Kind::File(media)) => BlockKind::File(inward_media(media)),
        Some(v1::block::Kind::ToolCall(v1::ToolCall {
            id,
            name,
            args_json,
        })) => {
            if name.is_empty() {
                return Err(Error::argument(at("tool_call.name"), "must not be empty"));
            }
            if let Some(args) = &args_json {
                json(&at("tool_call.args_json"), args)?;
            }
            BlockKind::ToolCall(ToolCall {
                id,
                name,
                args_json,
            })
        }
        Some(v1::block::Kind::NonStandardJson(value_json)) => {
            json(&at("non_standard_json"), &value_json)?;
            BlockKind::NonStandard { value_json }
        }
    };
    Ok(Block { kind, extra_json })
}

fn inward_media(media: v1::Media) -> Media {
    let v1::Media {
        url,
        data,
        mime_type,
        file_id,
    } = media;
    Media {
        url,
        data,
        mime_type,
        file_id,
    }
}

/// A stored item on the wire, at an index of the current history.
#[must_use]
pub fn stored(stored: StoredItem, index: u64) -> v1::Message {
    let StoredItem { at, origin, item } = stored;
    v1::Message {
        seq: at.number,
        index: count(index),
        origin: match origin {
            Origin::Said => v1::message::Origin::Said,
            Origin::Edit => v1::message::Origin::Edit,
            Origin::Summary => v1::message::Origin::Summary,
            Origin::Restore => v1::message::Origin::Restore,
        }
        .into(),
        ..outward(item)
    }
}

/// Consecutive stored items on the wire, the first of them at an index.
#[must_use]
pub fn page(items: Vec<StoredItem>, first: u64) -> Vec<v1::Message> {
    (first..)
        .zip(items)
        .map(|(index, item)| stored(item, index))
        .collect()
}

/// An item on the wire.
#[must_use]
pub fn outward(item: Item) -> v1::Message {
    match item {
        Item::NonStandard {
            id,
            value_json,
            created_at,
        } => v1::Message {
            id,
            content: Some(v1::message::Content::NonStandardJson(value_json)),
            created_at: created_at.map(time),
            ..v1::Message::default()
        },
        Item::Message(message) => {
            let Message {
                id,
                role,
                content,
                name,
                tool_call_id,
                tool_name,
                pinned,
                created_at,
                extra_json,
            } = message;
            v1::Message {
                id,
                role: match role {
                    Role::System => v1::message::Role::System,
                    Role::User => v1::message::Role::User,
                    Role::Assistant => v1::message::Role::Assistant,
                    Role::Tool => v1::message::Role::Tool,
                    Role::Developer => v1::message::Role::Developer,
                }
                .into(),
                content: Some(match content {
                    Content::Text(text) => v1::message::Content::Text(text),
                    Content::Blocks(blocks) => v1::message::Content::Blocks(outward_blocks(blocks)),
                }),
                name,
                tool_call_id,
                tool_name,
                pinned,
                created_at: created_at.map(time),
                extra_json,
                ..v1::Message::default()
            }
        }
    }
}

/// Blocks on the wire.
#[must_use]
pub fn outward_blocks(blocks: Vec<Block>) -> v1::Blocks {
    v1::Blocks {
        blocks: blocks.into_iter().map(outward_block).collect(),
    }
}

fn outward_block(block: Block) -> v1::Block {
    let Block { kind, extra_json } = block;
    let kind = match kind {
        BlockKind::Text { text } => v1::block::Kind::Text(text),
        BlockKind::Reasoning { reasoning } => v1::block::Kind::Reasoning(reasoning),
        BlockKind::Image(media) => v1::block::Kind::Image(outward_media(media)),
        BlockKind::Audio(media) => v1::block::Kind::Audio(outward_media(media)),
        BlockKind::File(media) => v1::block::Kind::File(outward_media(media)),
        BlockKind::ToolCall(ToolCall {
            id,
            name,
            args_json,
        }) => v1::block::Kind::ToolCall(v1::ToolCall {
            id,
            name,
            args_json,
        }),
        BlockKind::NonStandard { value_json } => v1::block::Kind::NonStandardJson(value_json),
    };
    v1::Block {
        kind: Some(kind),
        extra_json,
    }
}

fn outward_media(media: Media) -> v1::Media {
    let Media {
        url,
        data,
        mime_type,
        file_id,
    } = media;
    v1::Media {
        url,
        data,
        mime_type,
        file_id,
    }
}

/// The change of a state in a field. `default` is what an unspecified mode means
/// in the call.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`] and
/// [`crate::domain::error::Reason::JsonInvalid`], naming the field.
pub fn state_update(
    field: &str,
    update: v1::StateUpdate,
    default: StateMode,
) -> Result<StateUpdate> {
    let v1::StateUpdate {
        entries,
        delete_keys,
        mode,
    } = update;
    let mode = state_mode(&format!("{field}.mode"), mode, default)?;
    let mut named: Vec<(String, String)> = Vec::with_capacity(entries.len());
    let mut seen = std::collections::HashSet::new();
    for (at, v1::StateEntry { key, value_json }) in entries.into_iter().enumerate() {
        let at = |name: &str| format!("{field}.entries[{at}].{name}");
        if key.is_empty() {
            return Err(Error::argument(at("key"), "must not be empty"));
        }
        json(&at("value_json"), &value_json)?;
        if !seen.insert(key.clone()) {
            return Err(Error::argument(at("key"), "is there twice"));
        }
        named.push((key, value_json));
    }
    Ok(StateUpdate {
        mode,
        entries: named,
        delete_keys,
    })
}

/// The mode in a field.
///
/// # Errors
///
/// [`crate::domain::error::Reason::ArgumentInvalid`] when it is none that is known.
pub fn state_mode(field: &str, mode: i32, default: StateMode) -> Result<StateMode> {
    match v1::StateMode::try_from(mode) {
        Ok(v1::StateMode::Unspecified) => Ok(default),
        Ok(v1::StateMode::Merge) => Ok(StateMode::Merge),
        Ok(v1::StateMode::Replace) => Ok(StateMode::Replace),
        Err(_) => Err(Error::argument(field, "must be MERGE or REPLACE")),
    }
}

/// A state on the wire.
#[must_use]
pub fn state(entries: Vec<(String, String)>) -> v1::State {
    v1::State {
        entries: entries
            .into_iter()
            .map(|(key, value_json)| v1::StateEntry { key, value_json })
            .collect(),
    }
}
