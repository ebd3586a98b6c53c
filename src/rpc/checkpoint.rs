//! `CheckpointService` over the wire.
