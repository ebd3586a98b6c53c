//! Conversation managers: what a run leaves in the history when it ends, and what
//! a step of it sends to the model.
//!
//! A manager answers with a plan of positions. The summary that a plan asks for
//! may be written by anybody; [`stub_summary`] is the one that needs no model.

use std::num::NonZeroU64;

use super::compaction::{quote, summary_message};
use super::message::{BlockKind, Content, Item, Message, Role};
use super::window::{is_pinned, oldest_beyond};

/// What stands before a summary unless a client says otherwise.
pub const SUMMARY_PREFIX: &str = "Summary of earlier conversation:";

/// How a history is kept in bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Manager {
    /// Not at all.
    #[default]
    Null,
    /// By dropping the oldest.
    SlidingWindow(SlidingWindow),
    /// By summarizing the oldest.
    Summarizing(Summarizing),
}

/// Drops the oldest messages that are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    window_size: usize,
    pin_first: usize,
    per_turn: Option<NonZeroU64>,
}

impl SlidingWindow {
    /// A window of `window_size` messages (below 1 counts as 1), besides the pinned
    /// ones and the first `pin_first` (below 0 counts as 0), which become pinned.
    ///
    /// `per_turn` trims also before the model is called, at every step whose number
    /// it divides.
    #[must_use]
    pub fn new(window_size: i64, pin_first: i64, per_turn: Option<NonZeroU64>) -> Self {
        Self {
            window_size: at_least(1, window_size),
            pin_first: at_least(0, pin_first),
            per_turn,
        }
    }
}

impl Default for SlidingWindow {
    /// 40 messages, nothing pinned, only at the end of a run.
    fn default() -> Self {
        Self::new(40, 0, None)
    }
}

/// Replaces the oldest messages that are not pinned by a summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Summarizing {
    summary_ratio: f64,
    preserve_recent: usize,
    pin_first: usize,
    summary_prefix: String,
}

impl Summarizing {
    /// Summarizes the share `summary_ratio` (0.1 to 0.8, else the nearer of these)
    /// of the messages that are not pinned, but never the newest `preserve_recent`
    /// (below 1 counts as 1). The first `pin_first` (below 0 counts as 0) become
    /// pinned. `summary_prefix` stands on a line before the summary.
    #[must_use]
    pub fn new(
        summary_ratio: f64,
        preserve_recent: i64,
        pin_first: i64,
        summary_prefix: String,
    ) -> Self {
        Self {
            summary_ratio: if summary_ratio.is_nan() {
                0.1
            } else {
                summary_ratio.clamp(0.1, 0.8)
            },
            preserve_recent: at_least(1, preserve_recent),
            pin_first: at_least(0, pin_first),
            summary_prefix,
        }
    }
}

impl Default for Summarizing {
    /// Three tenths, the newest 10 preserved, nothing pinned.
    fn default() -> Self {
        Self::new(0.3, 10, 0, SUMMARY_PREFIX.to_owned())
    }
}

/// What a manager does to a history. Positions are those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many of the first messages become pinned.
    pub pin_first: usize,
    /// The positions that a summary replaces, in order. The summary becomes the
    /// first item.
    pub folded: Vec<usize>,
    /// What stands on a line before the summary.
    pub summary_prefix: String,
    /// The positions that fall out, in order.
    pub dropped: Vec<usize>,
    /// How many messages fewer there are, as a manager counts: without those that
    /// fall out because they dangle.
    pub removed: u64,
}

impl Plan {
    /// Whether a summary of [`folded`](Self::folded) is needed.
    #[must_use]
    pub const fn needs_summary(&self) -> bool {
        !self.folded.is_empty()
    }

    /// The message with a summary of what is folded.
    #[must_use]
    pub fn summary(&self, text: &str) -> Message {
        summary_message(format!("{}\n{text}", self.summary_prefix))
    }

