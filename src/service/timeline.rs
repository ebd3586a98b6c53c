//! Timelines: listing, and entries of clients.
