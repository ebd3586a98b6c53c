//! The gRPC edge: the only reader of the generated protos.
//!
//! A handler finds the caller, converts the request, calls one use case, and
//! converts its answer. It decides nothing.

pub mod access;
pub mod auth;
pub mod checkpoint;
pub mod convert;
pub mod interrupt;
pub mod memory;
pub mod session;
pub mod status;
pub mod timeline;
