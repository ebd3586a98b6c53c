//! Ends interrupts whose time has run out.
