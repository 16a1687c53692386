//! A worker thread with a connection of its own.
//!
//! Whatever is queued when the write lock comes goes into one transaction: under load one commit
//! serves many callers. A caller that is gone does not stop its job.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use distlock_core::{Effects, Error, FullName, Kind, LockInfo, Op, Query, Replies, engine};
use tokio::sync::oneshot;

use crate::peer_socket::{PeerSocket, Silent};
use crate::transaction::{Applied, Database, Move};

/// At most this many calls in one transaction, so that the first is not kept waiting by the last.
const BATCH: usize = 256;

/// Where the caller of an inspection waits.
type Listing = oneshot::Sender<Result<Vec<LockInfo>, Error>>;

enum Job {
    Play { moves: Vec<Move>, answer: oneshot::Sender<Replies> },
    Inspect { query: Query, answer: Listing },
    Quit(oneshot::Sender<()>),
}

/// The way to a worker.
pub(crate) struct Worker(Sender<Job>);

impl Worker {
    /// Starts a worker. Without a database it opens one when the first job comes.
    pub(crate) fn start(
        name: &str,
        database: Option<Database>,
        open: impl Fn() -> Result<Database, Error> + Send + 'static,
        peers: Arc<PeerSocket>,
    ) -> Result<Self, Error> {
        let (tx, rx) = channel();
        let worker = Thread { rx, database, open, peers };
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
    pub(crate) async fn inspect(&self, query: Query) -> Result<Vec<LockInfo>, Error> {
        let (answer, reply) = oneshot::channel();
        self.0.send(Job::Inspect { query, answer }).map_err(|_| closed())?;
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

/// The database, or why it could not be opened.
fn opened(database: &mut Result<Database, Error>) -> Result<&mut Database, Error> {
    database.as_mut().map_err(|e| e.clone())
}

struct Thread<F> {
    rx: Receiver<Job>,
    database: Option<Database>,
    open: F,
    peers: Arc<PeerSocket>,
}

/// Jobs that run together: every move in one transaction, then the inspections.
#[derive(Default)]
struct Batch {
    moves: Vec<Move>,
    /// How many of the moves each caller sent, and where it waits.
    answers: Vec<(usize, oneshot::Sender<Replies>)>,
    inspections: Vec<(Query, Listing)>,
    quit: Option<oneshot::Sender<()>>,
}

impl Batch {
    fn add(&mut self, job: Job) {
        match job {
            Job::Play { moves, answer } => {
                self.answers.push((moves.len(), answer));
                match self.moves.is_empty() {
                    true => self.moves = moves,
                    false => self.moves.extend(moves),
                }
            }
            Job::Inspect { query, answer } => self.inspections.push((query, answer)),
            Job::Quit(done) => self.quit = Some(done),
        }
    }
}

impl<F: Fn() -> Result<Database, Error>> Thread<F> {
    fn work(mut self) {
        while let Ok(job) = self.rx.recv() {
            let mut batch = Batch::default();
            batch.add(job);
            if batch.quit.is_none() {
                let mut database = match self.database.take() {
                    Some(database) if !database.is_replaced() => Ok(database),
                    // The old one is closed first.
                    old => {
                        drop(old);
                        (self.open)()
                    }
                };
                self.run(&mut database, &mut batch);
                self.database = database.ok();
            }
            if let Some(done) = batch.quit {
                drop(self.database.take());
                let _ = done.send(());
                return;
            }
        }
    }

    /// One transaction for the moves of this batch and everything that came in while the write lock
    /// was awaited.
    fn run(&self, database: &mut Result<Database, Error>, batch: &mut Batch) {
        if !batch.answers.is_empty() {
            let begun = opened(database).and_then(Database::begin);
            while batch.quit.is_none()
                && batch.answers.len() < BATCH
                && let Ok(job) = self.rx.try_recv()
            {
                batch.add(job);
            }
            let done = begun.and_then(|()| opened(database)?.finish(&batch.moves, &Silent::new()));
            let Applied { replies, effects } = done.unwrap_or_else(|e| Applied {
                replies: vec![Err(e); batch.moves.len()],
                effects: Vec::new(),
            });
            let mut replies = replies.into_iter();
            for (n, answer) in batch.answers.drain(..) {
                // The caller may be gone; what was done is done.
                let _ = answer.send(replies.by_ref().take(n).collect());
            }
            if let Ok(database) = database {
                self.tell(database, effects);
                database.trim();
            }
        }
        for (query, answer) in batch.inspections.drain(..) {
            let _ = answer.send(opened(database).and_then(|d| d.inspect(&query)));
        }
    }

    /// Delivers the wake-ups. A promotion that reaches nobody is taken back and the next one
    /// told, until somebody alive has it.
    fn tell(&self, database: &mut Database, mut effects: Vec<(FullName, Effects)>) {
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
            match database.begin().and_then(|()| database.finish(&moves, &silent)) {
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