    /// The history after it. Without `summary` what is folded stays.
    #[must_use]
    pub fn apply(&self, items: Vec<Item>, summary: Option<&str>) -> Vec<Item> {
        let folded: &[usize] = if summary.is_some() { &self.folded } else { &[] };
        let (mut folded, mut dropped) = (folded.iter().peekable(), self.dropped.iter().peekable());
        let summary = summary
            .filter(|_| self.needs_summary())
            .map(|text| Item::Message(self.summary(text)));
        let rest = items
            .into_iter()
            .enumerate()
            .filter_map(|(position, mut item)| {
                if folded.next_if_eq(&&position).is_some()
                    || dropped.next_if_eq(&&position).is_some()
                {
                    return None;
                }
                if let Item::Message(message) = &mut item
                    && position < self.pin_first
                {
                    message.pinned = Some(true);
                }
                Some(item)
            });
        summary.into_iter().chain(rest).collect()
    }
}

/// What a manager counts over its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many messages fewer there are through it.
    pub removed: u64,
    /// The last summary, without prefix.
    pub last_summary: Option<String>,
}

impl Counts {
    /// Counts a plan that was applied, with its summary.
    pub fn record(&mut self, plan: &Plan, summary: Option<&str>) {
        self.removed += plan.removed;
        if let Some(summary) = summary {
            self.last_summary = Some(summary.to_owned());
        }
    }
}

impl Manager {
    /// What happens at the end of a run.
    #[must_use]
    pub fn apply(&self, items: &[Item]) -> Plan {
        match self {
            Self::Null => Plan::default(),
            Self::SlidingWindow(window) => window.trim(items),
            Self::Summarizing(summarizing) => summarizing.fold(items),
        }
    }

    /// What happens before the model is called, at step `step` of a run, from 0.
    #[must_use]
    pub fn before_model(&self, items: &[Item], step: u64) -> Plan {
        match self {
            Self::SlidingWindow(window)
                if window
                    .per_turn
                    .is_some_and(|turns| step.is_multiple_of(turns.get())) =>
            {
                window.trim(items)
            }
            Self::Null | Self::SlidingWindow(_) | Self::Summarizing(_) => Plan::default(),
        }
    }

    /// What happens when somebody asks for fewer messages: the same as at the end
    /// of a run.
    #[must_use]
    pub fn reduce(&self, items: &[Item]) -> Plan {
        self.apply(items)
    }
}

impl SlidingWindow {
    fn trim(&self, items: &[Item]) -> Plan {
        let window = oldest_beyond(staying(items, self.pin_first), self.window_size);
        let removed = window.len() as u64;
        let dropped = with_dangling(items, self.pin_first, window);
        Plan {
            pin_first: self.pin_first,
            dropped,
            removed,
            ..Plan::default()
        }
    }
}

impl Summarizing {
    fn fold(&self, items: &[Item]) -> Plan {
        let free = staying(items, self.pin_first)
            .filter(|stays| !stays)
            .count();
        let share = share(free, self.summary_ratio).min(free.saturating_sub(self.preserve_recent));
        let pin_first = self.pin_first;
        if share == 0 {
            return Plan {
                pin_first,
                ..Plan::default()
            };
        }
        let folded = oldest_beyond(staying(items, pin_first), free - share);
        let mut dropped = with_dangling(items, pin_first, folded.clone());
        dropped.retain(|position| folded.binary_search(position).is_err());
        let removed = share as u64 - 1;
        Plan {
            pin_first,
            folded,
            summary_prefix: self.summary_prefix.clone(),
            dropped,
            removed,
        }
    }
}

/// The summary that needs no model: a line for each message.
#[must_use]
pub fn stub_summary<'a>(folded: impl IntoIterator<Item = &'a Item>) -> String {
    let quotes: Vec<String> = folded
        .into_iter()
        .filter_map(Item::as_message)
        .map(quote)
        .collect();
    quotes.join("\n")
}

/// How many items at the head of a history dangle: results whose call is gone,
/// and turns that only call tools, up to the first other or pinned item.
///
/// An assistant turn only calls if it has blocks, and each of them is a call or a
/// blank text.
#[must_use]
pub fn trim_dangling(items: &[Item]) -> usize {
    items.iter().take_while(|item| dangles(item)).count()
}

