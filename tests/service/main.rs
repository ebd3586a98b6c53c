//! The use cases on our stores, without a wire.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unnecessary_wraps,
    reason = "a test that cannot run has failed"
)]

mod corrupt;
mod decide;
mod memories;
mod runs;
mod sessions;
mod sweep;
mod watch;
mod wire;
mod world;
