//! Which decision answers a call, and what follows from it.
//!
//! A stored decision is filed under the action (`tool:` and the JSON of its
//! arguments) or under the bare name of the tool. The spellings of that JSON
//! differ between languages, so keys are taken apart and compared by what they
//! mean, never as text.

use std::borrow::Cow;

use super::error::{Error, Reason};
use super::interrupt::{Answer, DecisionKind};
use super::json;

/// How long the tool's name in a key may be, in bytes. Bounds the search for the
/// colon that ends it.
const MAX_TOOL_BYTES: usize = 512;

/// What a stored decision is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// One action.
    Action {
        /// The tool.
        tool: &'a str,
        /// JSON text of the arguments.
        args: &'a str,
    },
    /// Every call of a tool, whatever its arguments.
    Tool(&'a str),
}

/// Takes a key apart, whichever language spelled it.
///
/// A tool's name may hold colons: it ends at the one after which the rest is
/// JSON. No text has two of these, because a part of a JSON text after one of its
/// colons is never JSON itself. A key without one is a bare name.
#[must_use]
pub fn parse(key: &str) -> Key<'_> {
    key.match_indices(':')
        .take_while(|(at, _)| *at <= MAX_TOOL_BYTES)
        .filter_map(|(at, colon)| Some((key.get(..at)?, key.get(at + colon.len()..)?)))
        .find(|(_, args)| json::check(args).is_ok())
        .map_or(Key::Tool(key), |(tool, args)| Key::Action { tool, args })
}

/// A JSON value that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no decision: {problem}")]
pub struct MalformedDecision {
    /// What is wrong.
    pub problem: &'static str,
}

/// Reads the JSON of a stored decision: `"approve"`, `{"edit": args}`,
/// `{"reject": reason}` or `{"suspend": true}`, the first of `suspend`,
/// `edit`, `reject` where an object has several. Null is no decision.
///
/// # Errors
///
/// Everything else is refused, not read as a reject: an approval with a typing
/// error must not act as its opposite.
pub fn decision_from_json(text: &str) -> Result<Option<Answer>, MalformedDecision> {
    let refused = |problem| Err(MalformedDecision { problem });

    if json::check(text).is_err() {
        return refused("it is not JSON");
    }
    match text.trim_start().as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b'"') if string(text).as_deref() == Some("approve") => {
            return Ok(Some(Answer::Approve { grant: None }));
        }
        Some(b'{') => {}
        _ => return refused("expected \"approve\" or an object"),
    }

    let members = json::members(text).unwrap_or_default();
    let member = |name: &str| {
        members
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| *value)
    };
    match member("suspend") {
        Some("true") => return Ok(Some(Answer::Suspend)),
        Some("false") | None => {}
        Some(_) => return refused("`suspend` must be true or false"),
    }
    if let Some(args) = member("edit") {
        return Ok(Some(Answer::Edit {
            args_json: args.to_owned(),
        }));
    }
    match member("reject") {
        Some("null" | "true") => Ok(Some(Answer::Reject {
            reason: String::new(),
        })),
        Some(reason) => match string(reason) {
            Some(reason) => Ok(Some(Answer::Reject { reason })),
            None => refused("`reject` must be a text"),
        },
        None => refused("expected `edit`, `reject` or `suspend`"),
    }
}

/// The string that a JSON text is, unless it is something else.
fn string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// A string as JSON text.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What the admin's rule says about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    /// Its calls run. A tool without a rule is free.
    Free,
    /// Its calls wait for a decision.
    Hold {
        /// The kinds that may be decided. Suspend always may.
        allowed: &'a [DecisionKind],
        /// Whether the agent's own decision counts.
        agent_may_decide: bool,
    },
    /// Its calls never run.
    Forbid,
}

/// The decisions that could answer a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found<'a> {
    /// About exactly this action.
    pub action: Option<&'a Answer>,
    /// About every call of the tool. On the server only what a reviewer granted
    /// so (`match: TOOL`).
    pub tool: Option<&'a Answer>,
    /// What the agent itself decided.
    pub agent: Option<&'a Answer>,
}

