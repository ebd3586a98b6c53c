//! Revisions: the order of a tenant's commits, and the numbers made from it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place of a commit in its tenant's history: 1, 2, 3, … in commit order.
///
/// Zero is the state before the first commit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(i64);

impl Revision {
    /// Before the first commit.
    pub const ZERO: Self = Self(0);
    /// After every commit: reads at it see the newest state.
    pub const LATEST: Self = Self(i64::MAX);

    /// The revision numbered `number`.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The revision of the next commit.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A revision written into a record: an etag, a fencing token or a generation.
///
/// An operation does not know the revision of its own commit, since a backend may
/// take it last. A stamp made by the commit that stores it is therefore written
/// as "this one" and becomes a number when the record is read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(Option<Revision>);

impl Stamp {
    /// The revision of the commit that stores this stamp.
    pub const THIS_COMMIT: Self = Self(None);

    /// A stamp of an earlier commit.
    #[must_use]
    pub const fn at(revision: Revision) -> Self {
        Self(Some(revision))
    }

    /// Replaces "this commit" by the revision that the record was stored under.
    pub fn resolve(&mut self, stored: Revision) {
        self.0.get_or_insert(stored);
    }

    /// The revision, where `commit` is the one that stores this stamp.
    #[must_use]
    pub fn revision(self, commit: Revision) -> Revision {
        self.0.unwrap_or(commit)
    }

    /// Whether the stamp is of the commit numbered `revision`.
    ///
    /// A stamp of a commit that is still being made is of no known commit.
    #[must_use]
    pub fn is(self, revision: Revision) -> bool {
        self.0 == Some(revision)
    }

    /// The revision, if the record was read from a store.
    #[must_use]
    pub const fn stored(self) -> Option<Revision> {
        self.0
    }
}
