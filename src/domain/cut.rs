//! The cut: where an interrupted run's history ends for the model.
//!
//! A checkpoint stores the whole turn that was interrupted, and the place before
//! it. From there the model issues the call again, while the results of the
//! turn's other calls are handed out beside the history.

use super::json;
use super::message::{Item, Message, Role, ToolCall};

/// The call that was interrupted, as far as the caller can name it.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a> {
    /// The model's id for the call. None, or empty, when it is not known.
    pub call_id: Option<&'a str>,
    /// The tool.
    pub tool: &'a str,
    /// JSON text of the arguments.
    pub args: Option<&'a str>,
}

/// How the interrupted turn was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It holds a call with that id.
    CallId,
    /// It holds a call of that tool with equal arguments; none has that id.
    Action,
    /// It was not found, so everything is kept.
    Nothing,
}

/// Where to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many items stand before the interrupted turn; all, if none matched.
    pub kept: usize,
    /// How the turn was found.
    pub matched: Match,
}

/// The result of a call of the interrupted turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiblingResult<'a> {
    /// Which of the turn's calls it answers, from 0.
    pub position: usize,
    /// The call.
    pub call: &'a ToolCall,
    /// The tool message.
    pub message: &'a Message,
}

/// Finds the last assistant turn that holds the interrupted call: by its id, else
/// by the tool's name and equal arguments.
#[must_use]
pub fn cut(items: &[Item], interrupted: Interrupted<'_>) -> Cut {
    let by_id = interrupted
        .call_id
        .filter(|id| !id.is_empty())
        .and_then(|id| last_turn(items, |call| call.id == id));
    if let Some(kept) = by_id {
        return Cut {
            kept,
            matched: Match::CallId,
        };
    }

    let args = json::canonical_args(interrupted.args);
    let by_action = last_turn(items, |call| {
        call.name == interrupted.tool && json::canonical_args(call.args_json.as_deref()) == args
    });
    match by_action {
        Some(kept) => Cut {
            kept,
            matched: Match::Action,
        },
        None => Cut {
            kept: items.len(),
            matched: Match::Nothing,
        },
    }
}

/// The cut of a suspension by several calls: that of the earliest turn found.
#[must_use]
pub fn cut_all<'a>(items: &[Item], interrupted: impl IntoIterator<Item = Interrupted<'a>>) -> Cut {
    interrupted
        .into_iter()
        .map(|call| cut(items, call))
        .min_by_key(|cut| cut.kept)
        .unwrap_or(Cut {
            kept: items.len(),
            matched: Match::Nothing,
        })
}

/// The results of the interrupted turn's calls that stand after it, in order.
///
/// Ids recur in real conversations, so the search ends at the next assistant
/// turn, and of two calls of the turn with one id the first result belongs to the
/// first. Nothing if no turn was found.
#[must_use]
pub fn sibling_results(items: &[Item], cut: Cut) -> Vec<SiblingResult<'_>> {
    let Some((turn, after)) = items.get(cut.kept..).and_then(<[Item]>::split_first) else {
        return Vec::new();
    };
    let mut open: Vec<(usize, &ToolCall)> = calls(turn).enumerate().collect();
    after
        .iter()
        .filter_map(Item::as_message)
        .take_while(|message| message.role != Role::Assistant)
        .filter(|message| message.role == Role::Tool)
        .filter_map(|message| {
            let id = message.tool_call_id.as_deref()?;
            let at = open.iter().position(|(_, call)| call.id == id)?;
            let (position, call) = open.remove(at);
            Some(SiblingResult {
                position,
                call,
                message,
            })
        })
        .collect()
}

/// The place of the last assistant turn with a call that is sought.
fn last_turn(items: &[Item], mut sought: impl FnMut(&ToolCall) -> bool) -> Option<usize> {
    items.iter().rposition(|item| calls(item).any(&mut sought))
}

