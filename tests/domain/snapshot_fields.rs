//! Which fields a snapshot holds.

use adjourn::domain::snapshot_fields::{Field, FieldSet, select};
use serde_json::{Map, Value};

use crate::vectors::cases;

#[test]
fn fields_are_selected_as_recorded() {
    for case in cases("select_snapshot_fields") {
        let preset = case
            .input
            .get("preset")
            .map(|name| name.as_str().unwrap().parse().unwrap());
        let selected = select(
            preset,
            fields(&case.input["include"]),
            fields(&case.input["exclude"]),
        );
        // What is selected and absent from the source stays absent.
        let data: Map<String, Value> = selected
            .iter()
            .filter_map(|field| {
                let name = recorded_name(field);
                Some((name.to_owned(), case.input["full"].get(name)?.clone()))
            })
            .collect();

        let mut names: Vec<&str> = data.keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = case.expected["fields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{}", case.name);
        assert_eq!(Value::Object(data), case.expected["data"], "{}", case.name);
    }
}

/// The set that a list of recorded names is; absent is empty.
fn fields(names: &Value) -> FieldSet {
    let names = names
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap());
    names
        .map(|name| {
            Field::ALL
                .into_iter()
                .find(|field| recorded_name(*field) == name)
                .unwrap()
        })
        .collect()
}

/// A field's name in the recorded cases.
fn recorded_name(field: Field) -> &'static str {
    match field {
        Field::SystemPrompt => "systemPrompt",
        Field::Messages
        | Field::State
        | Field::Instructions
        | Field::PluginStates
        | Field::PendingInput => field.name(),
    }
}