/// Whose word a resolution follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rule's.
    Rule,
    /// A decision about exactly this action.
    Action,
    /// A decision about every call of the tool.
    Tool,
    /// The agent's.
    Agent,
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution<'a> {
    /// It runs.
    Proceed {
        /// JSON text of the arguments to use instead, or none.
        edited: Option<&'a str>,
        /// Whose word it is.
        by: Source,
    },
    /// It does not run, and this is its result.
    Respond {
        /// JSON text of the result; of a choice, its id.
        value_json: Cow<'a, str>,
        /// Whose word it is.
        by: Source,
    },
    /// It does not run, and the model is told why.
    Reject {
        /// What the model is told.
        feedback: String,
        /// Whose word it is.
        by: Source,
    },
    /// It waits for a person.
    Interrupt {
        /// Whether the agent decided and the rule does not let it.
        agent_refused: bool,
    },
}

/// A decision of a kind that the rule does not allow: `HITL_DECISION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a decision of kind {} is not allowed for this tool", .kind.name())]
pub struct NotAllowed {
    /// What was decided.
    pub kind: DecisionKind,
    /// Who decided.
    pub by: Source,
}

impl From<NotAllowed> for Error {
    fn from(refused: NotAllowed) -> Self {
        Self::new(Reason::HitlDecision, refused.to_string()).with("kind", refused.kind.name())
    }
}

/// Looks a call up in a table of stored decisions.
///
/// A null counts as absent, so one under the action leaves it to the tool's name.
#[must_use]
pub fn lookup<'a, K: AsRef<str> + 'a>(
    stored: impl IntoIterator<Item = (K, Option<&'a Answer>)>,
    tool: &str,
    args: Option<&str>,
) -> Found<'a> {
    let args = json::canonical_args(args);
    let mut found = Found::default();
    for (key, decision) in stored {
        let key = key.as_ref();
        if key == tool {
            found.tool = found.tool.or(decision);
            continue;
        }
        match parse(key) {
            Key::Action {
                tool: its_tool,
                args: its_args,
            } if its_tool == tool && json::canonical_args(Some(its_args)) == args => {
                found.action = found.action.or(decision);
            }
            Key::Action { .. } | Key::Tool(_) => {}
        }
    }
    found
}

/// Decides what happens to a call: by the decision about the action, else by
/// that about the tool, else by the agent's where it counts, else the call waits.
///
/// # Errors
///
/// [`NotAllowed`] if the decision which counts is of a kind that the rule does
/// not allow. An agent's decision that does not count is no error: the call waits
/// as if there were none.
pub fn resolve<'a>(
    tool: &str,
    rule: Rule<'_>,
    found: Found<'a>,
) -> Result<Resolution<'a>, NotAllowed> {
    let (allowed, agent_may_decide) = match rule {
        Rule::Free => {
            return Ok(Resolution::Proceed {
                edited: None,
                by: Source::Rule,
            });
        }
        Rule::Forbid => {
            let feedback = format!("The tool {tool} is forbidden. Do not retry this tool call.");
            return Ok(Resolution::Reject {
                feedback,
                by: Source::Rule,
            });
        }
        Rule::Hold {
            allowed,
            agent_may_decide,
        } => (allowed, agent_may_decide),
    };

    let by_agent = found.agent.filter(|_| agent_may_decide);
    let first = [
        (found.action, Source::Action),
        (found.tool, Source::Tool),
        (by_agent, Source::Agent),
    ]
    .into_iter()
    .find_map(|(decision, by)| Some((decision?, by)));
    let Some((decision, by)) = first else {
        return Ok(Resolution::Interrupt {
            agent_refused: found.agent.is_some(),
        });
    };

    let kind = decision.kind();
    if kind != DecisionKind::Suspend && !allowed.contains(&kind) {
        return Err(NotAllowed { kind, by });
    }
    Ok(match decision {
        Answer::Approve { grant: _ } => Resolution::Proceed { edited: None, by },
        Answer::Edit { args_json } => Resolution::Proceed {
            edited: Some(args_json),
            by,
        },
        Answer::Reject { reason } => Resolution::Reject {
            feedback: reject_feedback(tool, reason),
            by,
        },
        Answer::Respond { value_json } => Resolution::Respond {
            value_json: Cow::Borrowed(value_json),
            by,
        },
        Answer::Choose { choice_id } => Resolution::Respond {
            value_json: Cow::Owned(quoted(choice_id)),
            by,
        },
        Answer::Skip => Resolution::Reject {
            feedback: skip_feedback(tool),
            by,
        },
        Answer::Suspend => Resolution::Interrupt {
            agent_refused: false,
        },
    })
}

