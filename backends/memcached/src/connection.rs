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
/// At most so many bytes wait to be sent; what comes then waits in the channel.
const ENOUGH: usize = 1 << 20;

type Answer = oneshot::Sender<Result<Vec<Reply>, Error>>;

enum Job {
    Call(Vec<Command>, Answer),
    Quit(Answer),
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
        let line = Line { address, clock, connected: connected.clone(), rx };
        engine::spawn(line.run());
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
        let (tx, rx) = oneshot::channel();
        if self.jobs.send(Job::Quit(tx)).is_ok() {
            let _ = rx.await;
        }
    }
}

/// The other end of a [`Link`].
struct Line {
    address: String,
    clock: Clock,
    connected: Arc<AtomicU64>,
    rx: mpsc::UnboundedReceiver<Job>,
}

impl Line {
    async fn run(mut self) {
        while let Some(job) = self.rx.recv().await {
            let (commands, answer) = match job {
                Job::Call(commands, answer) => (commands, answer),
                Job::Quit(done) => return drop(done.send(Ok(Vec::new()))),
            };
            if answer.is_closed() {
                continue;
            }
            match handshake::connect(&self.address, &self.clock).await {
                Ok(stream) => {
                    let on = self.connected.fetch_add(1, Ordering::AcqRel) + 1;
                    let mut open = Open::new(stream, self.clock.clone(), on);
                    open.take(commands, answer);
                    match open.serve(&mut self.rx).await {
                        End::Lost => {}
                        End::Quit(done) => return drop(done.map(|d| d.send(Ok(Vec::new())))),
                    }
                }
                Err(e) => {
                    let _ = answer.send(Err(e.clone()));
                    // Whoever came meanwhile waited for this very attempt.
                    while let Ok(job) = self.rx.try_recv() {
                        match job {
                            Job::Call(_, answer) => drop(answer.send(Err(e.clone()))),
                            Job::Quit(done) => return drop(done.send(Ok(Vec::new()))),
                        }
                    }
                }
            }
        }
    }
}

/// Why a connection is over.
enum End {
    /// It was lost; another one is made for the next call.
    Lost,
    /// Nobody wants it any more.
    Quit(Option<Answer>),
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

/// An open connection.
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
}

impl Open {
    fn new(stream: TcpStream, clock: Clock, on: u64) -> Self {
        let (read, write) = stream.into_split();
        let (flights, out, got) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { clock, read, write, flights, out, got, number: 0, on }
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

    async fn serve(&mut self, rx: &mut mpsc::UnboundedReceiver<Job>) -> End {
        let mut quit = None;
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(done) = quit.take() {
                if self.flights.is_empty() {
                    return End::Quit(done);
                }
                quit = Some(done);
            }
            let first = self.flights.front().map_or(BootInstant::FAR, |f| f.until);
            tokio::select! {
                read = self.read.read(&mut chunk) => match read {
                    Ok(0) => return self.fail(&errors::cut(None), quit),
                    Ok(n) => {
                        self.got.extend_from_slice(&chunk[..n]);
                        if let Err(e) = self.hear() {
                            return self.fail(&e, quit);
                        }
                    }
                    Err(e) => return self.fail(&errors::cut(Some(e)), quit),
                },
                written = self.write.write(&self.out), if !self.out.is_empty() => match written {
                    Ok(n) => drop(self.out.drain(..n)),
                    Err(e) => return self.fail(&errors::cut(Some(e)), quit),
                },
                job = rx.recv(), if quit.is_none() && self.out.len() < ENOUGH => {
                    self.accept(job, rx, &mut quit);
                }
                () = self.clock.sleep_until(first), if !self.flights.is_empty() => {
                    return self.fail(&errors::late(CALL), quit);
                }
            }
        }
    }

    /// Takes a job and whatever else waits, so that all of it leaves in one packet.
    fn accept(
        &mut self,
        job: Option<Job>,
        rx: &mut mpsc::UnboundedReceiver<Job>,
        quit: &mut Option<Option<Answer>>,
    ) {
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Some(Job::Call(commands, answer)) => self.take(commands, answer),
                Some(Job::Quit(done)) => return *quit = Some(Some(done)),
                None => return *quit = Some(None),
            }
            if self.out.len() < ENOUGH {
                next = rx.try_recv().ok().map(Some);
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

    /// Tells everybody who waits; the connection is closed when this is dropped.
    fn fail(&mut self, e: &Error, quit: Option<Option<Answer>>) -> End {
        tracing::debug!(error = %e, waiting = self.flights.len(), "connection lost");
        for flight in self.flights.drain(..) {
            let _ = flight.answer.send(Err(e.clone()));
        }
        quit.map_or(End::Lost, End::Quit)
    }
}
