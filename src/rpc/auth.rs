//! Finds out who calls.

use std::sync::Arc;

use tonic::{Request, Status};

use crate::domain::error::{Error, Reason};
use crate::service::caller::Caller;
use crate::service::watch::StillValid;

/// The caller of a request, whom the server verified before it came to a handler.
///
/// # Errors
///
/// `UNAUTHENTICATED` when nobody was verified.
pub fn caller<T>(request: &Request<T>) -> Result<Arc<Caller>, Status> {
    request
        .extensions()
        .get::<Arc<Caller>>()
        .map(Arc::clone)
        .ok_or_else(|| {
            let message = "the caller is not known; send a key";
            Error::new(Reason::Unauthenticated, message).into()
        })
}

/// Tells whether the key that a stream was opened with still holds. Put into the
/// request's extensions beside the caller; without one it holds for ever.
#[derive(Clone)]
pub struct Validity(pub StillValid);

impl std::fmt::Debug for Validity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Validity").finish_non_exhaustive()
    }
}

/// Tells whether the key that a request came with still holds.
pub fn still_valid<T>(request: &Request<T>) -> StillValid {
    request.extensions().get::<Validity>().map_or_else(
        || Arc::new(|| true) as StillValid,
        |validity| Arc::clone(&validity.0),
    )
}
