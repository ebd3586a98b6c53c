//! Which roles may call which RPC.
