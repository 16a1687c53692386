//! A worker thread with a connection of its own.
//!
//! Whatever is queued when the write lock comes goes into one transaction: under load one commit
//! serves many callers. A caller that is gone does not stop its job.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::Replies;
use distlock_core::state::{Effects, Op};
use distlock_core::{Error, FullName, Kind, engine};
use tokio::sync::oneshot;

use crate::peer_socket::{PeerSocket, Silent};
use crate::transaction::{Ledger, Move};

/// At most this many calls in one transaction, so that the first is not kept waiting by the last.
const BATCH: usize = 256;

enum Job {
    Play { moves: Vec<Move>, answer: oneshot::Sender<Replies> },
    Look { query: Query, answer: oneshot::Sender<Result<Vec<LockInfo>, Error>> },
    Quit(oneshot::Sender<()>),
}

/// The way to a worker.
pub(crate) struct Worker(Sender<Job>);

impl Worker {
    /// Starts a worker. Without a ledger it opens one when the first job comes.
    pub(crate) fn start(
        name: &str,
        ledger: Option<Ledger>,
        open: impl Fn() -> Result<Ledger, Error> + Send + 'static,
        peers: Arc<PeerSocket>,
    ) -> Result<Self, Error> {
        let (tx, rx) = channel();
        let worker = Thread { rx, ledger, open, peers };
        engine::thread(name, move || worker.work()).map_err(|e| {
            Error::new(Kind::Store, "no thread for the database").because(e).transient()
        })?;
        Ok(Self(tx))
    }

    /// Runs moves in one transaction.
    pub(crate) async fn play(&self, moves: Vec<Move>) -> Replies {
        let n = moves.len();
        let (answer, reply) = oneshot::channel();
        if self.0.send(Job::Play { moves, answer }).is_err() {
            return vec![Err(closed()); n];
        }
        reply.await.unwrap_or_else(|_| vec![Err(closed().unknown()); n])
    }

    /// Lists locks.
    pub(crate) async fn look(&self, query: Query) -> Result<Vec<LockInfo>, Error> {
        let (answer, reply) = oneshot::channel();
        self.0.send(Job::Look { query, answer }).map_err(|_| closed())?;
        reply.await.map_err(|_| closed())?
    }

    /// Ends the worker after what is queued.
    pub(crate) async fn quit(&self) {
        let (done, ended) = oneshot::channel();
        if self.0.send(Job::Quit(done)).is_ok() {
            let _ = ended.await;
        }
    }
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the store was closed").with_hint("open it again")
}

struct Thread<F> {
    rx: Receiver<Job>,
    ledger: Option<Ledger>,
    open: F,
    peers: Arc<PeerSocket>,
}

impl<F: Fn() -> Result<Ledger, Error>> Thread<F> {
    fn work(mut self) {
        while let Ok(job) = self.rx.recv() {
            if let Job::Quit(done) = job {
                drop(self.ledger.take());
                let _ = done.send(());
                return;
            }
            let mut ledger = match self.ledger.take() {
                Some(ledger) if !ledger.is_replaced() => Ok(ledger),
                // The old one is closed first.
                old => {
                    drop(old);
                    (self.open)()
                }
            };
            let quit = match job {
                Job::Quit(done) => Some(done),
                Job::Look { query, answer } => {
                    let _ = answer.send(match &mut ledger {
                        Ok(ledger) => ledger.look(&query),
                        Err(e) => Err(e.clone()),
                    });
                    None
                }
                Job::Play { moves, answer } => self.batch(&mut ledger, moves, answer),
            };
            self.ledger = ledger.ok();
            if let Some(done) = quit {
                drop(self.ledger.take());
                let _ = done.send(());
                return;
            }
        }
    }

    /// One transaction for this call and everything that came in while the write lock was awaited.
    fn batch(
        &self,
        ledger: &mut Result<Ledger, Error>,
        mut moves: Vec<Move>,
        answer: oneshot::Sender<Replies>,
    ) -> Option<oneshot::Sender<()>> {
        let begun = match ledger {
            Ok(ledger) => ledger.begin(),
            Err(e) => Err(e.clone()),
        };
        let mut answers = vec![(moves.len(), answer)];
        let mut looks = Vec::new();
        let mut quit = None;
        while quit.is_none() && answers.len() < BATCH {
            match self.rx.try_recv() {
                Ok(Job::Play { moves: more, answer }) => {
                    answers.push((more.len(), answer));
                    moves.extend(more);
                }
                Ok(Job::Look { query, answer }) => looks.push((query, answer)),
                Ok(Job::Quit(done)) => quit = Some(done),
                Err(_) => break,
            }
        }
        let done = match ledger {
            Ok(ledger) => begun.and_then(|()| ledger.finish(&moves, &Silent::new())),
            Err(e) => Err(e.clone()),
        };
        let (replies, effects) = match done {
            Ok(applied) => (applied.replies, applied.effects),
            Err(e) => (vec![Err(e); moves.len()], Vec::new()),
        };
        let mut replies = replies.into_iter();
        for (n, answer) in answers {
            // Nobody may listen any more; what was done is done.
            let _ = answer.send(replies.by_ref().take(n).collect());
        }
        match ledger {
            Ok(ledger) => {
                self.tell(ledger, effects);
                ledger.trim();
                looks.into_iter().for_each(|(q, a)| drop(a.send(ledger.look(&q))));
            }
            Err(e) => looks.into_iter().for_each(|(_, a)| drop(a.send(Err(e.clone())))),
        }
        quit
    }

    /// Tells whom it concerns. A promotion that reaches nobody is taken back and the next one
    /// told, until somebody alive has it.
    fn tell(&self, ledger: &mut Ledger, mut effects: Vec<(FullName, Effects)>) {
        let mut silent = Silent::new();
        loop {
            let unheard = self.peers.deliver(effects, &mut silent);
            if unheard.is_empty() {
                return;
            }
            let moves: Vec<Move> = unheard
                .into_iter()
                .map(|(lock, req, gone)| (lock, Op::Withdraw { req, gone }))
                .collect();
            match ledger.begin().and_then(|()| ledger.finish(&moves, &silent)) {
                Ok(applied) => effects = applied.effects,
                Err(e) => {
                    // The claim ends by itself within a second.
                    tracing::warn!(error = %e, "a promotion could not be taken back");
                    return;
                }
            }
        }
    }
}
