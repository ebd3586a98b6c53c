//! Everything that can be wrong with a request, as one type.
//!
//! A [`Reason`] is what a program acts on and the message is what a person reads:
//! it says what to do next. The metadata carries etags, sequence numbers, actors,
//! kinds and times, never the values of a tenant's data.

use std::fmt;
use std::time::Duration;

/// What a rule of the domain answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request was refused. One value for each thing a caller can do about it.
///
/// The list and its meaning are part of the wire contract (`ErrorReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "each value is documented where it is public: error_reason.proto"
)]
pub enum Reason {
    MemoryCorrupt,
    SessionCorrupt,
    SnapshotCorrupt,
    CheckpointCorrupt,
    LogCorrupt,
    InterruptCorrupt,
    CheckpointMissing,
    MessageNotFound,
    SessionNotFound,
    ThreadNotFound,
    SnapshotNotFound,
    MemoryNotFound,
    InterruptNotFound,
    WriterNotFound,
    TicketNotFound,
    MessageNotEditable,
    HitlDecision,
    CheckpointSpent,
    InterruptsPending,
    InterruptOverdue,
    ApproverExcluded,
    CommentRequired,
    InDoubt,
    SavesGuarded,
    RestoreRejected,
    RestoreSuperseded,
    TokenRequired,
    Fenced,
    LeaseLost,
    NotPending,
    AlreadyDecided,
    AlreadyConsumed,
    Deleted,
    PreconditionRequired,
    GroundingUnavailable,
    ThreadIdInvalid,
    JsonInvalid,
    ArgumentInvalid,
    PageTokenInvalid,
    CursorInvalid,
    CursorFilterChanged,
    EtagMismatch,
    SeqMismatch,
    ThreadLeased,
    RestoreInProgress,
    Claimed,
    Conflict,
    RequestIdReused,
    AlreadyExists,
    CursorCompacted,
    CursorEpochChanged,
    ResultCompacted,
    LimitExceeded,
    SlowConsumer,
    Overloaded,
    StorageUnavailable,
    OutcomeUnknown,
    PermissionDenied,
    Unauthenticated,
    NotImplemented,
    Internal,
}

/// A refusal: why, in words, and with the facts that help to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What a program acts on.
    pub reason: Reason,
    /// What a person reads: what is wrong, and what to do next.
    pub message: String,
    /// The request field at fault, by its wire path, such as `messages[2].role`.
    pub field: Option<String>,
    /// Facts for programs and logs. Keys are `snake_case`.
    pub metadata: Vec<(&'static str, String)>,
    /// When trying again may help.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// A refusal for `reason`.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            field: None,
            metadata: Vec::new(),
            retry_after: None,
        }
    }

    /// A value in the request that can never be accepted.
    #[must_use]
    pub fn argument(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        let field = field.into();
        let mut error = Self::new(Reason::ArgumentInvalid, format!("{field}: {problem}"));
        error.field = Some(field);
        error
    }

    /// A call that must name one of several preconditions and names none.
    #[must_use]
    pub fn precondition_required(choices: &str) -> Self {
        Self::new(
            Reason::PreconditionRequired,
            format!("this call replaces what is stored; send one of {choices}"),
        )
    }

    /// Adds a fact.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hand over numbers, ids and texts alike"
    )]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.metadata.push((key, value.to_string()));
        self
    }

    /// Names the field at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says that the field at fault is a part of `outer`, or is `outer` itself if
    /// none was named.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = Some(match self.field.take() {
            Some(inner) => {
                let field = format!("{outer}.{inner}");
                if let Some(rest) = self.message.strip_prefix(&inner) {
                    self.message = format!("{field}{rest}");
                }
                field
            }
            None => outer.to_owned(),
        });
        self
    }

    /// Says when trying again may help.
    #[must_use]
    pub const fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
