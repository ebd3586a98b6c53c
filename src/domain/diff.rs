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
