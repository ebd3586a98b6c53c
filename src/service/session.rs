//! Sessions: save, load, list, append, the end of a run.
