//! What the conversation managers make of a history.

use std::num::NonZeroU64;

use adjourn::domain::conversation::{
    Counts, Manager, Plan, SUMMARY_PREFIX, SlidingWindow, Summarizing, stub_summary, trim_dangling,
};
use adjourn::domain::message::Item;
use serde_json::Value;

use crate::vectors::{Case, cases, items, messages};

#[test]
fn dangling_heads_are_trimmed_as_recorded() {
    for case in cases("trim_dangling") {
        let history = items(&case.input["messages"]);
        let dropped = trim_dangling(&history);
        assert_eq!(
            dropped as u64,
            case.expected["dropped"].as_u64().unwrap(),
            "{}",
            case.name
        );
        assert_eq!(
            messages(&history[dropped..]),
            case.expected["messages"],
            "{}",
            case.name
        );
    }
}

#[test]
fn windows_slide_as_recorded() {
    for case in cases("sliding_window") {
        let options = &case.input["options"];
        let per_turn = match options.get("perTurn") {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => NonZeroU64::new(1),
            Some(steps) => Some(NonZeroU64::new(steps.as_u64().unwrap()).unwrap()),
        };
        let window = SlidingWindow::new(
            integer(options, "windowSize", 40),
            integer(options, "pinFirst", 0),
            per_turn,
        );
        let (after, counts) = managed(&Manager::SlidingWindow(window), &case);
        assert_eq!(messages(&after), case.expected["messages"], "{}", case.name);
        assert_eq!(
            counts.removed,
            case.expected["removedCount"].as_u64().unwrap(),
            "{}",
            case.name
        );
    }
}

#[test]
fn histories_are_summarized_as_recorded() {
    for case in cases("summarizing") {
        let options = &case.input["options"];
        let manager = Manager::Summarizing(Summarizing::new(
            options
                .get("summaryRatio")
                .map_or(0.3, |ratio| ratio.as_f64().unwrap()),
            integer(options, "preserveRecent", 10),
            integer(options, "pinFirst", 0),
            options
                .get("summaryPrefix")
                .map_or(SUMMARY_PREFIX, |prefix| prefix.as_str().unwrap())
                .to_owned(),
        ));
        let (after, counts) = managed(&manager, &case);
        assert_eq!(messages(&after), case.expected["messages"], "{}", case.name);
        assert_eq!(
            counts.removed,
            case.expected["removedCount"].as_u64().unwrap(),
            "{}",
            case.name
        );
        assert_eq!(
            counts.last_summary.as_deref(),
            case.expected["lastSummary"].as_str(),
            "{}",
            case.name
        );
    }
}

#[test]
fn the_defaults_are_those_recorded() {
    assert_eq!(SlidingWindow::default(), SlidingWindow::new(40, 0, None));
    assert_eq!(
        Summarizing::default(),
        Summarizing::new(0.3, 10, 0, "Summary of earlier conversation:".to_owned())
    );
}

/// Feeds the history through the manager as often as the case says.
fn managed(manager: &Manager, case: &Case) -> (Vec<Item>, Counts) {
    let mut history = items(&case.input["messages"]);
    let mut counts = Counts::default();
    for _ in 0..integer(&case.input, "repeat", 1) {
        let plan: Plan = match case.input["op"].as_str().unwrap() {
            "apply" => manager.apply(&history),
            "reduce" => manager.reduce(&history),
            "beforeModel" => manager.before_model(&history, case.input["step"].as_u64().unwrap()),
            other => panic!("{other} is no operation"),
        };
        let summary = plan
            .needs_summary()
            .then(|| stub_summary(plan.folded.iter().map(|&position| &history[position])));
        history = plan.apply(history, summary.as_deref());
        counts.record(&plan, summary.as_deref());
    }
    (history, counts)
}

fn integer(options: &Value, name: &str, default: i64) -> i64 {
    options
        .get(name)
        .map_or(default, |value| value.as_i64().unwrap())
}
