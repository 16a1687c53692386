//! A user's token: fetched when it is needed, again when the cluster has forgotten it.

use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::single_flight::SingleFlight;
use distlock_core::url::Secret;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::proto::{AuthenticateRequest, AuthenticateResponse};

pub(crate) type Token = MetadataValue<tonic::metadata::Ascii>;

/// Who we are at the cluster.
pub(crate) struct Login {
    who: Option<(String, Secret)>,
    token: Mutex<Option<Arc<Token>>>,
    /// A password costs the member much to check: one login for all calls that need it.
    pub(crate) flight: SingleFlight<Result<(), Status>>,
}

impl Login {
    pub(crate) fn new(who: Option<(String, Secret)>) -> Arc<Self> {
        Arc::new(Self { who, token: Mutex::default(), flight: SingleFlight::default() })
    }

    /// The token that requests are signed with now.
    pub(crate) fn token(&self) -> Option<Arc<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What to ask for a token; `None` when there is one, or nobody to be.
    pub(crate) fn wanted(&self) -> Option<AuthenticateRequest> {
        let (name, password) = self.who.as_ref()?;
        if self.token().is_some() {
            return None;
        }
        Some(AuthenticateRequest { name: name.clone(), password: password.reveal().to_owned() })
    }

    pub(crate) fn got(&self, answer: &AuthenticateResponse) -> Result<(), Status> {
        let token = answer.token.parse().map_err(|_| Status::internal("a token of no sense"))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(token));
        Ok(())
    }

    /// The cluster does not know this token any more. One that was fetched meanwhile stays.
    pub(crate) fn forget(&self, old: Option<&Arc<Token>>) {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if token.as_ref().zip(old).is_some_and(|(t, old)| Arc::ptr_eq(t, old)) {
            *token = None;
        }
    }

    /// Signs a request. Streams also ask to be ended by a member that has lost its leader: one that
    /// is cut off with the client would otherwise stay silent for ever.
    pub(crate) fn sign<T>(&self, message: T, stream: bool) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token() {
            request.metadata_mut().insert("token", (*token).clone());
        }
        if stream {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        request
    }
}
