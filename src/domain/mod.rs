//! Types and rules: pure, synchronous, and free of the wire and of any database.
//!
//! Rules take loaded values and answer with what to store or with a refusal.

pub mod compaction;
pub mod conversation;
pub mod cut;
pub mod decision_key;
pub mod diff;
pub mod edit;
pub mod error;
pub mod id;
pub mod interrupt;
pub mod json;
pub mod log;
pub mod message;
pub mod revision;
pub mod session;
pub mod snapshot_fields;
pub mod state;
pub mod thread;
pub mod time;
pub mod timeline;
pub mod tokens;
pub mod window;
