//! Messages: what a conversation is made of.
//!
//! A message keeps what its writer sent, known or not: typed blocks for what the
//! providers agree on, `non_standard` blocks and `extra_json` for the rest. The
//! text of every JSON value is kept byte for byte.

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the application to the model.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// Instructions of the developer, as some providers have beside `system`.
    Developer,
}

/// One item of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// A message.
    Message(Message),
    /// Something a client keeps in sequence that is no message, such as a
    /// provider's compaction item. Never edited, trimmed or summarized.
    NonStandard {
        /// The item's id, if the client gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// JSON text, as it was sent.
        value_json: String,
        /// When it was first written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        created_at: Option<Timestamp>,
    },
}

/// One utterance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The client's id, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// The speaker's name, where a provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// On a tool message, the call it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// On a tool message, the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Whether windows and folds must keep it. Absent and false differ only in
    /// that an explicit false comes back as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// When it was said: the client's word, else the server's at the first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// A JSON object with the fields that are not named above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_json: Option<String>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Typed blocks.
    Blocks(Vec<Block>),
}

/// One block of content, and the fields of it that are not named here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What the block is.
    #[serde(flatten)]
    pub kind: BlockKind,
    /// A JSON object with the fields that are not named in `kind`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_json: Option<String>,
}

impl From<BlockKind> for Block {
    fn from(kind: BlockKind) -> Self {
        Self {
            kind,
            extra_json: None,
        }
    }
}

/// The kinds of block that providers agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockKind {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What the model thought.
    Reasoning {
        /// The text.
        reasoning: String,
    },
    /// A picture.
    Image(Media),
    /// A sound.
    Audio(Media),
    /// A file.
    File(Media),
    /// The model asks for a tool.
    ToolCall(ToolCall),
    /// Anything else: JSON text, as it was sent.
    NonStandard {
        /// The block.
        value_json: String,
    },
}

/// Where the bytes of a picture, a sound or a file are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    /// An address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The bytes themselves, base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The provider's id of an uploaded file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
}

/// A request of the model to run a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's id for the call. Ids recur in real conversations.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text of the arguments. Absent is the same as `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_json: Option<String>,
}

impl Item {
    /// The item's id, if its writer gave one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Message(message) => message.id.as_deref(),
            Self::NonStandard { id, .. } => id.as_deref(),
        }
    }

    /// The message, unless the item is something else.
    #[must_use]
    pub const fn as_message(&self) -> Option<&Message> {
        match self {
            Self::Message(message) => Some(message),
            Self::NonStandard { .. } => None,
        }
    }

    /// When it was said or first written.
    #[must_use]
    pub const fn created_at(&self) -> Option<Timestamp> {
        match self {
            Self::Message(message) => message.created_at,
            Self::NonStandard { created_at, .. } => *created_at,
        }
    }

    /// Sets the time of the first write, unless the writer named one.
    pub fn stamp(&mut self, now: Timestamp) {
        let created_at = match self {
            Self::Message(message) => &mut message.created_at,
            Self::NonStandard { created_at, .. } => created_at,
        };
        created_at.get_or_insert(now);
    }

    /// Whether the role is `system`.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.as_message()
            .is_some_and(|message| message.role == Role::System)
    }
}

impl Message {
    /// The tool calls in the message, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let blocks: &[Block] = match &self.content {
            Content::Text(_) => &[],
            Content::Blocks(blocks) => blocks,
        };
        blocks.iter().filter_map(|block| match &block.kind {
            BlockKind::ToolCall(call) => Some(call),
            BlockKind::Text { .. }
            | BlockKind::Reasoning { .. }
            | BlockKind::Image(_)
            | BlockKind::Audio(_)
            | BlockKind::File(_)
            | BlockKind::NonStandard { .. } => None,
        })
    }
}
