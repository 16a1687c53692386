//! The one connection of a client: calls from any thread, sent and answered in the order in which
//! they were made, on the library's own thread.
//!
//! It connects when there is something to send, and again after it was lost. Every call is answered
//! within [`CALL`]; one that may have reached the server and was not answered is told as unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, engine};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use crate::errors;
use crate::handshake;
use crate::wire::{Command, Reply, parse, shown};

/// How long a call may take, connecting not counted.
pub(crate) const CALL: Duration = Duration::from_secs(4);
/// Max bytes that wait to be sent; further calls wait in the channel.
const ENOUGH: usize = 1 << 20;

type Answer = oneshot::Sender<Result<Vec<Reply>, Error>>;

enum Job {
    Call(Vec<Command>, Answer),
    Quit,
}

/// A client's connection. Dropping it closes it after what was sent is answered.
pub(crate) struct Link {
    jobs: mpsc::UnboundedSender<Job>,
    connected: Arc<AtomicU64>,
}

impl Link {
    pub(crate) fn new(address: String, clock: Clock) -> Self {
        let (jobs, rx) = mpsc::unbounded_channel();
        let connected = Arc::<AtomicU64>::default();
        engine::spawn(run(address, clock, connected.clone(), rx));
        Self { jobs, connected }
    }

    /// How often it has connected. Two calls under the same number went one after the other.
    pub(crate) fn connected(&self) -> u64 {
        self.connected.load(Ordering::Acquire)
    }

    /// Sends commands together and waits for their answers, in order. None at all connects.
    ///
    /// # Errors
    /// When there is no connection, or it ends, or is silent.
    ///
    /// # Cancel safety
    /// What was not sent yet is not sent; what was sent takes effect.
    pub(crate) async fn call(&self, commands: Vec<Command>) -> Result<Vec<Reply>, Error> {
        let (tx, rx) = oneshot::channel();
        self.jobs.send(Job::Call(commands, tx)).map_err(|_| errors::closed())?;
        rx.await.unwrap_or_else(|_| Err(errors::closed()))
    }

    /// One command and its answer.
    pub(crate) async fn one(&self, command: Command) -> Result<Reply, Error> {
        let replies = self.call(vec![command]).await?;
        replies.into_iter().next().ok_or_else(|| errors::garbage("nothing"))
    }

    /// Closes the connection after what was sent before is answered.
    pub(crate) async fn quit(&self) {
        let _ = self.jobs.send(Job::Quit);
        self.jobs.closed().await;
    }
}

/// Serves the calls of a [`Link`] until it quits or is dropped.
async fn run(
    address: String,
    clock: Clock,
    connected: Arc<AtomicU64>,
    mut rx: mpsc::UnboundedReceiver<Job>,
) {
    while let Some(Job::Call(commands, answer)) = rx.recv().await {
        if answer.is_closed() {
            continue;
        }
        match handshake::connect(&address, &clock).await {
            Ok(stream) => {
                let on = connected.fetch_add(1, Ordering::AcqRel) + 1;
                let mut open = Open::new(stream, clock.clone(), on);
                open.take(commands, answer);
                open.serve(&mut rx).await;
                if open.quit {
                    return;
                }
            }
            Err(e) => {
                let _ = answer.send(Err(e.clone()));
                // Calls that came meanwhile waited for this very attempt.
                while let Ok(job) = rx.try_recv() {
                    match job {
                        Job::Call(_, answer) => drop(answer.send(Err(e.clone()))),
                        Job::Quit => return,
                    }
                }
            }
        }
    }
}

/// A call that was sent.
struct Flight {
    answer: Answer,
    /// The numbers of the commands still unanswered; none for one that was not sent.
    left: VecDeque<Option<u32>>,
    replies: Vec<Reply>,
    until: BootInstant,
}

impl Flight {
    /// Answers what was not sent because it built on another connection; whether all is answered.
    fn skip(&mut self) -> bool {
        while self.left.front() == Some(&None) {
            self.left.pop_front();
            self.replies.push(Reply::Changed);
        }
        self.left.is_empty()
    }
}

