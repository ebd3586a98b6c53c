//! Instants with microsecond precision, and where they come from.
//!
//! Microseconds, because PostgreSQL keeps no more, and two backends must not
//! disagree about an instant.

use std::fmt::Debug;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that is `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds after the epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant `span` later, or the last one that there is.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// The instant `span` earlier, or the first one that there is.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Time from `earlier` until this instant; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Where instants come from.
///
/// A backend stamps commits with the clock it was opened with, so a test can
/// move time by hand; nothing else in the service asks for the time of day.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time of day now.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
        let now = std::time::SystemTime::now();
        let micros = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |span| {
            i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
        });
        Timestamp(micros)
    }
}
