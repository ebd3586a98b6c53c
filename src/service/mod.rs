//! Use cases: each write is one operation, each read one query, both on behalf of
//! a caller whose tenant comes from their credentials.

pub mod caller;
pub mod checkpoint;
pub mod cover;
pub mod engine;
pub mod history;
pub mod interrupt;
pub mod listing;
pub mod memory;
pub mod schema;
pub mod seal;
pub mod session;
pub mod session_write;
pub mod stored;
pub mod sweep;
pub mod timeline;
pub mod watch;
