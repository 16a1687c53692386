//! The one thread that does the file work of a store: it takes commands and never waits for a lock.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use distlock_core::{
    Alive, Ask, BootInstant, Clock, Error, FullName, LossReason, QueueStatus, ReqId, engine,
};
use tokio::sync::oneshot;

use crate::blocker::Blocker;
use crate::errors::{closed, trouble};
use crate::file_name::Stem;
use crate::hold::Held;
use crate::live_processes::{Session, is_alive};
use crate::lockfile::{LockFile, peek};
use crate::pending::AnswerSender;
use crate::queue::Ticket;
use crate::record::Phase;
use crate::sweep::Sweeper;
use crate::tokens::Tokens;

/// How often a waiting client looks after what no datagram tells: a dead head, a lost message.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) enum Cmd {
    /// A new request.
    Lock { ask: Ask, sender: AnswerSender },
    /// About one lock; dropped when this client has nothing to do with it any more.
    At(Stem, LockCmd),
    /// The look once a second at every lock that is waited for.
    Look,
    /// Removes idle lock files; answers how many.
    Sweep { at_most: usize, reply: oneshot::Sender<Result<usize, Error>> },
    /// Ends the worker.
    Close { reply: Option<oneshot::Sender<()>> },
}

/// A command about a lock that this client waits for or holds. A hold is known by its serial number.
pub(crate) enum LockCmd {
    /// Patience ran out. Answered with the request's position; not at all when it was granted meanwhile.
    GiveUp(ReqId, oneshot::Sender<QueueStatus>),
    /// The caller of this request has gone.
    Cancel(ReqId),
    /// Ends a hold.
    Unlock { serial: u64, linger: bool, reply: Option<oneshot::Sender<Result<(), Error>>> },
    /// Asks whether a hold is still there.
    Alive(u64, oneshot::Sender<Alive>),
    /// The blocked thread has the lock.
    Got(io::Result<Option<LockFile>>),
    /// Another process says that one of ours is first in the queue, or a `min_hold` or a lock-delay is
    /// over.
    Settle,
}

pub(crate) struct Waiter {
    pub(crate) ask: Ask,
    pub(crate) sender: AnswerSender,
}

/// Everything this client knows of one lock. It is forgotten when nothing is left in it.
pub(crate) struct Spot {
    pub(crate) stem: Stem,
    pub(crate) lock: FullName,
    pub(crate) path: PathBuf,
    pub(crate) line: PathBuf,
    /// The waiters of this client, in order.
    pub(crate) waiters: BTreeMap<Ticket, Box<Waiter>>,
    pub(crate) held: Option<Held>,
    /// The kernel's lock is ours but nobody has been granted it yet.
    pub(crate) ours: Option<LockFile>,
    pub(crate) blocker: Option<Blocker>,
    /// The first in the queue at the last look.
    pub(crate) head: Option<Ticket>,
    /// The one we last told that it is first.
    pub(crate) told: Option<Ticket>,
    /// Somebody's place in the queue has changed since the last news.
    pub(crate) moved: bool,
}

impl Spot {
    fn new(lock: FullName, stem: Stem, dir: &Path) -> Self {
        Self {
            path: stem.lock_file(dir),
            line: stem.line(dir),
            stem,
            lock,
            waiters: BTreeMap::new(),
            held: None,
            ours: None,
            blocker: None,
            head: None,
            told: None,
            moved: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
            && self.held.is_none()
            && self.ours.is_none()
            && !self.blocker.as_ref().is_some_and(|b| b.busy)
    }
}

pub(crate) struct Worker {
    pub(crate) dir: PathBuf,
    pub(crate) sessions: PathBuf,
    pub(crate) boot: String,
    pub(crate) clock: Clock,
    pub(crate) tokens: Tokens,
    pub(crate) sweeper: Sweeper,
    pub(crate) tx: Sender<Cmd>,
    pub(crate) spots: HashMap<Stem, Spot>,
    /// Rises with every grant: a release can only meet its own.
    pub(crate) serial: u64,
    session: Option<Session>,
    /// Dropping it ends the listening.
    hearing: Option<oneshot::Sender<()>>,
    last_ticket: u64,
    looking: bool,
}

impl Worker {
    pub(crate) fn new(
        dir: PathBuf,
        boot: String,
        clock: Clock,
        tokens: Tokens,
        retention: Duration,
        tx: Sender<Cmd>,
    ) -> Self {
        Self {
            sessions: dir.join("sessions"),
            sweeper: Sweeper::new(retention),
            dir,
            boot,
            clock,
            tokens,
            tx,
            spots: HashMap::new(),
            serial: 0,
            session: None,
            hearing: None,
            last_ticket: 0,
            looking: false,
        }
    }

