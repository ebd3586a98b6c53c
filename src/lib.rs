//! Adjourn keeps the durable state of LLM agents outside the agent process and
//! lets people step in.
//!
//! ```text
//! clients ─ gRPC ─▶ rpc ─▶ service (operations) ─▶ domain   (pure rules, no I/O)
//!                           └──────▶ storage traits ◀─ memory · sqlite
//! ```
//!
//! `ARCHITECTURE.md` has the import rules and the life of a request;
//! `tests/architecture.rs` enforces them.

pub mod cli;
pub mod config;
pub mod domain;
pub mod proto;
pub mod rpc;
pub mod server;
pub mod service;
pub mod storage;
pub mod telemetry;
