//! The server over real sockets: who gets in, what it answers, how it stops.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot run has failed"
)]

mod access;
mod harness;
mod lifecycle;
