//! Finds out who calls.
