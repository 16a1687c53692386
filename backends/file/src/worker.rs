//! The one thread that does the file work of a store: it takes commands and never waits for a lock.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use distlock_core::backend::Ask;
use distlock_core::busy::QueueStatus;
use distlock_core::session::Alive;
use distlock_core::{BootInstant, Clock, Error, FullName, LossReason, ReqId, engine};
use tokio::sync::oneshot;

use crate::blocker::Blocker;
use crate::errors::{closed, trouble};
use crate::file_name::Stem;
use crate::hold::Held;
use crate::live_processes::{Session, is_alive};
use crate::lockfile::{LockFile, peek};
use crate::pending::Seat;
use crate::queue::Ticket;
use crate::record::Phase;
use crate::sweep::Sweeper;
use crate::tokens::Fence;

/// How often a waiting client looks after what no datagram tells: a dead head, a lost message.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) enum Cmd {
    Lock {
        ask: Ask,
        seat: Seat,
    },
    /// Patience ran out. Answered with where it stood; not at all when it was granted meanwhile.
    GiveUp {
        stem: Stem,
        req: ReqId,
        reply: oneshot::Sender<QueueStatus>,
    },
    /// Nobody waits for the answer any more.
    Cancel {
        stem: Stem,
        req: ReqId,
    },
    Unlock {
        stem: Stem,
        serial: u64,
        linger: bool,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
    Alive {
        stem: Stem,
        serial: u64,
        reply: oneshot::Sender<Alive>,
    },
    /// The blocked thread has the lock.
    Got {
        stem: Stem,
        got: io::Result<Option<LockFile>>,
    },
    /// Another process says that one of ours is first in line.
    Told {
        stem: Stem,
    },
    /// A `min_hold` or a lock-delay is over.
    Due {
        stem: Stem,
    },
    Look,
    Sweep {
        at_most: usize,
        reply: oneshot::Sender<Result<usize, Error>>,
    },
    Close {
        reply: Option<oneshot::Sender<()>>,
    },
}

pub(crate) struct Waiter {
    pub(crate) ask: Ask,
    pub(crate) seat: Seat,
}

/// Everything this client knows of one lock. It is forgotten when nothing is left in it.
pub(crate) struct Spot {
    pub(crate) stem: Stem,
    pub(crate) lock: FullName,
    pub(crate) path: PathBuf,
    pub(crate) line: PathBuf,
    /// Those of this client who wait, in order.
    pub(crate) waiters: BTreeMap<Ticket, Box<Waiter>>,
    pub(crate) held: Option<Held>,
    /// The kernel's lock is ours but nobody has been granted it yet.
    pub(crate) ours: Option<LockFile>,
    pub(crate) blocker: Option<Blocker>,
    /// The first in line at the last look.
    pub(crate) head: Option<Ticket>,
    /// The one we last told that it is first.
    pub(crate) told: Option<Ticket>,
    /// Somebody's place in line has changed since the last news.
    pub(crate) moved: bool,
}

impl Spot {
    fn new(lock: FullName, stem: Stem, dir: &std::path::Path) -> Self {
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
    pub(crate) fence: Fence,
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
        fence: Fence,
        retention: Duration,
        tx: Sender<Cmd>,
    ) -> Self {
        Self {
            sessions: dir.join("sessions"),
            sweeper: Sweeper::new(retention),
            dir,
            boot,
            clock,
            fence,
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
                Cmd::Lock { ask, seat } => self.lock(ask, seat),
                Cmd::GiveUp { stem, req, reply } => {
                    self.at(&stem, |w, spot| {
                        if let Some(status) = w.withdraw(spot, req) {
                            let _ = reply.send(status);
                        }
                    });
                }
                Cmd::Cancel { stem, req } => self.at(&stem, |w, spot| {
                    w.withdraw(spot, req);
                }),
                Cmd::Unlock { stem, serial, linger, reply } => {
                    self.at(&stem, |w, spot| w.unlock(spot, serial, linger, reply));
                }
                Cmd::Alive { stem, serial, reply } => {
                    self.at(&stem, |w, spot| {
                        let _ = reply.send(w.alive(spot, serial));
                    });
                }
                Cmd::Got { stem, got } => {
                    // One that nobody here knows goes free by being dropped.
                    self.at(&stem, |w, spot| w.got(spot, got));
                }
                Cmd::Told { stem } | Cmd::Due { stem } => {
                    self.at(&stem, |w, spot| w.settle(spot));
                }
                Cmd::Look => self.look(),
                Cmd::Sweep { at_most, reply } => {
                    let _ = reply.send(self.sweep(at_most));
                }
                Cmd::Close { reply } => {
                    self.close();
                    // The channel goes first, so that whoever hears the answer finds it closed.
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

    fn lock(&mut self, ask: Ask, seat: Seat) {
        let stem = Stem::of(&ask.lock);
        let known = self.spots.remove(&stem);
        let mut spot = known.unwrap_or_else(|| Spot::new(ask.lock.clone(), stem, &self.dir));
        let fresh = !spot.path.exists();
        self.arrive(&mut spot, ask, seat);
        self.put(spot);
        if fresh {
            // Who makes a file pays for those that are idle.
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

    /// Tells a ticket's process that it is first in line; once is enough.
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
            let _ = tx.send(Cmd::Due { stem });
        });
    }

    /// Who has the lock, as its file says.
    pub(crate) fn status(&self, spot: &Spot, ahead: Option<u32>) -> QueueStatus {
        let now = self.now();
        let record = spot.held.as_ref().map(|h| h.record.clone()).or_else(|| peek(&spot.path));
        let record = record.filter(|r| r.boot == self.boot);
        let left = record.as_ref().and_then(|r| r.left(now, &self.boot));
        let hold = record.and_then(|r| r.hold);
        QueueStatus { holder: hold.map(|h| h.seen(now, left)), ahead, left, note: None }
    }

    /// Whether the file names somebody who accounts for the lock being taken.
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

async fn hear(
    socket: std::os::unix::net::UnixDatagram,
    mut stopped: oneshot::Receiver<()>,
    tx: Sender<Cmd>,
) {
    let socket = match tokio::net::UnixDatagram::from_std(socket) {
        Ok(socket) => socket,
        // The look once a second still finds whose turn it is.
        Err(e) => return tracing::warn!(error = %e, "wake-ups cannot be heard"),
    };
    let mut bytes = [0; 512];
    loop {
        let heard = tokio::select! {
            _ = &mut stopped => return,
            heard = socket.recv(&mut bytes) => heard,
        };
        if let Ok(n) = heard
            && let Ok(text) = std::str::from_utf8(&bytes[..n])
            && tx.send(Cmd::Told { stem: Stem::heard(text) }).is_err()
        {
            return;
        }
    }
}
