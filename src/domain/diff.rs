//! Matching a history that is sent again with the one that is stored.
//!
//! A client that keeps no position sends the whole of its history with each save.
//! Most of it is stored already. A stored item is known by its [`Sketch`], which
//! is read without its body, and where that does not settle it by its id and
//! content.

use super::log::{Digest, MAX_RANGES, Range, Transcript};
use super::message::{Item, Role};

/// What is known of an item without reading it: who speaks, whether its writer
/// pinned it, and a digest of the rest.
///
/// The digest covers the client's id and leaves out the time, so that an item
/// that comes back as it was answered is known by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sketch {
    /// Who speaks; `None` for an item that is no message.
    pub role: Option<Role>,
    /// The writer's word on whether it is pinned.
    pub pinned: Option<bool>,
    /// The digest of everything else but the time.
    rest: [u8; 15],
}

impl Sketch {
    /// The sketch of an item whose other content has the digest `rest`.
    #[must_use]
    pub fn new(item: &Item, rest: Digest) -> Self {
        let (role, pinned) = match item {
            Item::Message(message) => (Some(message.role), message.pinned),
            Item::NonStandard { .. } => (None, None),
        };
        let [_, rest @ ..] = rest.0;
        Self { role, pinned, rest }
    }

    /// The sketch as it is stored beside the item.
    #[must_use]
    pub fn to_digest(self) -> Digest {
        let role = match self.role {
            None => 0,
            Some(Role::System) => 1,
            Some(Role::User) => 2,
            Some(Role::Assistant) => 3,
            Some(Role::Tool) => 4,
            Some(Role::Developer) => 5,
        };
        let pinned = match self.pinned {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        let mut bytes = [0; 16];
        let [first, others @ ..] = &mut bytes;
        *first = role | pinned << 4;
        *others = self.rest;
        Digest(bytes)
    }

    /// The sketch that was stored as `digest`.
    #[must_use]
    pub fn from_digest(digest: Digest) -> Self {
        let [first, rest @ ..] = digest.0;
        Self {
            role: match first & 0xF {
                1 => Some(Role::System),
                2 => Some(Role::User),
                3 => Some(Role::Assistant),
                4 => Some(Role::Tool),
                5 => Some(Role::Developer),
                _ => None,
            },
            pinned: match first >> 4 {
                1 => Some(false),
                2 => Some(true),
                _ => None,
            },
            rest,
        }
    }

    /// Whether the role is `system`.
    #[must_use]
    pub fn is_system(self) -> bool {
        self.role == Some(Role::System)
    }

    /// Whether the role is `user`.
    #[must_use]
    pub fn is_user(self) -> bool {
        self.role == Some(Role::User)
    }

    /// Whether an item is the same but for its pin and its time.
    #[must_use]
    pub fn same_content(self, other: Self) -> bool {
        self.role == other.role && self.rest == other.rest
    }
}

/// A stored item, as it stands in a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Where it is: a range of one item.
    pub range: Range,
    /// Its sketch.
    pub sketch: Sketch,
}

impl Standing {
    /// Whether the item is pinned in the transcript.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.range
            .pinned
            .unwrap_or(self.sketch.pinned == Some(true))
    }

    /// How the item stands in the transcript once it was sent again with the pin
    /// `sent`; `None` if the stored item cannot say what was sent.
    fn repinned(&self, sent: Option<bool>) -> Option<Range> {
        let Some(sent) = sent else {
            return Some(self.range);
        };
        if self.is_pinned() != sent {
            return Some(Range {
                pinned: Some(sent),
                ..self.range
            });
        }
        // An explicit false has to come back, and one that was never written
        // cannot.
        let explicit = sent || self.range.pinned.is_some() || self.sketch.pinned.is_some();
        explicit.then_some(self.range)
    }
}

