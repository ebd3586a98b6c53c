//! `TimelineService` over the wire.
