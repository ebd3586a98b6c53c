//! `SessionService` over the wire.