    /// Runs until [`Cmd::Close`].
    pub(crate) fn run(mut self, commands: Receiver<Cmd>) {
        while let Ok(cmd) = commands.recv() {
            match cmd {
                Cmd::Lock { ask, sender } => self.lock(ask, sender),
                // A lock that comes for a name nobody here knows goes free by being dropped.
                Cmd::At(stem, cmd) => self.at(&stem, |w, spot| w.handle(spot, cmd)),
                Cmd::Look => self.look(),
                Cmd::Sweep { at_most, reply } => {
                    let _ = reply.send(self.sweep(at_most));
                }
                Cmd::Close { reply } => {
                    self.close();
                    // The channel goes first, so that the caller finds it closed once it has the
                    // answer.
                    drop(commands);
                    if let Some(reply) = reply {
                        let _ = reply.send(());
                    }
                    return;
                }
            }
            self.keep_looking();
        }
    }

    fn handle(&mut self, spot: &mut Spot, cmd: LockCmd) {
        match cmd {
            LockCmd::GiveUp(req, reply) => {
                if let Some(status) = self.withdraw(spot, req) {
                    let _ = reply.send(status);
                }
            }
            LockCmd::Cancel(req) => drop(self.withdraw(spot, req)),
            LockCmd::Unlock { serial, linger, reply } => self.unlock(spot, serial, linger, reply),
            LockCmd::Alive(serial, reply) => drop(reply.send(self.alive(spot, serial))),
            LockCmd::Got(got) => self.got(spot, got),
            LockCmd::Settle => self.settle(spot),
        }
    }

    /// Does something about one lock, if this client has anything to do with it.
    pub(crate) fn at(&mut self, stem: &Stem, work: impl FnOnce(&mut Self, &mut Spot)) {
        if let Some(mut spot) = self.spots.remove(stem) {
            work(self, &mut spot);
            self.put(spot);
        }
    }

    fn put(&mut self, spot: Spot) {
        if !spot.is_empty() {
            self.spots.insert(spot.stem.clone(), spot);
        }
    }

    fn lock(&mut self, ask: Ask, sender: AnswerSender) {
        let stem = Stem::of(&ask.lock);
        let known = self.spots.remove(&stem);
        let mut spot = known.unwrap_or_else(|| Spot::new(ask.lock.clone(), stem, &self.dir));
        let fresh = !spot.path.exists();
        self.arrive(&mut spot, ask, sender);
        self.put(spot);
        if fresh {
            // A request that makes a file sweeps some that are idle.
            self.sweep_quietly();
        }
    }