/// Where an item of the new transcript comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A stored item, as this range of one.
    Keep(Range),
    /// The sent item with this position replaces the stored one with that
    /// position: a new row that keeps the time.
    Edit {
        /// The position in what is stored.
        stored: usize,
        /// The position in what was sent.
        sent: usize,
    },
    /// The sent item with this position is new.
    Write(usize),
}

/// The part in the middle that sketches do not match: what has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// How many items at the start are the same.
    pub prefix: usize,
    /// How many items at the end are the same, beyond the prefix.
    pub suffix: usize,
}

/// How many items at both ends are the same by their sketches.
#[must_use]
pub fn common_ends(stored: &[Standing], sent: &[Sketch]) -> Ends {
    let same = |(stored, sent): &(&Standing, &Sketch)| {
        stored.sketch.same_content(**sent) && stored.repinned(sent.pinned).is_some()
    };
    let prefix = stored.iter().zip(sent).take_while(same).count();
    let left = stored.len().min(sent.len()) - prefix;
    let suffix = stored
        .iter()
        .rev()
        .zip(sent.iter().rev())
        .take(left)
        .take_while(same)
        .count();
    Ends { prefix, suffix }
}

/// An item of the middle part, with what its body says.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The client's id.
    pub id: Option<&'a str>,
    /// The item without its id, pin and time.
    pub bare: Item,
}

impl<'a> Candidate<'a> {
    /// What is compared of `item`.
    #[must_use]
    pub fn of(item: &'a Item) -> Self {
        Self {
            id: item.id(),
            bare: bare(item),
        }
    }
}

fn bare(item: &Item) -> Item {
    let mut bare = item.clone();
    match &mut bare {
        Item::Message(message) => {
            message.id = None;
            message.created_at = None;
            message.pinned = None;
        }
        Item::NonStandard { id, created_at, .. } => {
            *id = None;
            *created_at = None;
        }
    }
    bare
}

/// Where each sent item comes from.
///
/// `stored_middle` and `sent_middle` are the items between the [`common_ends`], in
/// order. They are matched by position from both ends, where an id that was not
/// sent again is no difference, then by id: the same content is kept wherever it
/// stands now, another content is an edit. What is left is new. `sent_middle` is
/// not looked at when `stored_middle` is empty.
#[must_use]
pub fn steps(
    stored: &[Standing],
    sent: &[Sketch],
    ends: Ends,
    stored_middle: &[Candidate<'_>],
    sent_middle: &[Candidate<'_>],
) -> Vec<Step> {
    let Ends { prefix, suffix } = ends;
    let middle = Unmatched {
        stored,
        sent,
        prefix,
        stored_middle,
        sent_middle,
    };
    let mut steps = Vec::with_capacity(sent.len());
    let kept = |(stored, sent): (&Standing, &Sketch)| {
        Step::Keep(stored.repinned(sent.pinned).unwrap_or(stored.range))
    };
    steps.extend(stored.iter().zip(sent).take(prefix).map(kept));
    if stored_middle.is_empty() {
        steps.extend((prefix..sent.len() - suffix).map(Step::Write));
    } else {
        middle.steps(&mut steps);
    }
    let (stored_from, sent_from) = (stored.len() - suffix, sent.len() - suffix);
    steps.extend(
        stored
            .iter()
            .skip(stored_from)
            .zip(sent.iter().skip(sent_from))
            .map(kept),
    );
    steps
}

struct Unmatched<'a> {
    stored: &'a [Standing],
    sent: &'a [Sketch],
    prefix: usize,
    stored_middle: &'a [Candidate<'a>],
    sent_middle: &'a [Candidate<'a>],
}

