//! Memories and their settings.
