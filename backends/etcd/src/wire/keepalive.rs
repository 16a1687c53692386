//! Keep-alives of all leases of a client over one stream, opened anew after a loss.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{ClockReading, Error, Kind, engine};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::link::{Link, OpenStream};
use super::proto::{LeaseKeepAliveRequest, LeaseResponse};

const PAUSE: Duration = Duration::from_millis(50);

struct Question {
    id: i64,
    answer: oneshot::Sender<Result<i64, Error>>,
}

/// The sending end of the stream. Dropping it ends the stream.
pub(crate) struct KeepAlives {
    tx: UnboundedSender<Question>,
    link: Arc<Link>,
}

impl KeepAlives {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let (tx, rx) = unbounded_channel();
        let all = link.clone();
        engine::spawn(async move { Stream { link: all, rx, pending: HashMap::new() }.run().await });
        Self { tx, link }
    }

    /// Keeps a lease alive. With its TTL in seconds, zero when it is gone, comes the moment before
    /// the very question left that was answered: from there the lease counts.
    pub(crate) async fn keep(
        &self,
        id: i64,
        now: impl Fn() -> ClockReading,
    ) -> Result<(ClockReading, i64), Error> {
        let end = self.link.end();
        loop {
            let (answer, said) = oneshot::channel();
            let (sent, pick) = (now(), self.link.members.pick());
            if self.tx.send(Question { id, answer }).is_err() {
                return Err(Error::new(Kind::Closed, "this client was closed"));
            }
            let until = self.link.clock.now().plus(self.link.attempt()).min(end);
            let trouble = match self.link.unless_silent(&pick, until, said).await {
                Some(Ok(Ok(ttl))) => return Ok((sent, ttl)),
                Some(Ok(Err(e))) => e,
                Some(Err(_)) => return Err(Error::new(Kind::Closed, "this client was closed")),
                None => {
                    // Silence: the stream moves on when the pick does.
                    self.link.members.failed(&pick, true);
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
    rx: UnboundedReceiver<Question>,
    /// Answers to one lease come in the order of the questions.
    pending: HashMap<i64, VecDeque<oneshot::Sender<Result<i64, Error>>>>,
}

impl Stream {
    async fn run(mut self) {
        while let Some(first) = self.rx.recv().await {
            let (tx, rx) = unbounded_channel();
            self.ask(&tx, first);
            let link = self.link.clone();
            let trouble = match link.stream(rx).await {
                Ok(stream) => match self.serve(&tx, stream).await {
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

    fn ask(&mut self, tx: &UnboundedSender<LeaseKeepAliveRequest>, question: Question) {
        self.pending.entry(question.id).or_default().push_back(question.answer);
        let _ = tx.send(LeaseKeepAliveRequest { id: question.id });
    }

    /// Serves until the stream is lost, and says why; `None` when the client is closed.
    async fn serve(
        &mut self,
        tx: &UnboundedSender<LeaseKeepAliveRequest>,
        mut stream: OpenStream<'_, LeaseResponse>,
    ) -> Option<Error> {
        loop {
            tokio::select! {
                biased;
                said = stream.next() => match said {
                    Ok(said) => {
                        let of = self.pending.get_mut(&said.id);
                        if let Some(answer) = of.and_then(VecDeque::pop_front) {
                            let _ = answer.send(Ok(said.ttl));
                        }
                        if self.pending.get(&said.id).is_some_and(VecDeque::is_empty) {
                            self.pending.remove(&said.id);
                        }
                    }
                    Err(trouble) => return Some(trouble),
                },
                question = self.rx.recv() => self.ask(tx, question?),
            }
        }
    }
}
