//! The window of a memory: how many of its newest messages it keeps.
//!
//! Rules answer with the positions that fall out of a history, so that a caller
//! can drop references instead of copying messages.

use super::message::Item;

/// Whether a message is pinned.
#[must_use]
pub fn is_pinned(item: &Item) -> bool {
    item.as_message()
        .is_some_and(|message| message.pinned == Some(true))
}

/// The positions that fall out of a memory's window, in order: the oldest, until
/// `max_messages` are left. `max_messages` is at least 1; 0 counts as 1.
///
/// The window counts messages and knows no pairs, so it can leave a tool result
/// without its call. Pinned messages fall out like any other unless
/// `protect_pinned`; then they stay and take no place. An item that is no message
/// always stays and takes no place.
#[must_use]
pub fn window(items: &[Item], max_messages: usize, protect_pinned: bool) -> Vec<usize> {
    let stays = items
        .iter()
        .map(|item| item.as_message().is_none() || (protect_pinned && is_pinned(item)));
    oldest_beyond(stays, max_messages.max(1))
}

/// The positions of the oldest that do not stay anyway, but for the newest `max`
/// of them.
#[must_use]
pub fn oldest_beyond(stays: impl IntoIterator<Item = bool>, max: usize) -> Vec<usize> {
    let mut free: Vec<usize> = stays
        .into_iter()
        .enumerate()
        .filter(|(_, stays)| !stays)
        .map(|(position, _)| position)
        .collect();
    free.truncate(free.len().saturating_sub(max));
    free
}

/// Takes items out of a history. `positions` are in order.
pub fn remove(items: &mut Vec<Item>, positions: &[usize]) {
    let mut positions = positions.iter().peekable();
    let mut position = 0;
    items.retain(|_| {
        let stays = positions.next_if(|gone| **gone == position).is_none();
        position += 1;
        stays
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::message::{Content, Message, Role};

    /// `m` a message, `p` a pinned one, `n` no message.
    fn history(kinds: &str) -> Vec<Item> {
        kinds
            .chars()
            .enumerate()
            .map(|(at, kind)| item(at, kind))
            .collect()
    }

    fn item(at: usize, kind: char) -> Item {
        if kind == 'n' {
            return Item::NonStandard {
                id: None,
                value_json: at.to_string(),
                created_at: None,
            };
        }
        Item::Message(Message {
            id: Some(at.to_string()),
            role: Role::User,
            content: Content::Text(at.to_string()),
            name: None,
            tool_call_id: None,
            tool_name: None,
            pinned: Some(kind == 'p'),
            created_at: None,
            extra_json: None,
        })
    }

    #[test]
    fn the_newest_stay() {
        assert_eq!(window(&history("mmmmm"), 3, false), [0, 1]);
        assert_eq!(window(&history("mmm"), 3, false), [0; 0]);
        assert_eq!(window(&[], 3, true), [0; 0]);
        assert_eq!(window(&history("mmm"), 0, false), [0, 1]);
    }

    #[test]
    fn pins_count_only_when_protected() {
        assert_eq!(window(&history("pmpmm"), 2, false), [0, 1, 2]);
        assert_eq!(window(&history("pmpmm"), 2, true), [1]);
    }

    #[test]
    fn what_is_no_message_stays() {
        assert_eq!(window(&history("nmnmm"), 2, false), [1]);
        assert_eq!(window(&history("nnn"), 1, false), [0; 0]);
    }

    #[test]
    fn positions_are_removed() {
        let mut items = history("mmmmm");
        remove(&mut items, &[0, 2, 4]);
        let left: Vec<_> = items.iter().filter_map(Item::id).collect();
        assert_eq!(left, ["1", "3"]);
    }

    proptest! {
        #[test]
        fn a_window_is_bounded_and_drops_from_the_front(kinds in "[mpn]{0,30}", max in 1usize..10, protect: bool) {
            let items = history(&kinds);
            let gone = window(&items, max, protect);
            let mut left = items.clone();
            remove(&mut left, &gone);
            prop_assert_eq!(left.len() + gone.len(), items.len());

            let free = |item: &&Item| item.as_message().is_some() && !(protect && is_pinned(item));
            let count = |items: &[Item]| items.iter().filter(free).count();
            prop_assert_eq!(count(&left), count(&items).min(max));
            let last_gone = gone.last().map_or(0, |last| last + 1);
            prop_assert_eq!(count(&items[..last_gone]), gone.len());
            prop_assert_eq!(window(&left, max, protect), [0; 0]);
        }
    }
}
