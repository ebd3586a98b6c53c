//! Reads recorded cases, and turns their messages into items and back.

use adjourn::domain::message::{Block, BlockKind, Content, Item, Media, Message, Role, ToolCall};
use serde_json::{Map, Value, json};

/// A recorded case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) input: Value,
    pub(crate) expected: Value,
}

/// The cases of a file; there is at least one.
pub(crate) fn cases(file: &str) -> Vec<Case> {
    let path = format!("{}/tests/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let cases: Vec<Case> = document["cases"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .map(|case| Case {
            name: case["name"].as_str().unwrap().to_owned(),
            input: case["input"].take(),
            expected: case["expected"].take(),
        })
        .collect();
    assert!(!cases.is_empty(), "{path} has no cases");
    cases
}

/// The items of an array of messages.
pub(crate) fn items(messages: &Value) -> Vec<Item> {
    let messages = messages.as_array().unwrap();
    messages
        .iter()
        .map(|message| Item::Message(read_message(message)))
        .collect()
}

/// The array of messages that items are.
pub(crate) fn messages(items: &[Item]) -> Value {
    items
        .iter()
        .map(|item| match item {
            Item::Message(message) => write_message(message),
            Item::NonStandard { .. } => panic!("no case has this"),
        })
        .collect()
}

/// The content that a value is: a text, or blocks.
pub(crate) fn content(value: &Value) -> Content {
    match value.as_str() {
        Some(text) => Content::Text(text.to_owned()),
        None => Content::Blocks(value.as_array().unwrap().iter().map(read_block).collect()),
    }
}

/// The arguments that a call has in a case: absent, or JSON text.
pub(crate) fn args(holder: &Value) -> Option<String> {
    holder.get("args").map(Value::to_string)
}

fn text(holder: &Value, field: &str) -> Option<String> {
    holder
        .get(field)
        .map(|value| value.as_str().unwrap().to_owned())
}

fn read_message(message: &Value) -> Message {
    const FIELDS: [&str; 7] = [
        "id",
        "role",
        "content",
        "name",
        "toolCallId",
        "toolName",
        "pinned",
    ];
    assert!(
        message
            .as_object()
            .unwrap()
            .keys()
            .all(|key| FIELDS.contains(&&**key)),
        "{message}"
    );
    Message {
        id: text(message, "id"),
        role: match message["role"].as_str().unwrap() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => panic!("{other} is no role"),
        },
        content: content(&message["content"]),
        name: text(message, "name"),
        tool_call_id: text(message, "toolCallId"),
        tool_name: text(message, "toolName"),
        pinned: message
            .get("pinned")
            .map(|pinned| pinned.as_bool().unwrap()),
        created_at: None,
        extra_json: None,
    }
}

fn read_block(block: &Value) -> Block {
    let media = || Media {
        url: text(block, "url"),
        data: text(block, "data"),
        mime_type: text(block, "mimeType"),
        file_id: text(block, "fileId"),
    };
    let required = |field| text(block, field).unwrap();
    let kind = match block["type"].as_str().unwrap() {
        "text" => BlockKind::Text {
            text: required("text"),
        },
        "reasoning" => BlockKind::Reasoning {
            reasoning: required("reasoning"),
        },
        "image" => BlockKind::Image(media()),
        "audio" => BlockKind::Audio(media()),
        "file" => BlockKind::File(media()),
        "tool_call" => BlockKind::ToolCall(ToolCall {
            id: required("id"),
            name: required("name"),
            args_json: args(block),
        }),
        "non_standard" => BlockKind::NonStandard {
            value_json: block["value"].to_string(),
        },
        other => panic!("{other} is no block"),
    };
    kind.into()
}

fn write_message(message: &Message) -> Value {
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
    assert!(created_at.is_none() && extra_json.is_none());
    let role = match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Developer => "developer",
    };
    let content = match content {
        Content::Text(text) => json!(text),
        Content::Blocks(blocks) => blocks.iter().map(write_block).collect(),
    };
    present([
        ("id", json!(id)),
        ("role", json!(role)),
        ("content", content),
        ("name", json!(name)),
        ("toolCallId", json!(tool_call_id)),
        ("toolName", json!(tool_name)),
        ("pinned", json!(pinned)),
    ])
}

fn write_block(block: &Block) -> Value {
    assert!(block.extra_json.is_none());
    let media = |kind: &str, media: &Media| {
        let Media {
            url,
            data,
            mime_type,
            file_id,
        } = media;
        present([
            ("type", json!(kind)),
            ("url", json!(url)),
            ("data", json!(data)),
            ("mimeType", json!(mime_type)),
            ("fileId", json!(file_id)),
        ])
    };
    match &block.kind {
        BlockKind::Text { text } => json!({"type": "text", "text": text}),
        BlockKind::Reasoning { reasoning } => json!({"type": "reasoning", "reasoning": reasoning}),
        BlockKind::Image(image) => media("image", image),
        BlockKind::Audio(audio) => media("audio", audio),
        BlockKind::File(file) => media("file", file),
        BlockKind::ToolCall(ToolCall {
            id,
            name,
            args_json,
        }) => {
            let mut call = json!({"type": "tool_call", "id": id, "name": name});
            if let Some(args) = args_json {
                call["args"] = serde_json::from_str(args).unwrap();
            }
            call
        }
        BlockKind::NonStandard { value_json } => {
            json!({"type": "non_standard", "value": serde_json::from_str::<Value>(value_json).unwrap()})
        }
    }
}

/// An object of the fields that are not null.
fn present<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        fields
            .map(|(field, value)| (field.to_owned(), value))
            .collect::<Map<_, _>>(),
    )
}

/// What was read is written as it was, so that a case compares whole messages.
#[test]
fn messages_survive_reading_and_writing() {
    for file in [
        "sliding_window",
        "trim_dangling",
        "summarizing",
        "checkpoint_cut",
        "edit_message",
    ] {
        for case in cases(file) {
            let recorded = &case.input["messages"];
            assert_eq!(
                messages(&items(recorded)),
                *recorded,
                "{file}: {}",
                case.name
            );
        }
    }
}
