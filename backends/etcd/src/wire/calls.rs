//! Calls to the cluster: bounded, asked again elsewhere, and honest about what may have happened.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Kind, Outcome, engine};
use futures_util::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::client::Grpc;
use tonic::{Status, Streaming};

use super::codec::{Ready, Small};
use super::errors::{Fault, Next, next};
use super::login::{Login, Token};
use super::members::{Nodes, Pick, SUSPECT};
use super::proto::{AuthenticateResponse, TxnRequest, TxnResponse};

const TXN: &str = "/etcdserverpb.KV/Txn";
/// Between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);
/// A member gets at least this long to answer before the next is asked.
const LEAST: Duration = Duration::from_millis(300);
/// Listings of many locks come in pages of a few megabytes.
const LARGEST: usize = 64 << 20;

/// An answer, and whether an earlier attempt of the same call may have taken effect before.
pub(crate) struct Answer<T> {
    pub(crate) said: T,
    pub(crate) doubt: bool,
}

/// How often to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Each member once: whoever opens a store wants to know soon that it is not there.
    Once,
    /// For as long as a call may take. Only for what is idempotent, as all our calls are.
    Many,
}

/// One client's way to the cluster.
pub(crate) struct Link {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) login: Arc<Login>,
    pub(crate) clock: Clock,
    pub(crate) site: String,
    pub(crate) tls: bool,
    /// How long a call may take, all its attempts together.
    pub(crate) timeout: Duration,
    /// A crowd that joins at once costs what so many do.
    pub(crate) turns: Semaphore,
}

/// Room for a call; `None` where none is needed.
pub(crate) type Turn<'a> = Option<SemaphorePermit<'a>>;

async fn unary<R>(
    pick: &Pick,
    login: &Login,
    path: &'static str,
    question: Bytes,
) -> Result<R, Status>
where
    R: Message + Default + Send + 'static,
{
    let mut grpc = grpc(pick);
    let unready = |e: tonic::transport::Error| Status::from_error(Box::new(e));
    grpc.ready().await.map_err(unready)?;
    let path = PathAndQuery::from_static(path);
    let asked = grpc.unary(login.sign(question, false), path, Ready::<R>::default());
    Ok(asked.await?.into_inner())
}

/// Fetches a token, unless somebody has meanwhile.
async fn authenticate(pick: &Pick, login: &Login) -> Result<(), Status> {
    let Some(question) = login.wanted() else { return Ok(()) };
    let path = "/etcdserverpb.Auth/Authenticate";
    let question = question.encode_to_vec().into();
    match unary::<AuthenticateResponse>(pick, login, path, question).await {
        Ok(answer) => login.got(&answer),
        // As etcd's own client does: a cluster without logins lets everybody in.
        Err(e) if e.message().contains("authentication is not enabled") => Ok(()),
        Err(e) => Err(e),
    }
}

/// How many calls are under way at once.
pub(crate) const AT_ONCE: usize = 64;

fn grpc(pick: &Pick) -> Grpc<tonic::transport::Channel> {
    Grpc::new(pick.channel.clone()).max_decoding_message_size(LARGEST)
}

impl Link {
    /// How long one member may take, so that others can be asked within the time of the call.
    pub(crate) fn attempt(&self) -> Duration {
        match self.nodes.len() {
            1 => self.timeout,
            n => (self.timeout / u32::try_from(n).unwrap_or(3)).max(LEAST).min(self.timeout),
        }
    }

    /// Asks until there is an answer or the time is over.
    pub(crate) async fn call<Q, R>(
        &self,
        path: &'static str,
        question: &Q,
        tries: Tries,
    ) -> Result<Answer<R>, Fault>
    where
        Q: Message,
        R: Message + Default + Send + 'static,
    {
        let _turn = self.turn().await?;
        // In a box made only now: a crowd that waits for its turn must not carry the call's state.
        Box::pin(self.ask(path, question, tries)).await
    }

    async fn ask<Q, R>(
        &self,
        path: &'static str,
        question: &Q,
        tries: Tries,
    ) -> Result<Answer<R>, Fault>
    where
        Q: Message,
        R: Message + Default + Send + 'static,
    {
        let end = self.end();
        let question = Bytes::from(question.encode_to_vec());
        let (mut doubt, mut asked, mut logins) = (false, 0, 0);
        loop {
            let (pick, token) = (self.nodes.pick(), self.login.token());
            let until = self.clock.now().plus(self.attempt()).min(end);
            let once = self.once(&pick, path, question.clone());
            let trouble = match self.patient(&pick, until, once).await {
                Some(Ok(said)) => return Ok(Answer { said, doubt }),
                None => {
                    (doubt, asked) = (true, asked + 1);
                    self.nodes.failed(&pick, true);
                    self.late()
                }
                Some(Err(status)) => match next(status, self.tls) {
                    Next::NotSent(e) | Next::Refused(e) => {
                        asked += 1;
                        self.nodes.failed(&pick, false);
                        e
                    }
                    Next::Doubt(e) => {
                        (doubt, asked) = (true, asked + 1);
                        self.nodes.failed(&pick, false);
                        e
                    }
                    Next::Login(e) if logins < 3 => {
                        logins += 1;
                        self.login.forget(token.as_ref());
                        e
                    }
                    Next::Login(e) => return Err(self.failed(e, doubt)),
                    Next::Final(Fault::Other(e)) => return Err(self.failed(e, doubt)),
                    Next::Final(Fault::NoLease { .. }) => return Err(Fault::NoLease { doubt }),
                    Next::Final(fault) => return Err(fault),
                },
            };
            let round = asked > 0 && asked % self.nodes.len() == 0;
            if self.clock.now() >= end || (tries == Tries::Once && round) {
                return Err(self.failed(trouble, doubt));
            }
            if round {
                self.clock.sleep_until(self.clock.now().plus(PAUSE).min(end)).await;
            }
        }
    }

