//! Between the wire's messages and the domain's types.
//!
//! Inwards a conversion is fallible and takes the message apart exhaustively, so
//! that a new field is a compile error until somebody decides. Outwards it cannot
//! fail. Field paths in errors are the wire's.

pub mod checkpoint;
pub mod common;
pub mod interrupt;
pub mod memory;
pub mod message;
pub mod session;
pub mod timeline;
