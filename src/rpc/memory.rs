//! `MemoryService` over the wire.