    /// An answer, or `None` when the member is silent: until the time is over, or until another one
    /// is asked because this one gives no sign of life.
    async fn patient<R>(
        &self,
        pick: &Pick,
        until: BootInstant,
        call: impl Future<Output = Result<R, Status>>,
    ) -> Option<Result<R, Status>> {
        let (asked, mut call) = (self.nodes.asked(pick), pin!(call));
        let left = || until.since(self.clock.now());
        let mut answer = self.clock.timeout(left().min(SUSPECT), &mut call).await;
        while answer.is_none() && !left().is_zero() {
            self.nodes.suspect(pick);
            let wait = self.clock.timeout(left().min(SUSPECT), &mut call);
            answer = tokio::select! {
                biased;
                answer = wait => answer,
                () = self.nodes.moved(pick) => break,
            };
        }
        let told = |answer: &Result<R, Status>| match answer {
            Ok(_) => true,
            Err(status) => std::error::Error::source(status).is_none(),
        };
        asked.answered(answer.as_ref().is_some_and(told));
        answer
    }

    /// Room for one more call. Renewals and what was dropped, on the library's own thread, never wait.
    pub(crate) async fn turn(&self) -> Result<Turn<'_>, Fault> {
        if engine::on_library_thread() {
            return Ok(None);
        }
        if let Ok(turn) = self.turns.try_acquire() {
            return Ok(Some(turn));
        }
        match self.clock.timeout(self.timeout, self.turns.acquire()).await {
            Some(Ok(turn)) => Ok(Some(turn)),
            _ => Err(self.unsent()),
        }
    }

    /// The time was over before it was sent.
    pub(crate) fn unsent(&self) -> Fault {
        self.failed(self.late(), false)
    }

    async fn once<R>(&self, pick: &Pick, path: &'static str, question: Bytes) -> Result<R, Status>
    where
        R: Message + Default + Send + 'static,
    {
        self.log_in(pick).await?;
        self.unary(pick, path, question).await
    }

    async fn unary<R>(&self, pick: &Pick, path: &'static str, question: Bytes) -> Result<R, Status>
    where
        R: Message + Default + Send + 'static,
    {
        unary(pick, &self.login, path, question).await
    }

    async fn log_in(&self, pick: &Pick) -> Result<(), Status> {
        if self.login.wanted().is_none() {
            return Ok(());
        }
        let (login, pick) = (self.login.clone(), pick.clone());
        let (clock, attempt) = (self.clock.clone(), self.attempt());
        let done = self.login.flight.join(|| async move {
            let done = clock.timeout(attempt, authenticate(&pick, &login)).await;
            done.unwrap_or_else(|| Err(Status::unavailable("no answer to the login")))
        });
        done.await.unwrap_or_else(|| Err(Status::internal("the login ended without an answer")))
    }

    /// Opens a stream both ways, and says with which token. Bounded: the first answer must come
    /// within an attempt's time.
    pub(crate) async fn stream<Q, R>(
        &self,
        pick: &Pick,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(Streaming<R>, Option<Arc<Token>>), Error>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + 'static,
    {
        let mut token = None;
        let open = async {
            self.log_in(pick).await?;
            token = self.login.token();
            let mut grpc = grpc(pick);
            grpc.ready().await.map_err(|e| Status::from_error(Box::new(e)))?;
            let codec = Small::<Q, R>::default();
            let path = PathAndQuery::from_static(path);
            Ok(grpc.streaming(self.login.sign(questions, true), path, codec).await?.into_inner())
        };
        let until = self.clock.now().plus(self.attempt());
        match self.patient(pick, until, open).await {
            Some(Ok(stream)) => Ok((stream, token)),
            Some(Err(status)) => Err(self.broke(pick, status, token.as_ref())),
            None => {
                self.nodes.failed(pick, true);
                Err(self.late())
            }
        }
    }

    /// A stream ended: what it says, and another member is asked next.
    pub(crate) fn broke(&self, pick: &Pick, status: Status, token: Option<&Arc<Token>>) -> Error {
        match next(status, self.tls) {
            Next::Login(e) => {
                self.login.forget(token);
                self.told(e)
            }
            Next::NotSent(e) | Next::Refused(e) | Next::Doubt(e) => {
                self.nodes.failed(pick, false);
                self.told(e)
            }
            Next::Final(fault) => self.told(fault.into()),
        }
    }

    /// A transaction of one who has his turn, or needs none.
    pub(crate) async fn txn_in_turn(&self, txn: &TxnRequest) -> Result<Answer<TxnResponse>, Fault> {
        Box::pin(self.ask(TXN, txn, Tries::Many)).await
    }

    /// A transaction.
    pub(crate) async fn txn(&self, txn: &TxnRequest) -> Result<Answer<TxnResponse>, Fault> {
        self.call(TXN, txn, Tries::Many).await
    }

    pub(crate) fn late(&self) -> Error {
        let e = Error::new(Kind::Unreachable, format!("no answer within {:?}", self.timeout));
        self.told(e.unknown().with_hint(
            "see whether a majority of the cluster runs; the same call may be repeated, and ?timeout= \
             gives it longer",
        ))
    }

    fn told(&self, e: Error) -> Error {
        e.store(&self.site)
    }

    fn failed(&self, e: Error, doubt: bool) -> Fault {
        let doubt = doubt || e.outcome() == Outcome::Unknown;
        let e = self.told(e);
        Fault::Other(if doubt { e.unknown() } else { e.not_applied() })
    }

    /// Until when a call that begins now may take.
    pub(crate) fn end(&self) -> BootInstant {
        self.clock.now().plus(self.timeout)
    }
}
