//! Finds out who calls.

use std::sync::Arc;

use tonic::{Request, Status};

use crate::domain::error::{Error, Reason};
use crate::service::caller::Caller;

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
