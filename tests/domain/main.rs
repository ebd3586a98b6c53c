//! The rules of the domain against recorded cases.
//!
//! The cases in `tests/vectors/` are read as they are. Where our contract decides
//! otherwise than a recorded case, the topic's test lists that case by name with
//! the reason.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod compaction;
mod conversation;
mod cut;
mod decisions;
mod edit;
mod ids;
mod snapshot_fields;
mod tokens;
mod vectors;
mod window;
