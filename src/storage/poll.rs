//! Running an operation or a query that has nothing to wait for.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::{Abort, Error};

/// Runs a future of a backend whose reads never wait, to its end, here.
///
/// # Errors
///
/// The future's own, and [`Error::Internal`] when it panics or awaits anything
/// else than reads: both are bugs of whoever wrote it, and harm nobody else.
pub(super) fn to_end<T>(future: impl Future<Output = Result<T, Abort>>) -> Result<T, Abort> {
    let polled = catch_unwind(AssertUnwindSafe(|| {
        pin!(future)
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }));
    match polled {
        Ok(Poll::Ready(outcome)) => outcome,
        Ok(Poll::Pending) => {
            Err(Error::Internal("an operation awaited something other than storage".into()).into())
        }
        Err(_) => {
            Err(Error::Internal("an operation panicked; nothing of it was stored".into()).into())
        }
    }
}
