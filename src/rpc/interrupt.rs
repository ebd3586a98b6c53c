//! `InterruptService` over the wire.
