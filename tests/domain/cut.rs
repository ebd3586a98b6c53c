//! Where an interrupted run's history is cut.

use adjourn::domain::cut::{Interrupted, Match, cut};
use adjourn::domain::decision_key::{Key, parse};
use adjourn::domain::json;

use crate::vectors::{args, cases, items, messages};

#[test]
fn histories_are_cut_as_recorded() {
    for case in cases("checkpoint_cut") {
        let history = items(&case.input["messages"]);
        let tool = case.input["tool"].as_str().unwrap();
        let args = args(&case.input);

        let found = cut(
            &history,
            Interrupted {
                call_id: None,
                tool,
                args: args.as_deref(),
            },
        );
        assert_eq!(
            found.kept as u64,
            case.expected["kept"].as_u64().unwrap(),
            "{}",
            case.name
        );
        assert_eq!(
            messages(&history[..found.kept]),
            case.expected["messages"],
            "{}",
            case.name
        );
        let matched = if found.kept == history.len() {
            Match::Nothing
        } else {
            Match::Action
        };
        assert_eq!(found.matched, matched, "{}", case.name);
    }
}

/// The recorded key of the pending call names the same action for us.
#[test]
fn pending_calls_are_keyed_as_recorded() {
    for case in cases("checkpoint_cut") {
        for pending in case.expected["pending"].as_array().unwrap() {
            let Key::Action {
                tool,
                args: spelled,
            } = parse(pending["interruptId"].as_str().unwrap())
            else {
                panic!("{}: not the key of an action", case.name);
            };
            assert_eq!(tool, pending["tool"].as_str().unwrap(), "{}", case.name);
            assert!(
                json::equal(Some(spelled), args(pending).as_deref()),
                "{}",
                case.name
            );
        }
    }
}

/// Beyond the cases: with the id of the call, the same turns are found.
#[test]
fn ids_find_the_recorded_turns() {
    for case in cases("checkpoint_cut") {
        let history = items(&case.input["messages"]);
        let kept = usize::try_from(case.expected["kept"].as_u64().unwrap()).unwrap();
        let Some(turn) = history.get(kept).and_then(|item| item.as_message()) else {
            continue;
        };
        for call in turn.tool_calls() {
            let found = cut(
                &history,
                Interrupted {
                    call_id: Some(&call.id),
                    tool: "renamed",
                    args: None,
                },
            );
            assert_eq!(
                (found.kept, found.matched),
                (kept, Match::CallId),
                "{}",
                case.name
            );
        }
    }
}
