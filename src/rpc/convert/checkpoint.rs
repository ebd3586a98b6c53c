//! Threads, checkpoints and gated calls.