    /// This client's session, started when it is first needed: a client that only looks has none.
    pub(crate) fn session(&mut self) -> Result<&Session, Error> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Session::start(&self.dir)?,
        };
        Ok(self.session.insert(session))
    }

    /// A session that can be told of its turn. A sign of life that somebody removed is replaced:
    /// without it others take our tickets for those of the dead.
    pub(crate) fn hearing_session(&mut self) -> Result<&Session, Error> {
        if self.session()?.is_seen() && self.hearing.is_some() {
            return self.session();
        }
        if !self.session()?.is_seen() {
            self.session = None;
        }
        let socket = self.session()?.listen();
        let socket = socket.map_err(|e| trouble("listen in", &self.sessions, e))?;
        let (stop, stopped) = oneshot::channel();
        engine::spawn(hear(socket, stopped, self.tx.clone()));
        self.hearing = Some(stop);
        self.session()
    }

    /// The id of a session that surely is the caller's own; empty before there is one.
    pub(crate) fn own(&self) -> &str {
        self.session.as_ref().map_or("", |s| &s.id)
    }

    /// A ticket after every earlier one of this client, also while the clock stands.
    pub(crate) fn ticket(&mut self, req: ReqId) -> Result<Ticket, Error> {
        self.last_ticket = self.clock.now().as_nanos().max(self.last_ticket + 1);
        let at = BootInstant::from_nanos(self.last_ticket);
        Ok(Ticket::new(at, &self.hearing_session()?.id, req))
    }

    /// Tells a ticket's process that it is first in the queue; once is enough.
    pub(crate) fn tell(&mut self, spot: &mut Spot, ticket: &Ticket) {
        if spot.told.as_ref() != Some(ticket)
            && let Ok(session) = self.session()
            && session.tell(ticket.session(), spot.stem.as_str())
        {
            spot.told = Some(ticket.clone());
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Comes back to a lock at a moment of the boot clock.
    pub(crate) fn come_back(&self, spot: &Spot, at_micros: u64) {
        let at = BootInstant::from_nanos(at_micros.saturating_mul(1000));
        let (clock, tx, stem) = (self.clock.clone(), self.tx.clone(), spot.stem.clone());
        engine::spawn(async move {
            clock.sleep_until(at).await;
            let _ = tx.send(Cmd::At(stem, LockCmd::Settle));
        });
    }

    /// The holder, as the lock's file says.
    pub(crate) fn status(&self, spot: &Spot, ahead: Option<u32>) -> QueueStatus {
        let now = self.now();
        let record = spot.held.as_ref().map(|h| h.record.clone()).or_else(|| peek(&spot.path));
        let record = record.filter(|r| r.boot == self.boot);
        let left = record.as_ref().and_then(|r| r.left(now, &self.boot));
        let hold = record.and_then(|r| r.hold);
        QueueStatus { holder: hold.map(|h| h.seen(now, left)), ahead, left, note: None }
    }

    /// Whether the file names a holder that accounts for the lock being taken.
    pub(crate) fn is_accounted_for(&self, spot: &Spot) -> bool {
        peek(&spot.path).filter(|r| r.boot == self.boot).is_some_and(|r| {
            r.left(self.now(), &self.boot).is_some()
                || r.hold.is_some_and(|h| {
                    h.phase == Phase::Held && is_alive(&self.sessions, &h.session).unwrap_or(true)
                })
        })
    }

    fn alive(&self, spot: &Spot, serial: u64) -> Alive {
        match spot.held.as_ref().filter(|h| h.serial == serial).map(|h| h.file.is_current()) {
            Some(Ok(true)) => {
                let waiters = crate::queue::all(&spot.line).map_or(0, |line| line.len());
                Alive::Yes { waiters: u32::try_from(waiters).unwrap_or(u32::MAX) }
            }
            Some(Ok(false)) | None => Alive::No(LossReason::Gone),
            Some(Err(e)) => Alive::Unknown(trouble("look at", &spot.path, e)),
        }
    }

    /// One timer for all locks, and none while nobody waits.
    fn keep_looking(&mut self) {
        if !self.looking && self.spots.values().any(|s| !s.waiters.is_empty()) {
            self.looking = true;
            let (clock, tx) = (self.clock.clone(), self.tx.clone());
            engine::spawn(async move {
                clock.sleep(LOOK).await;
                let _ = tx.send(Cmd::Look);
            });
        }
    }

    fn look(&mut self) {
        self.looking = false;
        let waiting = self.spots.values().filter(|s| !s.waiters.is_empty());
        for stem in waiting.map(|s| s.stem.clone()).collect::<Vec<_>>() {
            self.at(&stem, Self::look_after);
        }
        self.sweep_quietly();
    }

    fn close(&mut self) {
        for stem in self.spots.keys().cloned().collect::<Vec<_>>() {
            self.at(&stem, |w, spot| {
                w.fail(spot, &closed());
                if let Some(held) = spot.held.take() {
                    let _ = w.let_go(held, true);
                }
                w.settle(spot);
            });
        }
        if let Some(session) = &self.session {
            session.end();
        }
    }
}

async fn hear(socket: UnixDatagram, mut stopped: oneshot::Receiver<()>, tx: Sender<Cmd>) {
    let socket = match tokio::net::UnixDatagram::from_std(socket) {
        Ok(socket) => socket,
        // The look once a second still finds whose turn it is.
        Err(e) => return tracing::warn!(error = %e, "cannot listen for wake-ups"),
    };
    let mut bytes = [0; 512];
    loop {
        let heard = tokio::select! {
            _ = &mut stopped => return,
            heard = socket.recv(&mut bytes) => heard,
        };
        if let Ok(n) = heard
            && let Ok(text) = std::str::from_utf8(&bytes[..n])
            && tx.send(Cmd::At(Stem::heard(text), LockCmd::Settle)).is_err()
        {
            return;
        }
    }
}
