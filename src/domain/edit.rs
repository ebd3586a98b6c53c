//! Editing a message: which one is meant, and whether it may change.

use super::error::{Error, Reason};
use super::message::{Content, Item, Message};

/// The message to edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// By its id; of several with the same, the first. Digits are an id too.
    Id(&'a str),
    /// By its place in the current transcript, from 0. Negative is no place.
    Index(i64),
}

/// Why a message is not edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No item has that id or place.
    #[error(
        "no message has this id or index; list the messages of the transcript, then edit one of them"
    )]
    NotFound,
    /// The message has tool calls, or the item is no message.
    #[error(
        "a message with tool calls, or an item that is no message, cannot be edited; branch before it instead"
    )]
    NotEditable,
}

impl From<EditError> for Error {
    fn from(error: EditError) -> Self {
        let reason = match error {
            EditError::NotFound => Reason::MessageNotFound,
            EditError::NotEditable => Reason::MessageNotEditable,
        };
        Self::new(reason, error.to_string())
    }
}

/// Finds the item that is meant.
///
/// # Errors
///
/// [`EditError::NotFound`].
pub fn find(items: &[Item], target: Target<'_>) -> Result<usize, EditError> {
    match target {
        Target::Id(id) => items.iter().position(|item| item.id() == Some(id)),
        Target::Index(index) => usize::try_from(index)
            .ok()
            .filter(|index| *index < items.len()),
    }
    .ok_or(EditError::NotFound)
}

/// The message with other content. Its id, time and every other field stay.
///
/// Tool results and system messages may be edited like any other.
///
/// # Errors
///
/// [`EditError::NotEditable`].
pub fn edited(item: &Item, content: Content) -> Result<Message, EditError> {
    let message = item.as_message().ok_or(EditError::NotEditable)?;
    if message.tool_calls().next().is_some() {
        return Err(EditError::NotEditable);
    }
    Ok(Message {
        content,
        ..message.clone()
    })
}

/// The label of the timeline entry: the id that the message has, else its place.
#[must_use]
pub fn label(item: &Item, index: usize) -> String {
    match item.id() {
        Some(id) => format!("message {id}"),
        None => format!("message {index}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::message::{BlockKind, Role, ToolCall};
    use crate::domain::time::Timestamp;

    fn message(id: Option<&str>, content: Content) -> Message {
        Message {
            id: id.map(str::to_owned),
            role: Role::Tool,
            content,
            name: Some("n".to_owned()),
            tool_call_id: Some("c".to_owned()),
            tool_name: Some("t".to_owned()),
            pinned: Some(true),
            created_at: Some(Timestamp::from_micros(5)),
            extra_json: Some("{\"a\":1}".to_owned()),
        }
    }

    fn text(text: &str) -> Content {
        Content::Text(text.to_owned())
    }

    #[test]
    fn only_the_content_changes() {
        let before = message(Some("a"), text("before"));
        let after = edited(&Item::Message(before.clone()), text("after")).unwrap();
        assert_eq!(
            after,
            Message {
                content: text("after"),
                ..before
            }
        );
    }

    #[test]
    fn a_message_is_found_by_id_or_index() {
        let items =
            [None, Some("1"), Some("a"), Some("a")].map(|id| Item::Message(message(id, text("x"))));
        assert_eq!(find(&items, Target::Id("1")), Ok(1));
        assert_eq!(find(&items, Target::Id("a")), Ok(2));
        assert_eq!(find(&items, Target::Id("")), Err(EditError::NotFound));
        assert_eq!(find(&items, Target::Index(1)), Ok(1));
        for index in [-1, 4, i64::MIN, i64::MAX] {
            assert_eq!(find(&items, Target::Index(index)), Err(EditError::NotFound));
        }
        assert_eq!(
            (label(&items[0], 0), label(&items[1], 1)),
            ("message 0".to_owned(), "message 1".to_owned())
        );
        assert_eq!(label(&items[2], 2), "message a");
    }

    #[test]
    fn calls_and_what_is_no_message_stay_as_they_are() {
        let call = BlockKind::ToolCall(ToolCall {
            id: "c".to_owned(),
            name: "t".to_owned(),
            args_json: None,
        });
        let item = Item::Message(message(None, Content::Blocks(vec![call.into()])));
        assert_eq!(edited(&item, text("x")), Err(EditError::NotEditable));
        let item = Item::NonStandard {
            id: Some("n".to_owned()),
            value_json: "{}".to_owned(),
            created_at: None,
        };
        assert_eq!(edited(&item, text("x")), Err(EditError::NotEditable));
        assert_eq!(
            Error::from(EditError::NotEditable).reason,
            Reason::MessageNotEditable
        );
        assert_eq!(
            Error::from(EditError::NotFound).reason,
            Reason::MessageNotFound
        );
    }
}
