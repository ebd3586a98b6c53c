//! The conformance suite on our backends, and what is particular to each.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot run has failed"
)]

mod harness;
mod model;
mod sqlite_only;

use harness::{MemoryHarness, SqliteHarness};

adjourn::storage_conformance! {
    memory => MemoryHarness;
    sqlite => SqliteHarness::new();
}

mod durable {
    use super::SqliteHarness;

    adjourn::storage_conformance_durable! {
        sqlite => SqliteHarness::new();
    }
}
