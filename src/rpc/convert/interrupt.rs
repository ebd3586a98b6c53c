//! Interrupts, decisions, filters.
