//! The side that checks.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use distlock_core::Token;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::{FENCING_HIGHEST, FENCING_TOKEN, value};
use crate::FenceGate;

type Resource = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// A `tower` layer that lets only holders of rising tokens through, one at a time per resource.
///
/// The resource is closed to others until the service has made its response (a body that is
/// streamed afterwards is outside). When a client goes away and its server drops the request, the
/// resource opens as the service's future is dropped: work that outlives that future is not
/// fenced.
#[derive(Clone)]
pub struct FenceLayer {
    gate: FenceGate,
    resource: Resource,
}

impl FenceLayer {
    /// Fences by path ([`by_path`]), with marks of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::over(FenceGate::new())
    }

    /// Fences by path, at a gate that others may use as well.
    #[must_use]
    pub fn over(gate: FenceGate) -> Self {
        Self { gate, resource: Arc::new(by_path) }
    }

    /// Says which resource a request is about; `None` lets it pass without a token. Each answer is
    /// remembered for good: do not make resources of what strangers can invent.
    #[must_use]
    pub fn resource(
        mut self,
        of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.resource = Arc::new(of);
        self
    }
}

impl Default for FenceLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// The path, for requests that may change something; those that only read pass.
#[must_use]
pub fn by_path(request: &Parts) -> Option<String> {
    (!request.method.is_safe()).then(|| request.uri.path().to_owned())
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;
    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { fence: self.clone(), inner }
    }
}

/// A service behind a fence; see [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    fence: FenceLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that said it is ready is the one to call; a copy need not be.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let fence = self.fence.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Some(resource) = (fence.resource)(&parts) else {
                return inner.call(Request::from_parts(parts, body)).await;
            };
            let token = match token(&parts.headers) {
                Ok(token) => token,
                Err(status) => return Ok(refusal(status)),
            };
            match fence.gate.enter(&resource, token).await {
                Ok(permit) => {
                    let response = inner.call(Request::from_parts(parts, body)).await;
                    drop(permit);
                    response
                }
                Err(stale) => {
                    let mut no = refusal(StatusCode::PRECONDITION_FAILED);
                    no.headers_mut().insert(FENCING_HIGHEST, value(stale.highest));
                    Ok(no)
                }
            }
        })
    }
}

fn token(headers: &HeaderMap) -> Result<Token, StatusCode> {
    let mut given = headers.get_all(FENCING_TOKEN).iter();
    let text = given.next().ok_or(StatusCode::PRECONDITION_REQUIRED)?;
    let text = text.to_str().ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    match (text.and_then(|t| t.parse().ok()), given.next()) {
        (Some(token), None) => Ok(token),
        _ => Err(StatusCode::BAD_REQUEST),
    }
}

fn refusal<R: Default>(status: StatusCode) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    response
}