/// What the model is told about a rejected call.
#[must_use]
pub fn reject_feedback(tool: &str, reason: &str) -> String {
    if reason.is_empty() {
        return format!("User rejected {tool}. Do not retry this tool call.");
    }
    reason.to_owned()
}

/// What the model is told about a skipped call.
#[must_use]
pub fn skip_feedback(tool: &str) -> String {
    format!("User skipped {tool}. Do not retry this tool call.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const APPROVE: Answer = Answer::Approve { grant: None };

    const ALL: &[DecisionKind] = &[
        DecisionKind::Approve,
        DecisionKind::Edit,
        DecisionKind::Reject,
        DecisionKind::Respond,
        DecisionKind::Skip,
    ];

    const fn hold(agent_may_decide: bool) -> Rule<'static> {
        Rule::Hold {
            allowed: ALL,
            agent_may_decide,
        }
    }

    #[test]
    fn a_key_is_taken_apart() {
        for (key, tool, args) in [
            (
                "publish:{\"text\": \"prod\"}",
                "publish",
                "{\"text\": \"prod\"}",
            ),
            (
                "publish:{\"text\":\"prod\"}",
                "publish",
                "{\"text\":\"prod\"}",
            ),
            ("publish:null", "publish", "null"),
            ("ns:tool:{\"x\": 1}", "ns:tool", "{\"x\": 1}"),
            (":{}", "", "{}"),
            ("a:b:\"c:1\"", "a:b", "\"c:1\""),
            ("é:5", "é", "5"),
        ] {
            assert_eq!(parse(key), Key::Action { tool, args }, "{key}");
        }
        for name in [
            "publish",
            "",
            "ns:tool",
            "a:",
            ":",
            "a:{",
            &format!("{}:1", "x".repeat(513)),
        ] {
            assert_eq!(parse(name), Key::Tool(name));
        }
    }

    #[test]
    fn a_malformed_decision_is_refused() {
        for text in [
            "",
            "{",
            "{\"approve\":true}",
            "{}",
            "\"\"",
            "false",
            "true",
            "0",
            "[]",
            "\"reject\"",
            "\"suspend\"",
            "\"APPROVE\"",
            "{\"suspend\":1}",
            "{\"suspend\":false}",
            "{\"reject\":0}",
            "{\"reject\":false}",
            "{\"reject\":{}}",
            "{\"edit\":1,\"edit\":2}",
        ] {
            assert!(decision_from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_decision_is_read() {
        let edit = |args: &str| Answer::Edit {
            args_json: args.to_owned(),
        };
        let reject = |reason: &str| Answer::Reject {
            reason: reason.to_owned(),
        };
        for (text, decision) in [
            (" null ", None),
            ("\"approve\"", Some(Answer::Approve { grant: None })),
            ("\"\\u0061pprove\"", Some(Answer::Approve { grant: None })),
            ("{\"edit\": {\"a\": 1.0} }", Some(edit("{\"a\": 1.0}"))),
            ("{\"edit\":null,\"reject\":\"no\"}", Some(edit("null"))),
            ("{\"reject\":\"a\\nb\"}", Some(reject("a\nb"))),
            ("{\"reject\":null}", Some(reject(""))),
            ("{\"suspend\":true,\"edit\":1}", Some(Answer::Suspend)),
            ("{\"suspend\":false,\"edit\":1}", Some(edit("1"))),
        ] {
            assert_eq!(decision_from_json(text), Ok(decision), "{text}");
        }
    }

    #[test]
    fn the_spelling_of_a_key_does_not_matter() {
        let stored = [
            ("t:{\"b\":1e0,\"a\":\"\\u00e9\"}", Some(&APPROVE)),
            ("t", None),
        ];
        let found = lookup(stored, "t", Some("{\"a\": \"é\", \"b\": 1}"));
        assert_eq!(
            found,
            Found {
                action: Some(&APPROVE),
                tool: None,
                agent: None
            }
        );
        assert_eq!(
            lookup(stored, "t", Some("{\"a\": \"é\", \"b\": 2}")),
            Found::default()
        );
        assert_eq!(
            lookup(stored, "u", Some("{\"a\": \"é\", \"b\": 1}")),
            Found::default()
        );
    }

    #[test]
    fn absent_arguments_are_found_under_null_and_empty() {
        for key in ["t:null", "t:{}"] {
            assert!(
                lookup([(key, Some(&Answer::Skip))], "t", None)
                    .action
                    .is_some(),
                "{key}"
            );
        }
    }

    #[test]
    fn a_tool_whose_name_looks_like_a_key_is_found_by_it() {
        let found = lookup([("t:5", Some(&Answer::Skip))], "t:5", None);
        assert_eq!(
            found,
            Found {
                action: None,
                tool: Some(&Answer::Skip),
                agent: None
            }
        );
    }

    #[test]
    fn the_order_is_action_tool_agent() {
        let [reject, edit] = [
            Answer::Reject {
                reason: String::new(),
            },
            Answer::Edit {
                args_json: "1".into(),
            },
        ];
        let mut found = Found {
            action: Some(&APPROVE),
            tool: Some(&reject),
            agent: Some(&edit),
        };
        let source = |found| match resolve("t", hold(true), found).unwrap() {
            Resolution::Proceed { by, .. }
            | Resolution::Respond { by, .. }
            | Resolution::Reject { by, .. } => Some(by),
            Resolution::Interrupt { .. } => None,
        };
        assert_eq!(source(found), Some(Source::Action));
        found.action = None;
        assert_eq!(source(found), Some(Source::Tool));
        found.tool = None;
        assert_eq!(source(found), Some(Source::Agent));
        found.agent = None;
        assert_eq!(source(found), None);
    }

    #[test]
    fn an_agent_decides_only_where_it_may() {
        let found = Found {
            agent: Some(&APPROVE),
            ..Found::default()
        };
        assert_eq!(
            resolve("t", hold(false), found),
            Ok(Resolution::Interrupt {
                agent_refused: true
            })
        );
        let proceed = Resolution::Proceed {
            edited: None,
            by: Source::Agent,
        };
        assert_eq!(resolve("t", hold(true), found), Ok(proceed));
    }

    #[test]
    fn rules_come_before_decisions() {
        let found = Found {
            action: Some(&APPROVE),
            tool: Some(&APPROVE),
            agent: Some(&APPROVE),
        };
        assert!(matches!(
            resolve("t", Rule::Forbid, found),
            Ok(Resolution::Reject {
                by: Source::Rule,
                ..
            })
        ));
        let found = Found {
            action: Some(&Answer::Skip),
            ..Found::default()
        };
        assert!(matches!(
            resolve("t", Rule::Free, found),
            Ok(Resolution::Proceed {
                edited: None,
                by: Source::Rule
            })
        ));
    }

    #[test]
    fn a_kind_that_is_not_allowed_is_an_error_except_suspend() {
        let none = Rule::Hold {
            allowed: &[],
            agent_may_decide: true,
        };
        for decision in [
            Answer::Approve { grant: None },
            Answer::Edit {
                args_json: "{}".into(),
            },
            Answer::Reject { reason: "r".into() },
            Answer::Respond {
                value_json: "1".into(),
            },
            Answer::Skip,
        ] {
            let found = Found {
                tool: Some(&decision),
                ..Found::default()
            };
            let refused = NotAllowed {
                kind: decision.kind(),
                by: Source::Tool,
            };
            assert_eq!(resolve("t", none, found), Err(refused));
            assert!(resolve("t", hold(false), found).is_ok());
        }
        let found = Found {
            tool: Some(&Answer::Suspend),
            ..Found::default()
        };
        assert_eq!(
            resolve("t", none, found),
            Ok(Resolution::Interrupt {
                agent_refused: false
            })
        );
    }

    proptest! {
        /// Names full of what could be taken for JSON.
        #[test]
        fn no_key_can_be_taken_apart_in_two_ways(key in "[:\"{}\\[\\]\\\\a1, ]{0,24}") {
            let ways = key.match_indices(':').filter(|(at, _)| json::check(&key[at + 1..]).is_ok()).count();
            prop_assert!(ways <= 1, "{}", key);
        }

        #[test]
        fn a_key_comes_apart_as_it_was_made(tool in "[a-z:_.]{0,12}", n: i32, text: String) {
            let args = format!("{{\"n\": {n}, \"t\": {}}}", serde_json::Value::from(text));
            let key = format!("{tool}:{args}");
            prop_assert_eq!(parse(&key), Key::Action { tool: &tool, args: &args });
        }
    }
}
