//! Who may come in: finds the caller of each request, and refuses the rest before
//! a handler sees them.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tower::{Layer, Service};
use tracing::Instrument as _;

use super::keys::{KeyRing, hash};
use crate::domain::error::{Error, Reason};
use crate::rpc::access;
use crate::rpc::auth::Validity;
use crate::rpc::status;
use crate::service::caller::Caller;

/// Who may use a listener.
#[derive(Clone, Debug)]
pub struct Guard {
    keys: Arc<KeyRing>,
    /// Who a caller without a key is; `None` where a key is needed.
    anonymous: Option<Arc<Caller>>,
    /// Whether names of other hosts in a request give a stranger's page away.
    loopback_only: bool,
    max_request_bytes: usize,
}

impl Guard {
    /// A guard that knows these keys.
    #[must_use]
    pub const fn new(
        keys: Arc<KeyRing>,
        anonymous: Option<Arc<Caller>>,
        loopback_only: bool,
        max_request_bytes: usize,
    ) -> Self {
        Self {
            keys,
            anonymous,
            loopback_only,
            max_request_bytes,
        }
    }

    /// Finds the caller, and checks that they may call what they call.
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Error> {
        let path = request.uri().path();
        if self.loopback_only {
            check_names(request)?;
        }
        if access::is_public(path) {
            return Ok(());
        }
        let Some(needed) = access::access(path) else {
            // The router has the right answer for what does not exist.
            return Ok(());
        };
        let key = presented_key(request.headers())?;
        let caller = match (&key, &self.anonymous) {
            (Some(key), _) => self.keys.find(key).ok_or_else(|| {
                Error::new(
                    Reason::Unauthenticated,
                    "this key is not known, or was revoked; use another one",
                )
            })?,
            (None, Some(anonymous)) => Arc::clone(anonymous),
            (None, None) => {
                let message = "send a key as `authorization: Bearer KEY`; an admin makes one with `adjourn keys create`";
                return Err(Error::new(Reason::Unauthenticated, message));
            }
        };
        caller.require(needed.roles)?;
        if let Some(key) = key {
            let (keys, hash) = (Arc::clone(&self.keys), hash(&key));
            request
                .extensions_mut()
                .insert(Validity(Arc::new(move || keys.find_hash(&hash).is_some())));
        }
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// The key that a request presents.
fn presented_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get(http::header::AUTHORIZATION) else {
        return Ok(None);
    };
    let malformed = || {
        Error::new(
            Reason::Unauthenticated,
            "send the key as `authorization: Bearer KEY`",
        )
    };
    let text = value.to_str().map_err(|_| malformed())?;
    let (scheme, key) = text.split_once(' ').ok_or_else(malformed)?;
    if !scheme.eq_ignore_ascii_case("bearer") || key.trim().is_empty() {
        return Err(malformed());
    }
    Ok(Some(key.trim().to_owned()))
}

/// Refuses requests that a web page of another site could have caused: its name
/// stands in `Host` after its address was made to be ours, or in `Origin`.
fn check_names<B>(request: &Request<B>) -> Result<(), Error> {
    let strange = |what: &str| {
        Err(Error::new(
            Reason::PermissionDenied,
            format!(
                "a listener without keys serves this machine only, and {what} names another; use localhost"
            ),
        ))
    };
    let authority = request.uri().authority().map(http::uri::Authority::host);
    let host = request
        .headers()
        .get(http::header::HOST)
        .map(|value| value.to_str().unwrap_or("?"));
    if !authority.is_none_or(is_loopback)
        || !host.is_none_or(|host| is_loopback(without_port(host)))
    {
        return strange("the host");
    }
    match request
        .headers()
        .get(http::header::ORIGIN)
        .map(|value| value.to_str().unwrap_or("?"))
    {
        Some(origin) => {
            let host = origin.split_once("://").map_or(origin, |(_, host)| host);
            if is_loopback(without_port(host)) {
                Ok(())
            } else {
                strange("the origin")
            }
        }
        None => Ok(()),
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() =>
        {
            name
        }
        _ => host,
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            guard: self.clone(),
            inner,
        }
    }
}

/// A service behind a guard.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    guard: Guard,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let span = span(&request);
        if let Err(refusal) = self.guard.admit(&mut request) {
            span.in_scope(|| tracing::debug!(reason = ?refusal.reason, "call refused"));
            let response = Status::from(refusal).into_http();
            return Box::pin(std::future::ready(Ok(response)));
        }
        let limit = self.guard.max_request_bytes;
        let answer = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let answer = async move {
            match answer.await {
                Ok(Ok(response)) => Ok(explain(response, limit)),
                Ok(Err(never)) => match never {},
                Err(_) => {
                    tracing::error!("a handler panicked");
                    Ok(status::broken().into_http())
                }
            }
        };
        Box::pin(answer.instrument(span))
    }
}

/// A span for the logs of a call. Ids only, never contents.
fn span<B>(request: &Request<B>) -> tracing::Span {
    let traceparent = request
        .headers()
        .get("traceparent")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    tracing::info_span!("grpc", path = request.uri().path(), traceparent)
}

/// Says in our own words what the transport refuses by itself.
fn explain<R: Default>(response: Response<R>, limit: usize) -> Response<R> {
    let too_large = Status::from_header_map(response.headers())
        .is_some_and(|status| status.message().contains("message length too large"));
    if !too_large {
        return response;
    }
    let message = format!("the request is larger than {limit} bytes; send less at a time");
    Status::from(Error::new(Reason::LimitExceeded, message).with("limit", limit)).into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn only_names_of_this_machine_pass() {
        for good in [
            "http://localhost:7420/x",
            "http://127.0.0.1:7420/x",
            "http://[::1]:7420/x",
            "/x",
        ] {
            assert!(check_names(&request(good, &[])).is_ok(), "{good}");
        }
        assert!(check_names(&request("http://evil.example/x", &[])).is_err());
        assert!(check_names(&request("/x", &[("host", "evil.example:7420")])).is_err());
        assert!(check_names(&request("/x", &[("host", "localhost:7420")])).is_ok());
        assert!(check_names(&request("/x", &[("origin", "https://evil.example")])).is_err());
        assert!(check_names(&request("/x", &[("origin", "http://localhost:5173")])).is_ok());
        assert!(check_names(&request("/x", &[("origin", "null")])).is_err());
    }

    #[test]
    fn a_key_is_a_bearer_token() {
        let key = |value| presented_key(request("/x", &[("authorization", value)]).headers());
        assert_eq!(key("Bearer abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(key("bearer abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(
            key("Basic abc").unwrap_err().reason,
            Reason::Unauthenticated
        );
        assert_eq!(key("Bearer ").unwrap_err().reason, Reason::Unauthenticated);
        assert_eq!(presented_key(&HeaderMap::new()).unwrap(), None);
    }
}
