//! The link to the cluster: streams, and unary calls with a timeout, retried at other members; the result
//! says whether an earlier attempt may have taken effect.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Outcome, engine};
use futures_util::stream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::{Status, Streaming};

use super::grpc::{self, Encoded, unary};
use super::login::{AuthToken, Login};
use super::members::{Members, Pick, SUSPECT};
use super::proto::{Rpc, TxnRequest, TxnResponse};
use crate::errors::{Fault, Next, next};

/// Between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);
/// A member gets at least this long to answer before the next is asked.
const LEAST: Duration = Duration::from_millis(300);

/// An answer, and whether an earlier attempt of the same call may have taken effect before.
pub(crate) struct Answer<T> {
    pub(crate) said: T,
    pub(crate) doubt: bool,
}

/// How often to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Each member once: opening a store should fail soon when it is not there.
    Once,
    /// For as long as a call may take. Only for what is idempotent, as all our calls are.
    Many,
}

/// One client's way to the cluster.
pub(crate) struct Link {
    pub(crate) members: Arc<Members>,
    pub(crate) login: Arc<Login>,
    pub(crate) clock: Clock,
    pub(crate) site: String,
    pub(crate) tls: bool,
    /// How long a call may take, all its attempts together.
    pub(crate) timeout: Duration,
    /// Bounds the calls under way, and so the memory of many that join at once.
    pub(crate) turns: Semaphore,
}

/// Room for a call; `None` where none is needed.
pub(crate) type Turn<'a> = Option<SemaphorePermit<'a>>;

/// How many calls are under way at once.
pub(crate) const AT_ONCE: usize = 64;

impl Link {
    /// How long one member may take, so that others can be asked within the time of the call.
    pub(crate) fn attempt(&self) -> Duration {
        match self.members.len() {
            1 => self.timeout,
            n => (self.timeout / u32::try_from(n).unwrap_or(3)).max(LEAST).min(self.timeout),
        }
    }

    /// Asks until there is an answer or the time is over.
    pub(crate) async fn call<Q: Rpc>(&self, question: &Q) -> Result<Answer<Q::Response>, Fault> {
        let _turn = self.turn().await?;
        // In a box made only now: a crowd that waits for its turn must not carry the call's state.
        Box::pin(self.ask(question, Tries::Many)).await
    }