/// An open connection. Dropping it closes it.
struct Open {
    clock: Clock,
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    flights: VecDeque<Flight>,
    out: Vec<u8>,
    got: Vec<u8>,
    number: u32,
    /// Which connection of this client it is.
    on: u64,
    /// Nothing more is sent: the client was closed or dropped.
    quit: bool,
}

impl Open {
    fn new(stream: TcpStream, clock: Clock, on: u64) -> Self {
        let (read, write) = stream.into_split();
        let (flights, out, got) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { clock, read, write, flights, out, got, number: 0, on, quit: false }
    }

    fn take(&mut self, commands: Vec<Command>, answer: Answer) {
        // Its caller is gone, and nothing has left: the surest way to undo it.
        if answer.is_closed() {
            return;
        }
        if commands.is_empty() {
            return drop(answer.send(Ok(Vec::new())));
        }
        let mut left = VecDeque::with_capacity(commands.len());
        for command in &commands {
            if command.stale(self.on) {
                left.push_back(None);
                continue;
            }
            self.number = self.number.wrapping_add(1);
            command.encode(self.number, &mut self.out);
            left.push_back(Some(self.number));
        }
        let until = self.clock.now().plus(CALL);
        let mut flight = Flight { answer, left, replies: Vec::new(), until };
        match flight.skip() {
            true => drop(flight.answer.send(Ok(flight.replies))),
            false => self.flights.push_back(flight),
        }
    }

    /// Sends and answers calls until the connection is lost, or until everything that was asked before
    /// a quit is answered.
    async fn serve(&mut self, rx: &mut mpsc::UnboundedReceiver<Job>) {
        let mut chunk = [0; 16 * 1024];
        let lost = loop {
            if self.quit && self.flights.is_empty() {
                return;
            }
            let first = self.flights.front().map_or(BootInstant::FAR, |f| f.until);
            tokio::select! {
                read = self.read.read(&mut chunk) => match read {
                    Ok(0) => break errors::cut(None),
                    Ok(n) => {
                        self.got.extend_from_slice(&chunk[..n]);
                        if let Err(e) = self.hear() {
                            break e;
                        }
                    }
                    Err(e) => break errors::cut(Some(e)),
                },
                written = self.write.write(&self.out), if !self.out.is_empty() => match written {
                    Ok(n) => drop(self.out.drain(..n)),
                    Err(e) => break errors::cut(Some(e)),
                },
                job = rx.recv(), if !self.quit && self.out.len() < ENOUGH => {
                    self.accept(job.unwrap_or(Job::Quit), rx);
                }
                () = self.clock.sleep_until(first), if !self.flights.is_empty() => {
                    break Error::unanswered(CALL);
                }
            }
        };
        tracing::debug!(error = %lost, waiting = self.flights.len(), "connection lost");
        for flight in self.flights.drain(..) {
            let _ = flight.answer.send(Err(lost.clone()));
        }
    }

    /// Takes a job and whatever else waits, so that all of it leaves in one packet.
    fn accept(&mut self, job: Job, rx: &mut mpsc::UnboundedReceiver<Job>) {
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Job::Call(commands, answer) => self.take(commands, answer),
                Job::Quit => self.quit = true,
            }
            if !self.quit && self.out.len() < ENOUGH {
                next = rx.try_recv().ok();
            }
        }
    }

    /// Hands out the answers that are there.
    fn hear(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while let Some((reply, number, length)) =
            parse(&self.got[at..], self.on).map_err(|shown| errors::garbage(&shown))?
        {
            let text = shown(&self.got[at..at + length]);
            at += length;
            let asked = self.flights.front_mut().filter(|f| {
                let asked = f.left.front().copied().flatten();
                // A miss or an error may come without the number.
                let bare = matches!(reply, Reply::Missing | Reply::Trouble(_));
                number == asked || (number.is_none() && bare)
            });
            let Some(flight) = asked else { return Err(errors::garbage(&text)) };
            flight.left.pop_front();
            flight.replies.push(reply);
            if flight.skip()
                && let Some(flight) = self.flights.pop_front()
            {
                let _ = flight.answer.send(Ok(flight.replies));
            }
        }
        self.got.drain(..at);
        Ok(())
    }
}
