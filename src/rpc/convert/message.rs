//! Messages and state.
