//! Memories: load, append, replace, clear.
