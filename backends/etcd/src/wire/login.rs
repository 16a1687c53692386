//! The login at a cluster: a user, and the token that requests are signed with.

use std::sync::Arc;

use distlock_core::{Mutex, Secret, SingleFlight};
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::grpc::{Encoded, unary};
use super::members::Pick;
use super::proto::AuthenticateRequest;

/// A token of the cluster, as it goes into a request.
pub(crate) type AuthToken = MetadataValue<tonic::metadata::Ascii>;

/// The user of this client at the cluster, and the token that stands for it: fetched when it is first
/// needed, and again when the cluster has forgotten it.
pub(crate) struct Login {
    user: Option<(String, Secret)>,
    token: Mutex<Option<Arc<AuthToken>>>,
    /// A password costs the member much to check: one login for all calls that need it.
    pub(crate) flight: SingleFlight<Result<(), Status>>,
}

impl Login {
    pub(crate) fn new(user: Option<(String, Secret)>) -> Arc<Self> {
        Arc::new(Self { user, token: Mutex::default(), flight: SingleFlight::default() })
    }

    /// The token that requests are signed with now.
    pub(crate) fn token(&self) -> Option<Arc<AuthToken>> {
        self.token.lock().clone()
    }

    /// Whether a token must be fetched first.
    pub(crate) fn is_wanted(&self) -> bool {
        self.user.is_some() && self.token().is_none()
    }

    /// Fetches a token, unless another call has done so meanwhile.
    pub(crate) async fn authenticate(&self, pick: &Pick) -> Result<(), Status> {
        let user = self.user.as_ref().filter(|_| self.is_wanted());
        let Some((name, password)) = user else { return Ok(()) };
        let (name, password) = (name.clone(), password.reveal().to_owned());
        let question = self.sign(Encoded::of(&AuthenticateRequest { name, password }), false);
        let token = match unary(pick, question).await {
            Ok(answer) => answer.token.parse(),
            // As etcd's own client does: a cluster without logins lets everybody in.
            Err(e) if e.message().contains("authentication is not enabled") => return Ok(()),
            Err(e) => return Err(e),
        };
        let token = token.map_err(|_| Status::internal("the login token is not ASCII"))?;
        *self.token.lock() = Some(Arc::new(token));
        Ok(())
    }

    /// The cluster does not know this token any more. One that was fetched meanwhile stays.
    pub(crate) fn forget(&self, old: Option<&Arc<AuthToken>>) {
        let mut token = self.token.lock();
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
