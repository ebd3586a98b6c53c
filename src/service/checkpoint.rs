//! Threads: leases, checkpoints, suspend and resume, and the gate of tool calls.