/// The tool calls of an assistant turn; of anything else, none.
fn calls(item: &Item) -> impl Iterator<Item = &ToolCall> {
    item.as_message()
        .filter(|message| message.role == Role::Assistant)
        .into_iter()
        .flat_map(Message::tool_calls)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::message::{BlockKind, Content};

    fn message(role: Role, content: Content) -> Message {
        Message {
            id: None,
            role,
            content,
            name: None,
            tool_call_id: None,
            tool_name: None,
            pinned: None,
            created_at: None,
            extra_json: None,
        }
    }

    fn turn(calls: &[(&str, &str, &str)]) -> Item {
        let blocks = calls.iter().map(|&(id, name, args)| {
            let args_json = (!args.is_empty()).then(|| args.to_owned());
            BlockKind::ToolCall(ToolCall {
                id: id.to_owned(),
                name: name.to_owned(),
                args_json,
            })
            .into()
        });
        Item::Message(message(Role::Assistant, Content::Blocks(blocks.collect())))
    }

    fn text(role: Role, text: &str) -> Item {
        Item::Message(message(role, Content::Text(text.to_owned())))
    }

    fn result(id: &str, text: &str) -> Item {
        let tool = message(Role::Tool, Content::Text(text.to_owned()));
        Item::Message(Message {
            tool_call_id: Some(id.to_owned()),
            ..tool
        })
    }

    const fn interrupted<'a>(id: &'a str, tool: &'a str, args: &'a str) -> Interrupted<'a> {
        Interrupted {
            call_id: Some(id),
            tool,
            args: Some(args),
        }
    }

    #[test]
    fn an_id_wins_over_equal_arguments() {
        let items = [
            turn(&[("1", "pay", "{}")]),
            result("1", "r"),
            turn(&[("2", "pay", "{\"n\":1}")]),
            turn(&[("3", "pay", "{}")]),
        ];
        assert_eq!(
            cut(&items, interrupted("2", "pay", "{}")),
            Cut {
                kept: 2,
                matched: Match::CallId
            }
        );
        assert_eq!(
            cut(&items, interrupted("9", "pay", "{}")),
            Cut {
                kept: 3,
                matched: Match::Action
            }
        );
        assert_eq!(
            cut(&items, interrupted("", "pay", "{\"n\":1.0}")),
            Cut {
                kept: 2,
                matched: Match::Action
            }
        );
        assert_eq!(
            cut(&items, interrupted("9", "pay", "[]")),
            Cut {
                kept: 4,
                matched: Match::Nothing
            }
        );
    }

    #[test]
    fn an_id_that_recurs_means_the_last_turn() {
        let items = [
            turn(&[("1", "pay", "")]),
            result("1", "r"),
            turn(&[("1", "pay", "")]),
        ];
        assert_eq!(
            cut(&items, interrupted("1", "pay", "")),
            Cut {
                kept: 2,
                matched: Match::CallId
            }
        );
    }

    #[test]
    fn an_empty_id_of_a_call_is_no_id() {
        let items = [turn(&[("", "pay", "")]), turn(&[("", "other", "")])];
        assert_eq!(
            cut(&items, interrupted("", "pay", "null")),
            Cut {
                kept: 0,
                matched: Match::Action
            }
        );
    }

    #[test]
    fn only_assistant_turns_are_cut() {
        let Item::Message(call) = turn(&[("1", "pay", "")]) else {
            unreachable!()
        };
        let items = [
            text(Role::User, "a"),
            Item::Message(Message {
                role: Role::User,
                ..call
            }),
        ];
        assert_eq!(
            cut(&items, interrupted("1", "pay", "")),
            Cut {
                kept: 2,
                matched: Match::Nothing
            }
        );
    }

    #[test]
    fn several_calls_cut_at_the_earliest_turn() {
        let items = [turn(&[("1", "a", "")]), turn(&[("2", "b", "")])];
        let calls = [
            interrupted("9", "x", ""),
            interrupted("2", "b", ""),
            interrupted("1", "a", ""),
        ];
        assert_eq!(
            cut_all(&items, calls),
            Cut {
                kept: 0,
                matched: Match::CallId
            }
        );
        assert_eq!(
            cut_all(&items, []),
            Cut {
                kept: 2,
                matched: Match::Nothing
            }
        );
    }

    #[test]
    fn results_of_siblings_are_collected() {
        let items = [
            result("1", "of an earlier call"),
            turn(&[
                ("1", "a", ""),
                ("2", "pay", ""),
                ("1", "c", ""),
                ("4", "d", ""),
            ]),
            result("1", "first"),
            result("7", "of nothing"),
            text(Role::User, "meanwhile"),
            result("1", "second"),
            result("1", "third"),
            text(Role::Assistant, "next"),
            result("4", "too late"),
        ];
        let found = sibling_results(&items, cut(&items, interrupted("2", "pay", "")));
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.position, &*found.call.name, &found.message.content))
            .collect();
        let content = |text: &str| Content::Text(text.to_owned());
        assert_eq!(
            found,
            [(0, "a", &content("first")), (2, "c", &content("second"))]
        );
    }

    #[test]
    fn without_a_turn_there_are_no_siblings() {
        let items = [turn(&[("1", "a", "")]), result("1", "r")];
        assert_eq!(
            sibling_results(&items, cut(&items, interrupted("9", "x", ""))),
            []
        );
        assert_eq!(
            sibling_results(
                &[],
                Cut {
                    kept: 0,
                    matched: Match::Nothing
                }
            ),
            []
        );
    }

    proptest! {
        #[test]
        fn everything_before_the_cut_is_kept(
            turns in prop::collection::vec((0u8..4, 0u8..3), 0..12), id in 0u8..5, n in 0u8..4,
        ) {
            let items: Vec<Item> = turns.iter()
                .map(|(id, n)| turn(&[(&id.to_string(), "pay", &n.to_string())]))
                .collect();
            let (id, n) = (id.to_string(), n.to_string());
            let found = cut(&items, interrupted(&id, "pay", &n));
            let holds = |at: usize| match found.matched {
                Match::CallId => turns[at].0.to_string() == id,
                Match::Action => turns[at].1.to_string() == n,
                Match::Nothing => turns[at].0.to_string() == id || turns[at].1.to_string() == n,
            };
            prop_assert!((found.kept + 1..items.len()).all(|at| !holds(at)));
            prop_assert_eq!(found.matched == Match::Nothing, found.kept == items.len());
            prop_assert!(found.matched == Match::Nothing || holds(found.kept));
        }
    }
}
