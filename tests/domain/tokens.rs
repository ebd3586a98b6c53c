//! What texts and histories cost.

use adjourn::domain::tokens::{estimate_tokens, history_tokens};

use crate::vectors::{cases, items};

#[test]
fn texts_cost_what_is_recorded() {
    for case in cases("estimate_tokens") {
        let tokens = estimate_tokens(case.input["text"].as_str().unwrap());
        assert_eq!(
            tokens,
            case.expected["tokens"].as_u64().unwrap(),
            "{}",
            case.name
        );
    }
}

#[test]
fn histories_cost_what_is_recorded() {
    for case in cases("history_tokens") {
        let tokens = history_tokens(&items(&case.input["messages"]));
        assert_eq!(
            tokens,
            case.expected["tokens"].as_u64().unwrap(),
            "{}",
            case.name
        );
    }
}
