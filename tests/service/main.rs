//! The use cases on our stores, without a wire.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot run has failed"
)]

mod decide;
mod sweep;
mod watch;
mod world;
