//! Keep-alives of all leases of a client over one stream, opened anew after a loss.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{ClockReading, Error, Kind, engine};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tonic::Streaming;

use super::calls::Link;
use super::login::Token;
use super::members::{Pick, SUSPECT};
use super::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};

const PATH: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const PAUSE: Duration = Duration::from_millis(50);

struct Beat {
    id: i64,
    answer: oneshot::Sender<Result<i64, Error>>,
}

/// The door to the stream. Dropping it ends the stream.
pub(crate) struct Beats {
    tx: UnboundedSender<Beat>,
    link: Arc<Link>,
}

impl Beats {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let (tx, rx) = unbounded_channel();
        let all = link.clone();
        engine::spawn(async move { Stream { link: all, rx, pending: HashMap::new() }.run().await });
        Self { tx, link }
    }

    /// Keeps a lease alive. With its TTL in seconds, zero when it is gone, comes the moment before
    /// the very question left that was answered: from there the lease counts.
    pub(crate) async fn beat(
        &self,
        id: i64,
        now: impl Fn() -> ClockReading,
    ) -> Result<(ClockReading, i64), Error> {
        let end = self.link.end();
        loop {
            let (answer, said) = oneshot::channel();
            let (sent, pick) = (now(), self.link.nodes.pick());
            if self.tx.send(Beat { id, answer }).is_err() {
                return Err(Error::new(Kind::Closed, "this client was closed"));
            }
            let (clock, mut said) = (&self.link.clock, pin!(said));
            let until = clock.now().plus(self.link.attempt()).min(end);
            let left = || until.since(clock.now());
            let mut answer = clock.timeout(left().min(SUSPECT), &mut said).await;
            while answer.is_none() && !left().is_zero() {
                // The stream moves on when the pick does, and says so.
                self.link.nodes.suspect(&pick);
                answer = clock.timeout(left().min(SUSPECT), &mut said).await;
            }
            let trouble = match answer {
                Some(Ok(Ok(ttl))) => return Ok((sent, ttl)),
                Some(Ok(Err(e))) => e,
                Some(Err(_)) => return Err(Error::new(Kind::Closed, "this client was closed")),
                None => {
                    // Silence: the stream moves on when the pick does.
                    self.link.nodes.failed(&pick, true);
                    self.link.late()
                }
            };
            if self.link.clock.now() >= end || !trouble.is_transient() {
                return Err(trouble.unknown());
            }
            self.link.clock.sleep(PAUSE).await;
        }
    }
}

struct Stream {
    link: Arc<Link>,
    rx: UnboundedReceiver<Beat>,
    /// Answers to one lease come in the order of the questions.
    pending: HashMap<i64, VecDeque<oneshot::Sender<Result<i64, Error>>>>,
}

impl Stream {
    async fn run(mut self) {
        while let Some(first) = self.rx.recv().await {
            let pick = self.link.nodes.pick();
            let (tx, rx) = unbounded_channel();
            self.ask(&tx, first);
            let questions = stream::unfold(rx, async |mut rx: UnboundedReceiver<_>| {
                rx.recv().await.map(|q| (q, rx))
            });
            let trouble = match self.link.stream(&pick, PATH, Box::pin(questions)).await {
                Ok((answers, token)) => match self.serve(&pick, &tx, answers, token).await {
                    Some(trouble) => trouble,
                    None => return,
                },
                Err(e) => e,
            };
            for answer in self.pending.drain().flat_map(|(_, all)| all) {
                let _ = answer.send(Err(trouble.clone()));
            }
        }
    }

    fn ask(&mut self, tx: &UnboundedSender<LeaseKeepAliveRequest>, beat: Beat) {
        self.pending.entry(beat.id).or_default().push_back(beat.answer);
        let _ = tx.send(LeaseKeepAliveRequest { id: beat.id });
    }

    /// Serves until the stream is lost, and says why; `None` when the client is closed.
    async fn serve(
        &mut self,
        pick: &Pick,
        tx: &UnboundedSender<LeaseKeepAliveRequest>,
        mut answers: Streaming<LeaseKeepAliveResponse>,
        token: Option<Arc<Token>>,
    ) -> Option<Error> {
        let mut moves = self.link.nodes.moves();
        loop {
            tokio::select! {
                biased;
                _ = moves.wait_for(|n| *n != pick.number) => return Some(self.link.late()),
                answer = answers.message() => match answer {
                    Ok(Some(said)) => {
                        pick.heard(self.link.clock.now());
                        let of = self.pending.get_mut(&said.id);
                        if let Some(answer) = of.and_then(VecDeque::pop_front) {
                            let _ = answer.send(Ok(said.ttl));
                        }
                        if self.pending.get(&said.id).is_some_and(VecDeque::is_empty) {
                            self.pending.remove(&said.id);
                        }
                    }
                    Ok(None) => {
                        self.link.nodes.failed(pick, false);
                        return Some(self.link.late());
                    }
                    Err(status) => {
                        return Some(self.link.broke(pick, status, token.as_ref()));
                    }
                },
                beat = self.rx.recv() => self.ask(tx, beat?),
            }
        }
    }
}
