//! The side that sends.

use std::task::{Context, Poll};

use distlock_core::Token;
use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::set_token;

/// A `tower` layer for clients: every request through it carries the token of one hold.
#[derive(Clone, Copy, Debug)]
pub struct SendTokenLayer {
    token: Token,
}

impl SendTokenLayer {
    /// Sends this token: `guard.token()`.
    #[must_use]
    pub fn new(token: Token) -> Self {
        Self { token }
    }
}

impl<S> Layer<S> for SendTokenLayer {
    type Service = SendToken<S>;
    fn layer(&self, inner: S) -> SendToken<S> {
        SendToken { token: self.token, inner }
    }
}

/// A client that sends a token with each request; see [`SendTokenLayer`].
#[derive(Clone, Copy, Debug)]
pub struct SendToken<S> {
    token: Token,
    inner: S,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for SendToken<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        set_token(&mut request, self.token);
        self.inner.call(request)
    }
}
