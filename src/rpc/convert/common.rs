//! What several services share: ids, times, pages, preconditions.