fn dangles(item: &Item) -> bool {
    let Some(message) = item.as_message().filter(|_| !is_pinned(item)) else {
        return false;
    };
    match message.role {
        Role::Tool => true,
        Role::Assistant => only_calls(&message.content),
        Role::System | Role::User | Role::Developer => false,
    }
}

fn only_calls(content: &Content) -> bool {
    match content {
        Content::Text(_) => false,
        Content::Blocks(blocks) => {
            !blocks.is_empty()
                && blocks.iter().all(|block| match &block.kind {
                    BlockKind::ToolCall(_) => true,
                    BlockKind::Text { text } => text.trim().is_empty(),
                    BlockKind::Reasoning { .. }
                    | BlockKind::Image(_)
                    | BlockKind::Audio(_)
                    | BlockKind::File(_)
                    | BlockKind::NonStandard { .. } => false,
                })
        }
    }
}

/// Which items stay anyway: pinned ones, those that become it, and what is no
/// message.
fn staying(items: &[Item], pin_first: usize) -> impl Iterator<Item = bool> {
    items.iter().enumerate().map(move |(position, item)| {
        position < pin_first || is_pinned(item) || item.as_message().is_none()
    })
}

/// `gone`, and what dangles at the head of the rest, in order.
fn with_dangling(items: &[Item], pin_first: usize, mut gone: Vec<usize>) -> Vec<usize> {
    let dangling: Vec<usize> = items
        .iter()
        .enumerate()
        .filter(|(position, _)| gone.binary_search(position).is_err())
        .take_while(|(position, item)| *position >= pin_first && dangles(item))
        .map(|(position, _)| position)
        .collect();
    gone.extend(dangling);
    gone.sort_unstable();
    gone
}

/// The share `ratio` of `count`, rounded down, as binary64 computes it.
fn share(count: usize, ratio: f64) -> usize {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts are far below 2^53, and the ratio is between 0 and 1"
    )]
    let share = (count as f64 * ratio).floor() as usize;
    share
}