impl Unmatched<'_> {
    /// The stored item at `stored` of the middle as the sent one at `sent` wants
    /// it, if it can say that.
    fn keep(&self, stored: usize, sent: usize) -> Option<Step> {
        let (from, to) = (
            self.stored.get(self.prefix + stored)?,
            self.sent.get(self.prefix + sent)?,
        );
        from.repinned(to.pinned).map(Step::Keep)
    }

    fn same_by_position(&self, stored: usize, sent: usize) -> bool {
        let (Some(from), Some(to)) = (self.stored_middle.get(stored), self.sent_middle.get(sent))
        else {
            return false;
        };
        (to.id.is_none() || to.id == from.id)
            && from.bare == to.bare
            && self.keep(stored, sent).is_some()
    }

    fn steps(&self, into: &mut Vec<Step>) {
        let (stored_len, sent_len) = (self.stored_middle.len(), self.sent_middle.len());
        let left = stored_len.min(sent_len);
        let front = (0..left)
            .take_while(|at| self.same_by_position(*at, *at))
            .count();
        let back = (1..=left - front)
            .take_while(|at| self.same_by_position(stored_len - at, sent_len - at))
            .count();

        let mut by_id = std::collections::HashMap::new();
        for (at, candidate) in self.stored_middle.iter().enumerate() {
            if (front..stored_len - back).contains(&at)
                && let Some(id) = candidate.id
            {
                // Ids recur in real conversations: each stored item is used once.
                by_id.entry(id).or_insert_with(Vec::new).push(at);
            }
        }
        for places in by_id.values_mut() {
            places.reverse();
        }

        for (at, candidate) in self.sent_middle.iter().enumerate() {
            let step = if at < front {
                self.keep(at, at)
            } else if at >= sent_len - back {
                self.keep(stored_len - (sent_len - at), at)
            } else {
                let known = candidate
                    .id
                    .and_then(|id| by_id.get_mut(id))
                    .and_then(Vec::pop);
                known.map(|stored| {
                    let same = self
                        .stored_middle
                        .get(stored)
                        .is_some_and(|from| from.bare == candidate.bare);
                    let kept = if same { self.keep(stored, at) } else { None };
                    kept.unwrap_or(Step::Edit {
                        stored: self.prefix + stored,
                        sent: self.prefix + at,
                    })
                })
            };
            into.push(step.unwrap_or(Step::Write(self.prefix + at)));
        }
    }
}

