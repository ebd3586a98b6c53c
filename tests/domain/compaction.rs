//! What a compacted memory keeps, and the summary it writes.

use adjourn::domain::compaction::{apply, extractive_summary, plan, summary_message};
use adjourn::domain::message::Item;

use crate::vectors::{cases, items, messages};

/// The window around the memory, 50 wide in every case, is never reached: with
/// compaction on it drops nothing that was not summarized.
#[test]
fn memories_are_compacted_as_recorded() {
    for case in cases("compacted_memory") {
        let max = case
            .input
            .get("maxMessages")
            .map_or(40, |max| max.as_u64().unwrap());
        let max = usize::try_from(max).unwrap();
        let mut memory: Vec<Item> = Vec::new();
        let mut loads = Vec::new();
        for op in case.input["ops"].as_array().unwrap() {
            match op["op"].as_str().unwrap() {
                "save" => {
                    memory.extend(items(&op["messages"]));
                    assert!(memory.len() <= 50, "{}", case.name);
                    if let Some(fold) = plan(&memory, max) {
                        let folded = fold.positions.iter().map(|&position| &memory[position]);
                        let summary = summary_message(extractive_summary(folded));
                        memory = apply(memory, &fold, Item::Message(summary));
                    }
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
