//! Compaction of a memory: which messages a summary replaces, and the summary
//! that needs no model.
//!
//! Rules name positions and never copy a history, so that a fold can be stored as
//! references and undone.

use super::message::{Content, Item, Message, Role, ToolCall};
use super::tokens::text_view;
use super::window::is_pinned;

/// How many messages the extractive summary quotes.
const QUOTED_MESSAGES: usize = 5;

/// How much it quotes of each, in code points.
const QUOTED_CHARS: usize = 200;

/// Messages that one summary replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Their positions, in order; two or more.
    pub positions: Vec<usize>,
}

/// What to fold so that `max_messages` are left, the summary among them; none if
/// there are not more. `max_messages` is at least 1; 0 counts as 1.
///
/// The oldest are folded, one more than there are too many, to make room for the
/// summary. Earlier summaries are messages like others. Never folded, and not
/// counted, are pinned messages, items that are no message, and the last turn of
/// calls while results are missing. A call and its results are folded together or
/// not at all: where the fold would part them it grows.
#[must_use]
pub fn plan(items: &[Item], max_messages: usize) -> Option<Fold> {
    let turns = turns(items);
    let stays = staying(items, &turns);
    let free: Vec<usize> = (0..items.len())
        .filter(|position| !is_set(&stays, *position))
        .collect();

    let max = max_messages.max(1);
    let excess = free.len().checked_sub(max).filter(|excess| *excess > 0)?;
    let mut last = *free.get(excess)?;
    for turn in turns.iter().filter(|turn| !is_set(&stays, turn.position)) {
        if turn.position <= last {
            last = last.max(turn.last());
        }
    }
    let positions = free
        .into_iter()
        .take_while(|position| *position <= last)
        .collect();
    Some(Fold { positions })
}

/// How many messages of a history count against a cap of [`plan`].
#[must_use]
pub fn foldable(items: &[Item]) -> usize {
    staying(items, &turns(items))
        .iter()
        .filter(|stays| !**stays)
        .count()
}

/// The history with `summary` in place of what is folded.
///
/// It stands where the last folded message stood, so that pinned messages of the
/// folded stretch come before it.
#[must_use]
pub fn apply(items: Vec<Item>, fold: &Fold, summary: Item) -> Vec<Item> {
    let last = fold.positions.last().copied();
    let mut folded = fold.positions.iter().peekable();
    let mut summary = Some(summary);
    let mut out = Vec::with_capacity(items.len());
    for (position, item) in items.into_iter().enumerate() {
        if folded.next_if_eq(&&position).is_none() {
            out.push(item);
        } else if last == Some(position) {
            out.extend(summary.take());
        }
    }
    out
}

/// The message that says a summary: by the assistant, without id, not pinned.
#[must_use]
pub fn summary_message(text: String) -> Message {
    Message {
        id: None,
        role: Role::Assistant,
        content: Content::Text(text),
        name: None,
        tool_call_id: None,
        tool_name: None,
        pinned: None,
        created_at: None,
        extra_json: None,
    }
}

/// The summary that needs no model: how many messages it stands for, and a line
/// for each of the first five that are not the system's.
#[must_use]
pub fn extractive_summary<'a>(folded: impl IntoIterator<Item = &'a Item>) -> String {
    let folded: Vec<&Item> = folded.into_iter().collect();
    let quotes: Vec<String> = folded
        .iter()
        .filter_map(|item| item.as_message())
        .filter(|message| message.role != Role::System)
        .take(QUOTED_MESSAGES)
        .map(quote)
        .collect();
    format!(
        "Prior context summary ({} msgs):\n{}",
        folded.len(),
        quotes.join("\n")
    )
}

/// A message in a line: its role and the first 200 code points of its text.
/// Newlines inside the text stay.
#[must_use]
pub fn quote(message: &Message) -> String {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Developer => "developer",
    };
    let text = text_view(message);
    let end = text
        .char_indices()
        .nth(QUOTED_CHARS)
        .map_or(text.len(), |(end, _)| end);
    format!("[{role}] {}", text.get(..end).unwrap_or_default())
}

/// An assistant turn with tool calls, and what answers them.
#[derive(Debug)]
struct Turn<'a> {
    position: usize,
    /// The positions of its results, in order.
    results: Vec<usize>,
    /// The calls without result.
    open: Vec<&'a ToolCall>,
}

impl Turn<'_> {
    fn last(&self) -> usize {
        self.results.last().copied().unwrap_or(self.position)
    }
}

