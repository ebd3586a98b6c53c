//! Interrupts: creating, listing, deciding, withdrawing.
