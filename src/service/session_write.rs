//! What every write to a session does: opening it, writing messages and state, telling the timeline.
