//! The log, and references into it.
//!
//! Every message is a row of an append-only log, written once. A transcript is a
//! list of ranges over logs; a head is a shared transcript and the tail appended
//! since, so an append moves one number, whatever the history's length. Windows,
//! edits, pins and folds make a new transcript over the same rows.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The most ranges a transcript may have; past it, short ranges are written anew
/// at the log's end.
pub const MAX_RANGES: usize = 256;

/// A log. It has an id of its own and outlives the session that writes it, so
/// that branches and snapshots can share its rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogId(pub Uuid);

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({})", self.0)
    }
}

/// What a row of a log holds. The number is stored, so it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum RowClass {
    /// A message or another item of a history, numbered by `seq`.
    Item = 1,
    /// One version of a named value: a state key, a plugin's state, a prompt.
    Cell = 2,
    /// A list of ranges, or a list of cells.
    Node = 3,
}

/// How a row came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Origin {
    /// Said in the conversation. These rows, in order, are the journal.
    Said = 1,
    /// Replaces an earlier row of the transcript.
    Edit = 2,
    /// Stands for rows that were folded.
    Summary = 3,
    /// Written again by a restore, or to join fragments.
    Restore = 4,
}

/// A row that never changes, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowRef {
    /// The log.
    pub log: LogId,
    /// The number of the row in its class.
    pub number: i64,
}

/// Consecutive items of a log, all of them in a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range {
    /// The log.
    pub log: LogId,
    /// The first `seq`.
    pub from: i64,
    /// The last `seq`, inclusive.
    pub to: i64,
    /// Whether the items are pinned; absent means as each was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

impl Range {
    /// How many items.
    #[must_use]
    pub const fn len(&self) -> u64 {
        if self.to < self.from {
            0
        } else {
            (self.to - self.from + 1).cast_unsigned()
        }
    }

    /// Whether it holds nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.to < self.from
    }
}

/// A history: ranges over logs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Transcript(Vec<Range>);

impl Transcript {
    /// The history that `ranges` spell, joined where they touch.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut transcript = Self::default();
        for range in ranges {
            transcript.push(range);
        }
        transcript
    }

    /// Adds items at the end.
    pub fn push(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.log == range.log
            && last.pinned == range.pinned
            && last.to.saturating_add(1) == range.from
        {
            last.to = range.to;
        } else {
            self.0.push(range);
        }
    }

    /// The ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// How many items.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(Range::len).sum()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The items from index `from` (counting from 0) up to, not including, `to`.
    #[must_use]
    pub fn slice(&self, from: u64, to: u64) -> Self {
        let mut out = Self::default();
        let mut start = 0_u64;
        for range in &self.0 {
            let end = start + range.len();
            let (first, last) = (from.max(start), to.min(end));
            if first < last {
                out.push(Range {
                    from: range.from.saturating_add_unsigned(first - start),
                    to: range.from.saturating_add_unsigned(last - start - 1),
                    ..*range
                });
            }
            start = end;
        }
        out
    }

    /// The history with the items of `other` after its own.
    #[must_use]
    pub fn then(mut self, other: &Self) -> Self {
        for range in &other.0 {
            self.push(*range);
        }
        self
    }
}

/// The current history of a session or memory: a shared transcript, then the tail
/// that was appended to the owner's log since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The log that the owner writes.
    pub log: LogId,
    /// The node row that holds the base transcript; absent means empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<RowRef>,
    /// How many items the base has.
    #[serde(default)]
    pub base_len: u64,
    /// The first `seq` of the tail.
    pub tail_from: i64,
    /// The last `seq` that was written to the log, in the transcript or not.
    pub last_seq: i64,
    /// The last cell that was written to the log.
    #[serde(default)]
    pub last_cell: i64,
    /// The last node that was written to the log.
    #[serde(default)]
    pub last_node: i64,
    /// The running digest of the log's items up to `last_seq`.
    #[serde(default)]
    pub chain: Digest,
}

impl Head {
    /// The head of a log that nothing was written to.
    #[must_use]
    pub fn new(log: LogId) -> Self {
        Self {
            log,
            base: None,
            base_len: 0,
            tail_from: 1,
            last_seq: 0,
            last_cell: 0,
            last_node: 0,
            chain: Digest::default(),
        }
    }

    /// The items appended since the base.
    #[must_use]
    pub const fn tail(&self) -> Range {
        Range {
            log: self.log,
            from: self.tail_from,
            to: self.last_seq,
            pinned: None,
        }
    }

    /// Takes a `seq` that no row has, for a change that writes no row: whoever
    /// counts on the last one notices. Call it before the new base is made.
    pub const fn skip_seq(&mut self) {
        self.last_seq += 1;
    }

    /// A reference to the history as it is now. It costs the same however long
    /// the history is, and stays valid whatever is written later.
    #[must_use]
    pub const fn history(&self) -> History {
        History {
            base: self.base,
            base_len: self.base_len,
            tail: self.tail(),
        }
    }

    /// How many items the history has.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.base_len + self.tail().len()
    }

    /// Whether the history is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A reference to a history: what snapshots, checkpoints and branches keep of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The node row that holds the first part; absent means empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<RowRef>,
    /// How many items the first part has.
    #[serde(default)]
    pub base_len: u64,
    /// The rest.
    pub tail: Range,
}

impl History {
    /// How many items it has.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.base_len + self.tail.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A named value, and the cell that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The name: a state key, a plugin's name.
    pub name: String,
    /// The cell.
    pub at: RowRef,
    /// The digest of the value, so that an equal one makes no new cell.
    pub digest: Digest,
}

/// The first 16 bytes of a SHA-256.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a digest is 32 hexadecimal digits");
        if text.len() != 32 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}