/// Which ranges of a transcript with too many to write anew, so that it has at
/// most half as many as it may have: the shortest.
///
/// Ranges that are written anew one after the other stand together, and so become
/// one. Half, so that the next change does not do it again.
#[must_use]
pub fn fragments(transcript: &Transcript) -> Vec<bool> {
    let ranges = transcript.ranges();
    let mut copied = vec![false; ranges.len()];
    if ranges.len() <= MAX_RANGES {
        return copied;
    }
    let mut shortest: Vec<(u64, usize)> = ranges
        .iter()
        .enumerate()
        .map(|(at, range)| (range.len(), at))
        .collect();
    shortest.sort_unstable();
    let mut count = ranges.len();
    for (_, at) in shortest {
        if count <= MAX_RANGES / 2 {
            break;
        }
        let is_copied = |at: Option<usize>| at.and_then(|at| copied.get(at)) == Some(&true);
        let neighbours =
            usize::from(is_copied(at.checked_sub(1))) + usize::from(is_copied(Some(at + 1)));
        count -= neighbours;
        if let Some(copied) = copied.get_mut(at) {
            *copied = true;
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};

    use proptest::prelude::*;

    use super::*;
    use crate::domain::log::LogId;
    use crate::domain::message::{Content, Message};

    fn message(id: Option<&str>, text: &str, pinned: Option<bool>) -> Item {
        Item::Message(Message {
            id: id.map(str::to_owned),
            role: Role::User,
            content: Content::Text(text.to_owned()),
            name: None,
            tool_call_id: None,
            tool_name: None,
            pinned,
            created_at: None,
            extra_json: None,
        })
    }

    fn sketch(item: &Item) -> Sketch {
        let mut rest = item.clone();
        if let Item::Message(message) = &mut rest {
            message.pinned = None;
            message.created_at = None;
        }
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&rest).unwrap().hash(&mut hasher);
        let mut digest = [0; 16];
        digest[8..].copy_from_slice(&hasher.finish().to_be_bytes());
        Sketch::new(item, Digest(digest))
    }

    /// The stored items, numbered from 0.
    fn standings(stored: &[Item]) -> Vec<Standing> {
        (0..)
            .zip(stored)
            .map(|(number, item)| Standing {
                range: Range {
                    log: LogId(uuid::Uuid::nil()),
                    from: number,
                    to: number,
                    pinned: None,
                },
                sketch: sketch(item),
            })
            .collect()
    }

    fn matched(stored: &[Item], sent: &[Item]) -> Vec<Step> {
        let standings = standings(stored);
        let sketches: Vec<_> = sent.iter().map(sketch).collect();
        let ends = common_ends(&standings, &sketches);
        let middle = |items: &[Item]| -> Vec<Item> {
            items[ends.prefix..items.len() - ends.suffix].to_vec()
        };
        let (stored_middle, sent_middle) = (middle(stored), middle(sent));
        let stored_middle: Vec<_> = stored_middle.iter().map(Candidate::of).collect();
        let sent_middle: Vec<_> = sent_middle.iter().map(Candidate::of).collect();
        steps(&standings, &sketches, ends, &stored_middle, &sent_middle)
    }

    fn kept(steps: &[Step]) -> Vec<i64> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Keep(range) => Some(range.from),
                Step::Edit { .. } | Step::Write(_) => None,
            })
            .collect()
    }

    fn texts(texts: &[&str]) -> Vec<Item> {
        texts.iter().map(|text| message(None, text, None)).collect()
    }

    #[test]
    fn a_sketch_survives_being_stored() {
        for pinned in [None, Some(false), Some(true)] {
            let sketch = sketch(&message(Some("a"), "hello", pinned));
            assert_eq!(Sketch::from_digest(sketch.to_digest()), sketch);
        }
    }

    #[test]
    fn a_message_dropped_in_the_middle_costs_no_row() {
        let steps = matched(&texts(&["a", "b", "c"]), &texts(&["a", "c"]));
        assert_eq!(kept(&steps), [0, 2]);
    }

    #[test]
    fn another_text_under_a_known_id_is_an_edit() {
        let stored = [
            message(Some("1"), "a", None),
            message(Some("2"), "b", None),
            message(Some("3"), "c", None),
        ];
        let mut sent = stored.clone();
        sent[1] = message(Some("2"), "edited", None);
        let steps = matched(&stored, &sent);
        assert_eq!(steps[1], Step::Edit { stored: 1, sent: 1 });
        assert_eq!(kept(&steps), [0, 2]);
    }

    #[test]
    fn another_text_without_an_id_is_a_new_message() {
        let steps = matched(&texts(&["a", "b", "c"]), &texts(&["a", "x", "c"]));
        assert_eq!(steps[1], Step::Write(1));
    }

    #[test]
    fn a_client_that_forgot_the_ids_writes_nothing_anew() {
        let stored = [message(Some("1"), "a", None), message(Some("2"), "b", None)];
        let steps = matched(&stored, &texts(&["a", "b", "c"]));
        assert_eq!(kept(&steps), [0, 1]);
        assert_eq!(steps[2], Step::Write(2));
    }

    #[test]
    fn the_same_text_under_another_id_is_another_message() {
        let stored = [
            message(Some("1"), "ok", None),
            message(Some("2"), "ok", None),
        ];
        let steps = matched(&stored, &stored[1..]);
        assert_eq!(kept(&steps), [1]);
    }

    #[test]
    fn messages_with_ids_are_known_wherever_they_stand() {
        let stored = [
            message(Some("1"), "a", None),
            message(Some("2"), "b", None),
            message(Some("3"), "c", None),
        ];
        let sent = [stored[2].clone(), stored[0].clone(), stored[1].clone()];
        assert_eq!(kept(&matched(&stored, &sent)), [2, 0, 1]);
    }

    #[test]
    fn a_pin_is_a_flag_of_the_transcript_and_writes_no_row() {
        let stored = texts(&["a"]);
        let steps = matched(&stored, &[message(None, "a", Some(true))]);
        let Step::Keep(range) = steps[0] else {
            panic!("{steps:?}");
        };
        assert_eq!(range.pinned, Some(true));
    }

    #[test]
    fn few_ranges_are_left_alone_and_too_many_are_halved() {
        let ranges = |count: i64| {
            Transcript::new((0..count).map(|at| Range {
                log: LogId(uuid::Uuid::nil()),
                from: at * 10,
                to: at * 10 + at % 5,
                pinned: None,
            }))
        };
        let most = i64::try_from(MAX_RANGES).unwrap();
        assert!(!fragments(&ranges(most)).contains(&true));
        for count in [most + 1, most * 3] {
            let copied = fragments(&ranges(count));
            let left = copied
                .iter()
                .enumerate()
                .filter(|(at, is_copied)| !**is_copied || *at == 0 || !copied[at - 1])
                .count();
            assert!(left <= MAX_RANGES / 2, "{left} ranges are left of {count}");
        }
    }

    fn history() -> impl Strategy<Value = Vec<Item>> {
        let id = prop::option::of(prop::sample::select(vec!["1", "2", "3"]));
        let text = prop::sample::select(vec!["a", "b"]);
        let pinned = prop::option::of(any::<bool>());
        let item = (id, text, pinned).prop_map(|(id, text, pinned)| message(id, text, pinned));
        prop::collection::vec(item, 0..8)
    }

    fn as_message(item: &Item) -> &Message {
        item.as_message().unwrap()
    }

    proptest! {
        #[test]
        fn the_new_transcript_says_what_was_sent(stored in history(), sent in history()) {
            let steps = matched(&stored, &sent);
            prop_assert_eq!(steps.len(), sent.len());
            for (at, (step, wanted)) in steps.iter().zip(&sent).enumerate() {
                let wanted = as_message(wanted);
                match step {
                    Step::Keep(range) => {
                        let found = as_message(&stored[usize::try_from(range.from).unwrap()]);
                        prop_assert_eq!(&found.content, &wanted.content);
                        if wanted.id.is_some() {
                            prop_assert_eq!(&found.id, &wanted.id);
                        }
                        if wanted.pinned.is_some() {
                            prop_assert_eq!(range.pinned.or(found.pinned), wanted.pinned);
                        }
                    }
                    Step::Edit { stored: from, sent: to } => {
                        prop_assert_eq!(*to, at);
                        prop_assert_eq!(&as_message(&stored[*from]).id, &wanted.id);
                        prop_assert!(wanted.id.is_some());
                    }
                    Step::Write(to) => prop_assert_eq!(*to, at),
                }
            }
        }

        #[test]
        fn no_stored_item_is_used_twice(stored in history(), sent in history()) {
            let steps = matched(&stored, &sent);
            let used: Vec<i64> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Keep(range) => Some(range.from),
                    Step::Edit { stored, .. } => i64::try_from(*stored).ok(),
                    Step::Write(_) => None,
                })
                .collect();
            let once: HashSet<_> = used.iter().collect();
            prop_assert_eq!(once.len(), used.len());
        }

        #[test]
        fn what_is_sent_again_with_more_at_its_end_costs_only_what_is_more(
            stored in history(),
            more in history(),
        ) {
            let sent = [stored.clone(), more].concat();
            let steps = matched(&stored, &sent);
            let standings = standings(&stored);
            for (step, standing) in steps.iter().zip(&standings) {
                prop_assert_eq!(*step, Step::Keep(standing.range));
            }
            for (at, step) in steps.iter().enumerate().skip(stored.len()) {
                prop_assert_eq!(*step, Step::Write(at));
            }
        }
    }
}
