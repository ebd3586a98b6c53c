//! What is stored, as the edges of the service see it.

pub use crate::storage::typed::{EncodedItem, StoredItem};
