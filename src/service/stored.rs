//! What is stored, as the edges of the service see it.

pub use crate::storage::typed::{EncodedItem, StoredItem};

use super::engine::explain;
use crate::domain::error::Result;
use crate::domain::message::Item;
use crate::storage::Error as StoreError;

/// The items, encoded.
///
/// # Errors
///
/// [`crate::domain::error::Reason::Internal`] when one cannot be spelled as JSON,
/// which is a bug.
pub fn encode(items: &[Item]) -> Result<Vec<EncodedItem>> {
    let encoded: Result<_, StoreError> = items.iter().map(EncodedItem::new).collect();
    encoded.map_err(|error| explain(error.into()))
}
