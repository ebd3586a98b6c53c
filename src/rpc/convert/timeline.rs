//! Timeline entries.