/// The turns with tool calls, in order.
///
/// A result belongs to the last turn before it with an open call of its id; one
/// without id to the turn right before it and its results.
fn turns(items: &[Item]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    let mut just_before = false;
    for (position, item) in items.iter().enumerate() {
        let message = item.as_message();
        let is_result = message.is_some_and(|message| message.role == Role::Tool);
        match message {
            Some(message) if is_result => match &message.tool_call_id {
                Some(id) => answer(&mut turns, id, position),
                None if just_before => {
                    if let Some(turn) = turns.last_mut() {
                        turn.results.push(position);
                        turn.open.truncate(turn.open.len().saturating_sub(1));
                    }
                }
                None => {}
            },
            Some(message) if message.role == Role::Assistant => {
                let open: Vec<&ToolCall> = message.tool_calls().collect();
                if !open.is_empty() {
                    turns.push(Turn {
                        position,
                        results: Vec::new(),
                        open,
                    });
                }
            }
            Some(_) | None => {}
        }
        just_before =
            is_result && just_before || turns.last().is_some_and(|turn| turn.position == position);
    }
    turns
}

/// Gives the result at `position` to the call that it answers, if there is one.
fn answer(turns: &mut [Turn<'_>], id: &str, position: usize) {
    for turn in turns.iter_mut().rev() {
        if let Some(call) = turn.open.iter().position(|call| call.id == id) {
            turn.open.remove(call);
            turn.results.push(position);
            return;
        }
    }
}

/// Which positions are never folded.
fn staying(items: &[Item], turns: &[Turn<'_>]) -> Vec<bool> {
    let mut stays: Vec<bool> = items
        .iter()
        .map(|item| item.as_message().is_none() || is_pinned(item))
        .collect();
    let last_said = items.iter().rposition(|item| {
        item.as_message()
            .is_some_and(|message| message.role == Role::Assistant)
    });
    for turn in turns {
        let unfinished = !turn.open.is_empty() && last_said == Some(turn.position);
        let mut members = turn.results.iter().copied().chain([turn.position]);
        if unfinished || members.clone().any(|position| is_set(&stays, position)) {
            members.by_ref().for_each(|position| {
                if let Some(stay) = stays.get_mut(position) {
                    *stay = true;
                }
            });
        }
    }
    stays
}

fn is_set(flags: &[bool], position: usize) -> bool {
    flags.get(position).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::message::BlockKind;

    fn message(role: Role, text: &str) -> Message {
        Message {
            role,
            ..summary_message(text.to_owned())
        }
    }

    fn said(text: &str) -> Item {
        Item::Message(message(Role::User, text))
    }

    fn pinned(item: Item) -> Item {
        match item {
            Item::Message(message) => Item::Message(Message {
                pinned: Some(true),
                ..message
            }),
            Item::NonStandard { .. } => item,
        }
    }

    fn calls(ids: &[&str]) -> Item {
        let blocks = ids.iter().map(|&id| {
            let call = ToolCall {
                id: id.to_owned(),
                name: "t".to_owned(),
                args_json: None,
            };
            BlockKind::ToolCall(call).into()
        });
        let content = Content::Blocks(blocks.collect());
        Item::Message(Message {
            content,
            ..message(Role::Assistant, "")
        })
    }

    fn result(id: &str) -> Item {
        let tool_call_id = (!id.is_empty()).then(|| id.to_owned());
        Item::Message(Message {
            tool_call_id,
            ..message(Role::Tool, "r")
        })
    }

    fn other() -> Item {
        Item::NonStandard {
            id: None,
            value_json: "{}".to_owned(),
            created_at: None,
        }
    }

    fn positions(items: &[Item], max: usize) -> Vec<usize> {
        plan(items, max).map_or_else(Vec::new, |fold| fold.positions)
    }

    #[test]
    fn one_too_many_folds_two() {
        let items = ["a", "b", "c", "d"].map(said);
        assert_eq!(positions(&items, 4), [0; 0]);
        assert_eq!(positions(&items, 3), [0, 1]);
        assert_eq!(positions(&items, 1), [0, 1, 2, 3]);
        assert_eq!(positions(&items, 0), [0, 1, 2, 3]);
        assert_eq!(positions(&items[..1], 1), [0; 0]);
        assert_eq!(positions(&[], 1), [0; 0]);
    }

    #[test]
    fn pins_and_what_is_no_message_stay_and_do_not_count() {
        let items = [
            pinned(said("p")),
            said("a"),
            other(),
            said("b"),
            pinned(said("q")),
            said("c"),
        ];
        assert_eq!(foldable(&items), 3);
        assert_eq!(positions(&items, 3), [0; 0]);
        let fold = plan(&items, 2).unwrap();
        assert_eq!(fold.positions, [1, 3]);
        let summary = Item::Message(summary_message("s".to_owned()));
        let after = apply(items.to_vec(), &fold, summary.clone());
        assert_eq!(
            after,
            [
                items[0].clone(),
                other(),
                summary,
                items[4].clone(),
                items[5].clone()
            ]
        );
    }

    #[test]
    fn a_fold_grows_rather_than_part_a_call_from_its_results() {
        let items = [
            said("a"),
            calls(&["1", "2"]),
            result("1"),
            said("b"),
            result("2"),
            said("c"),
            said("d"),
        ];
        assert_eq!(positions(&items, 6), [0, 1, 2, 3, 4]);
        let items = [calls(&["1"]), result(""), said("a"), said("b")];
        assert_eq!(positions(&items, 3), [0, 1]);
        let items = [said("a"), calls(&["1"]), result(""), said("b")];
        assert_eq!(positions(&items, 3), [0, 1, 2]);
    }

    #[test]
    fn a_call_whose_results_are_missing_waits_for_them() {
        let items = [
            said("a"),
            calls(&["1", "2"]),
            result("1"),
            said("b"),
            said("c"),
        ];
        assert_eq!(foldable(&items), 3);
        assert_eq!(positions(&items, 1), [0, 3, 4]);
    }

    #[test]
    fn a_call_that_was_given_up_is_folded() {
        let items = [
            calls(&["1"]),
            said("a"),
            Item::Message(message(Role::Assistant, "b")),
            said("c"),
        ];
        assert_eq!(positions(&items, 3), [0, 1]);
    }

    #[test]
    fn one_pin_holds_the_whole_pair() {
        let items = [pinned(calls(&["1"])), result("1"), said("a"), said("b")];
        assert_eq!(positions(&items, 1), [2, 3]);
        let items = [calls(&["1"]), pinned(result("1")), said("a"), said("b")];
        assert_eq!(positions(&items, 1), [2, 3]);
    }

    #[test]
    fn ids_that_recur_mean_the_last_turn() {
        let items = [
            calls(&["1"]),
            result("1"),
            calls(&["1"]),
            result("1"),
            result("1"),
            said("a"),
        ];
        assert_eq!(positions(&items, 5), [0, 1]);
        assert_eq!(positions(&items, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_result_belongs_to_the_last_open_call_of_its_id() {
        let items = [
            calls(&["1"]),
            said("a"),
            calls(&["1"]),
            result("1"),
            said("b"),
        ];
        assert_eq!(foldable(&items), 5);
    }

    #[test]
    fn a_summary_counts_all_and_quotes_five() {
        let items: Vec<Item> = (0..7).map(|n| said(&n.to_string())).collect();
        let summary =
            "Prior context summary (7 msgs):\n[user] 0\n[user] 1\n[user] 2\n[user] 3\n[user] 4";
        assert_eq!(extractive_summary(&items), summary);
    }

    #[test]
    fn a_quote_is_cut_by_code_points() {
        let quoted = quote(&message(Role::User, &"🎉".repeat(201)));
        assert_eq!(quoted, format!("[user] {}", "🎉".repeat(200)));
        assert_eq!(quote(&message(Role::Tool, "a\nb")), "[tool] a\nb");
    }

    fn any_item() -> impl Strategy<Value = Item> {
        let id = prop::sample::select(vec!["", "1", "2", "3"]);
        let item = prop_oneof![
            3 => Just(said("m")),
            2 => prop::collection::vec(prop::sample::select(vec!["1", "2", "3"]), 1..3).prop_map(|ids| calls(&ids)),
            3 => id.prop_map(result),
            1 => Just(other()),
        ];
        (item, prop::bool::weighted(0.1))
            .prop_map(|(item, pin)| if pin { pinned(item) } else { item })
    }

    proptest! {
        #[test]
        fn a_fold_keeps_its_laws(items in prop::collection::vec(any_item(), 0..40), max in 1usize..12) {
            let Some(fold) = plan(&items, max) else {
                prop_assert!(foldable(&items) <= max);
                return Ok(());
            };
            let folded = |position: usize| fold.positions.contains(&position);
            prop_assert!(fold.positions.len() >= 2 && fold.positions.is_sorted());
            for (position, item) in items.iter().enumerate() {
                prop_assert!(!(folded(position) && (is_pinned(item) || item.as_message().is_none())));
            }
            for turn in turns(&items) {
                for result in &turn.results {
                    prop_assert_eq!(folded(turn.position), folded(*result), "parted at {}", turn.position);
                }
            }

            let summary = Item::Message(summary_message("s".to_owned()));
            let after = apply(items.clone(), &fold, summary.clone());
            prop_assert_eq!(after.len(), items.len() - fold.positions.len() + 1);
            prop_assert!(after.contains(&summary));
            prop_assert!(foldable(&items) - fold.positions.len() < max);
        }
    }
}
