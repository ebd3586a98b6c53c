//! Which messages may be edited, and what stays.

use adjourn::domain::edit::{EditError, Target, edited, find, label};
use adjourn::domain::message::Item;
use serde_json::{Value, json};

use crate::vectors::{cases, content, items, messages};

#[test]
fn messages_are_edited_as_recorded() {
    for case in cases("edit_message") {
        let mut history = items(&case.input["messages"]);
        let target = &case.input["target"];
        let target = match target.as_str() {
            Some(id) => Target::Id(id),
            None => Target::Index(target.as_i64().unwrap()),
        };
        let result = find(&history, target).and_then(|index| {
            let message = edited(&history[index], content(&case.input["content"]))?;
            history[index] = Item::Message(message);
            Ok(label(&history[index], index))
        });

        let code = match result {
            Ok(_) => None,
            Err(EditError::NotFound) => Some("MESSAGE_NOT_FOUND"),
            Err(EditError::NotEditable) => Some("MESSAGE_NOT_EDITABLE"),
        };
        assert_eq!(
            code,
            case.expected
                .get("error")
                .map(|code| code.as_str().unwrap()),
            "{}",
            case.name
        );
        let timeline: Vec<Value> = result
            .iter()
            .map(|label| json!({"rev": 1, "kind": "edit", "label": label}))
            .collect();
        assert_eq!(json!(timeline), case.expected["timeline"], "{}", case.name);
        if let Some(expected) = case.expected.get("messages") {
            assert_eq!(messages(&history), *expected, "{}", case.name);
        }
        history.retain(|item| !item.is_system());
        if let Some(expected) = case.expected.get("memory") {
            assert_eq!(messages(&history), *expected, "{}", case.name);
        }
        assert!(
            code.is_some() || case.expected.get("memory").is_some(),
            "{}",
            case.name
        );
    }
}