    /// The same for a caller that has a turn, or needs none.
    pub(crate) async fn ask<Q: Rpc>(
        &self,
        question: &Q,
        tries: Tries,
    ) -> Result<Answer<Q::Response>, Fault> {
        let (end, question) = (self.end(), Encoded::of(question));
        let (mut doubt, mut asked, mut logins) = (false, 0, 0);
        loop {
            let (pick, token) = (self.members.pick(), self.login.token());
            let until = self.clock.now().plus(self.attempt()).min(end);
            let once = async {
                self.log_in(&pick).await?;
                unary(&pick, self.login.sign(question.clone(), false)).await
            };
            let trouble = match self.patient(&pick, until, once).await {
                Some(Ok(said)) => return Ok(Answer { said, doubt }),
                None => {
                    (doubt, asked) = (true, asked + 1);
                    self.members.failed(&pick, true);
                    self.late()
                }
                Some(Err(status)) => match next(status, self.tls) {
                    Next::Again { error, doubt: applied } => {
                        (doubt, asked) = (doubt || applied, asked + 1);
                        self.members.failed(&pick, false);
                        error
                    }
                    Next::Login(e) if logins < 3 => {
                        logins += 1;
                        self.login.forget(token.as_ref());
                        e
                    }
                    Next::Login(e) | Next::Final(Fault::Other(e)) => {
                        return Err(self.failed(e, doubt));
                    }
                    Next::Final(Fault::NoLease { .. }) => return Err(Fault::NoLease { doubt }),
                    Next::Final(fault) => return Err(fault),
                },
            };
            let round = asked > 0 && asked % self.members.len() == 0;
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
        let asked = self.members.asked(pick);
        let answer = self.unless_silent(pick, until, call).await;
        let told = |answer: &Result<R, Status>| match answer {
            Ok(_) => true,
            Err(status) => std::error::Error::source(status).is_none(),
        };
        asked.answered(answer.as_ref().is_some_and(told));
        answer
    }

    /// What a call returns; `None` when the time is over, or as soon as another member is asked. While
    /// there is no answer the member is asked for a sign of life.
    pub(crate) async fn unless_silent<T>(
        &self,
        pick: &Pick,
        until: BootInstant,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let mut call = pin!(call);
        let left = || until.since(self.clock.now());
        let mut answer = self.clock.timeout(left().min(SUSPECT), &mut call).await;
        while answer.is_none() && !left().is_zero() {
            self.members.suspect(pick);
            let wait = self.clock.timeout(left().min(SUSPECT), &mut call);
            answer = tokio::select! {
                biased;
                answer = wait => answer,
                () = self.members.moved(pick) => break,
            };
        }
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

    async fn log_in(&self, pick: &Pick) -> Result<(), Status> {
        if !self.login.is_wanted() {
            return Ok(());
        }
        let (login, pick) = (self.login.clone(), pick.clone());
        let (clock, attempt) = (self.clock.clone(), self.attempt());
        let done = self.login.flight.join(|| async move {
            let done = clock.timeout(attempt, login.authenticate(&pick)).await;
            done.unwrap_or_else(|| Err(Status::unavailable("no answer to the login")))
        });
        done.await.unwrap_or_else(|| Err(Status::internal("the login ended without an answer")))
    }

    /// Opens a stream both ways. Bounded: the first answer must come within an attempt's time.
    pub(crate) async fn stream<Q: Rpc>(
        &self,
        questions: UnboundedReceiver<Q>,
    ) -> Result<OpenStream<'_, Q::Response>, Error> {
        let (pick, mut token) = (self.members.pick(), None);
        let questions = stream::unfold(questions, async |mut rx| rx.recv().await.map(|q| (q, rx)));
        let open = async {
            self.log_in(&pick).await?;
            token = self.login.token();
            grpc::stream(&pick, self.login.sign(Box::pin(questions), true)).await
        };
        let until = self.clock.now().plus(self.attempt());
        match self.patient(&pick, until, open).await {
            Some(Ok(answers)) => {
                let moves = self.members.moves();
                Ok(OpenStream { link: self, pick, token, answers, moves })
            }
            Some(Err(status)) => Err(self.broke(&pick, status, token.as_ref())),
            None => {
                self.members.failed(&pick, true);
                Err(self.late())
            }
        }
    }

    /// A stream ended: what it says, and another member is asked next.
    fn broke(&self, pick: &Pick, status: Status, token: Option<&Arc<AuthToken>>) -> Error {
        match next(status, self.tls) {
            Next::Login(e) => {
                self.login.forget(token);
                self.told(e)
            }
            Next::Again { error, .. } => {
                self.members.failed(pick, false);
                self.told(error)
            }
            Next::Final(fault) => self.told(fault.into()),
        }
    }

    /// A transaction of a caller that has a turn, or needs none.
    pub(crate) async fn txn_in_turn(&self, txn: &TxnRequest) -> Result<Answer<TxnResponse>, Fault> {
        Box::pin(self.ask(txn, Tries::Many)).await
    }

    pub(crate) fn late(&self) -> Error {
        self.told(Error::unanswered(self.timeout).with_hint(
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

/// A stream both ways with one member.
pub(crate) struct OpenStream<'a, R> {
    link: &'a Link,
    pick: Pick,
    token: Option<Arc<AuthToken>>,
    answers: Streaming<R>,
    moves: watch::Receiver<u64>,
}

impl<R> OpenStream<'_, R> {
    /// The next answer; an error when the stream broke, or calls go to another member by now.
    pub(crate) async fn next(&mut self) -> Result<R, Error> {
        let Self { link, pick, token, .. } = self;
        tokio::select! {
            biased;
            _ = self.moves.wait_for(|n| *n != pick.number) => Err(link.late()),
            answer = self.answers.message() => match answer {
                Ok(Some(said)) => {
                    pick.heard(link.clock.now());
                    Ok(said)
                }
                Ok(None) => {
                    link.members.failed(pick, false);
                    Err(link.late())
                }
                Err(status) => Err(link.broke(pick, status, token.as_ref())),
            },
        }
    }

    /// The member does not accept the stream's login token any more.
    pub(crate) fn is_refused(&self) {
        self.link.login.forget(self.token.as_ref());
    }
}