fn at_least(least: usize, value: i64) -> usize {
    // Larger than any history is as good as the largest.
    if value < 0 {
        least
    } else {
        usize::try_from(value).unwrap_or(usize::MAX).max(least)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::message::ToolCall;

    fn message(role: Role, content: Content, pinned: bool) -> Item {
        let message = summary_message(String::new());
        Item::Message(Message {
            role,
            content,
            pinned: pinned.then_some(true),
            ..message
        })
    }

    fn text(role: Role, pinned: bool) -> Item {
        message(role, Content::Text("x".to_owned()), pinned)
    }

    fn call(pinned: bool) -> Item {
        let call = ToolCall {
            id: "1".to_owned(),
            name: "t".to_owned(),
            args_json: None,
        };
        message(
            Role::Assistant,
            Content::Blocks(vec![BlockKind::ToolCall(call).into()]),
            pinned,
        )
    }

    fn other() -> Item {
        Item::NonStandard {
            id: None,
            value_json: "{}".to_owned(),
            created_at: None,
        }
    }

    fn any_item() -> impl Strategy<Value = Item> {
        (0u8..6, prop::bool::weighted(0.2)).prop_map(|(kind, pinned)| match kind {
            0 => text(Role::User, pinned),
            1 => text(Role::Assistant, pinned),
            2 => text(Role::Tool, pinned),
            3 => text(Role::System, pinned),
            4 => call(pinned),
            _ => other(),
        })
    }

    fn window(size: i64, pin_first: i64) -> Manager {
        Manager::SlidingWindow(SlidingWindow::new(size, pin_first, None))
    }

    #[test]
    fn what_is_no_message_is_never_dropped_or_folded_and_ends_the_trim() {
        let items = [
            other(),
            text(Role::Tool, false),
            text(Role::User, false),
            text(Role::User, false),
        ];
        assert_eq!(window(1, 0).apply(&items).dropped, [1, 2]);
        assert_eq!(trim_dangling(&items), 0);
        let plan = Manager::Summarizing(Summarizing::new(0.8, 1, 0, String::new())).apply(&items);
        assert_eq!(plan.folded, [1, 2]);
    }

    #[test]
    fn reduce_shrinks_also_when_it_summarizes() {
        let items: Vec<Item> = (0..20).map(|_| text(Role::User, false)).collect();
        let plan = Manager::Summarizing(Summarizing::default()).reduce(&items);
        assert_eq!((plan.folded.len(), plan.removed), (6, 5));
    }

    #[test]
    fn without_a_summary_nothing_is_folded() {
        let items: Vec<Item> = (0..20).map(|_| text(Role::User, false)).collect();
        let plan = Manager::Summarizing(Summarizing::default()).apply(&items);
        assert_eq!(plan.apply(items.clone(), None), items);
        assert_eq!(plan.apply(items, Some("s")).len(), 15);
    }

    #[test]
    fn a_summary_that_nobody_needs_is_left_out() {
        let items = [text(Role::User, false)];
        assert_eq!(Plan::default().apply(items.to_vec(), Some("s")), items);
    }

    #[test]
    fn per_turn_trims_every_nth_step() {
        let items = [text(Role::User, false), text(Role::User, false)];
        let manager = Manager::SlidingWindow(SlidingWindow::new(1, 0, NonZeroU64::new(3)));
        let trims: Vec<bool> = (0..7)
            .map(|step| manager.before_model(&items, step) != Plan::default())
            .collect();
        assert_eq!(trims, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn odd_numbers_are_clamped() {
        assert_eq!(
            SlidingWindow::new(i64::MIN, i64::MIN, None),
            SlidingWindow::new(1, 0, None)
        );
        let clamped = Summarizing::new(f64::NAN, -1, -1, String::new());
        assert_eq!(clamped, Summarizing::new(0.1, 1, 0, String::new()));
        assert_eq!(
            Summarizing::new(f64::INFINITY, 1, 0, String::new()),
            Summarizing::new(0.8, 1, 0, String::new())
        );
        let all = [text(Role::User, false)];
        assert_eq!(window(1, i64::MAX).apply(&all).dropped, [0; 0]);
    }

    #[test]
    fn the_null_manager_does_nothing() {
        let items = [text(Role::Tool, false)];
        for plan in [
            Manager::Null.apply(&items),
            Manager::Null.before_model(&items, 0),
            Manager::Null.reduce(&items),
        ] {
            assert_eq!(plan.apply(items.to_vec(), None), items);
        }
    }

    proptest! {
        #[test]
        fn a_trimmed_window_is_bounded_and_stable(
            items in prop::collection::vec(any_item(), 0..40), size in 1i64..12, pins in 0i64..4,
        ) {
            let manager = window(size, pins);
            let after = manager.apply(&items).apply(items.clone(), None);
            let free = after.iter().filter(|item| item.as_message().is_some() && !is_pinned(item)).count();
            prop_assert!(free <= usize::try_from(size).unwrap());
            prop_assert_eq!(trim_dangling(&after), 0);

            let kept = |item: &&Item| item.as_message().is_none() || is_pinned(item);
            prop_assert!(after.iter().filter(kept).count() >= items.iter().filter(kept).count());

            let again = manager.apply(&after);
            prop_assert_eq!(again.removed, 0);
            prop_assert_eq!(again.apply(after.clone(), None), after);
        }

        #[test]
        fn a_summary_stands_for_all_that_is_counted(
            items in prop::collection::vec(any_item(), 0..40), ratio in 0.0f64..1.0, recent in 0i64..8, pins in 0i64..4,
        ) {
            let manager = Manager::Summarizing(Summarizing::new(ratio, recent, pins, "P:".to_owned()));
            let plan = manager.apply(&items);
            prop_assert!(plan.dropped.iter().all(|position| !plan.folded.contains(position)));
            if !plan.needs_summary() {
                prop_assert!(plan.dropped.is_empty() && plan.removed == 0);
                return Ok(());
            }
            prop_assert_eq!(plan.removed, plan.folded.len() as u64 - 1);
            let after = plan.apply(items.clone(), Some("s"));
            prop_assert_eq!(after.len(), items.len() + 1 - plan.folded.len() - plan.dropped.len());
            prop_assert_eq!(&after[0].as_message().unwrap().content, &Content::Text("P:\ns".to_owned()));
        }
    }
}
