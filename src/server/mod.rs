//! The composition root: opens the store, builds the services, serves, stops.
