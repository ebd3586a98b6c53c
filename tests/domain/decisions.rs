//! How keys of actions are read, and which decision answers a call.

use adjourn::domain::decision_key::{
    Found, Key, NotAllowed, Resolution, Rule, decision_from_json, lookup, parse, resolve,
};
use adjourn::domain::interrupt::{Answer, DecisionKind};
use adjourn::domain::json;
use serde_json::{Value, json};

use crate::vectors::{Case, args, cases};

/// Takes a key apart and compares it with the action it was made from.
fn assert_names(key: &str, tool: &str, args: &str, case: &str) {
    let Key::Action {
        tool: its_tool,
        args: its_args,
    } = parse(key)
    else {
        panic!("{case}: {key} is not the key of an action");
    };
    assert_eq!(its_tool, tool, "{case}");
    assert_eq!(json::canonical(its_args), json::canonical(args), "{case}");
}

#[test]
fn keys_in_pythons_spelling_are_read() {
    for case in cases("hitl_key") {
        let tool = case.input["tool"].as_str().unwrap();
        assert_names(
            case.expected["key"].as_str().unwrap(),
            tool,
            &args(&case.input).unwrap(),
            &case.name,
        );
    }
}

/// `JSON.stringify` writes no blanks and escapes only what it must, as this
/// writer does, and spells numbers shorter.
#[test]
fn keys_in_javascripts_spelling_are_read() {
    for case in cases("hitl_key") {
        let tool = case.input["tool"].as_str().unwrap();
        let args = args(&case.input).unwrap();
        let spelled = args
            .replace("123456789012345.0", "123456789012345")
            .replace("-0.0", "0");
        let spelled = spelled
            .replace("1e+16", "10000000000000000")
            .replace("1e16", "10000000000000000");
        assert_names(&format!("{tool}:{spelled}"), tool, &args, &case.name);
    }
}

#[test]
fn decisions_are_resolved_as_recorded() {
    for case in cases("hitl_decision") {
        let outcome = resolved(&case);
        let mut expected = case.expected.clone();
        let call_args = args(&case.input).unwrap();
        if let Some(id) = expected.get("interruptId") {
            // Ours is opaque; the recorded one names the action.
            assert_names(
                id.as_str().unwrap(),
                case.input["tool"].as_str().unwrap(),
                &call_args,
                &case.name,
            );
            expected.as_object_mut().unwrap().remove("interruptId");
        }
        assert_eq!(outcome, expected, "{}", case.name);
    }
}

fn resolved(case: &Case) -> Value {
    let tool = case.input["tool"].as_str().unwrap();
    let call_args = args(&case.input).unwrap();
    let kinds = allowed(&case.input["interruptOn"], tool);
    let rule = match &kinds {
        None => Rule::Free,
        Some(allowed) => Rule::Hold {
            allowed,
            agent_may_decide: true,
        },
    };

    let stored: Vec<(String, Option<Answer>)> = case
        .input
        .get("decisions")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, decision)| {
            (
                key.clone(),
                decision_from_json(&decision.to_string()).unwrap(),
            )
        })
        .collect();
    let agent = case
        .input
        .get("decide")
        .and_then(|answer| decision_from_json(&answer.to_string()).unwrap());
    let stored = stored.iter().map(|(key, answer)| (key, answer.as_ref()));
    let found = Found {
        agent: agent.as_ref(),
        ..lookup(stored, tool, Some(&call_args))
    };

    match resolve(tool, rule, found) {
        Ok(Resolution::Proceed { edited: None, .. }) => {
            json!({"outcome": "proceed", "args": case.input["args"]})
        }
        Ok(Resolution::Proceed {
            edited: Some(args), ..
        }) => {
            let args: Value = serde_json::from_str(args).unwrap();
            json!({"outcome": "proceed", "args": args, "edited": true})
        }
        Ok(Resolution::Interrupt { .. }) => json!({"outcome": "interrupt", "tool": tool}),
        Ok(Resolution::Reject { feedback, .. }) => {
            json!({"outcome": "reject", "feedback": feedback})
        }
        Ok(Resolution::Respond { .. }) => panic!("no case has this"),
        Err(NotAllowed { .. }) => {
            json!({"outcome": "error", "code": "HITL_DECISION", "retryable": false})
        }
    }
}

/// What may be decided about a tool; none if it is not intercepted.
fn allowed(rules: &Value, tool: &str) -> Option<Vec<DecisionKind>> {
    let rule = rules.get(tool)?;
    let Some(kinds) = rule.get("allowedDecisions") else {
        return Some(vec![
            DecisionKind::Approve,
            DecisionKind::Edit,
            DecisionKind::Reject,
        ]);
    };
    let kind = |name: &Value| match name.as_str().unwrap() {
        "approve" => DecisionKind::Approve,
        "edit" => DecisionKind::Edit,
        "reject" => DecisionKind::Reject,
        other => panic!("{other} is no kind"),
    };
    Some(kinds.as_array().unwrap().iter().map(kind).collect())
}
