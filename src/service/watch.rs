//! Watches: the change feed, followed for many readers.
