//! What a windowed memory keeps.

use adjourn::domain::window::{remove, window};

use crate::vectors::{cases, items, messages};

#[test]
fn memories_keep_what_is_recorded() {
    for case in cases("memory_window") {
        let max = case
            .input
            .get("maxMessages")
            .map_or(50, |max| max.as_u64().unwrap());
        let max = usize::try_from(max).unwrap();
        let mut memory = Vec::new();
        let mut loads = Vec::new();
        for op in case.input["ops"].as_array().unwrap() {
            match op["op"].as_str().unwrap() {
                "save" => {
                    memory.extend(items(&op["messages"]));
                    let gone = window(&memory, max, false);
                    remove(&mut memory, &gone);
                }
                "load" => loads.push(messages(&memory)),
                "clear" => memory.clear(),
                other => panic!("{other} is no operation"),
            }
        }
        assert_eq!(
            &loads,
            case.expected["loads"].as_array().unwrap(),
            "{}",
            case.name
        );
        assert_eq!(messages(&memory), case.expected["final"], "{}", case.name);
    }
}
