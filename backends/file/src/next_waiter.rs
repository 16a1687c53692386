//! Whose turn it is.
//!
//! 1. A request takes the lock at once only if no living ticket is in the queue; else it takes a
//!    ticket.
//! 2. The first in the queue, and nobody else, waits inside `flock`.
//! 3. A waiter that is granted, or gives up in front, removes its ticket *and then* looks for the
//!    first ticket and tells its process. A request leaves its ticket *and then* looks. One of the
//!    two sees the other.

use std::io;
use std::path::Path;

use distlock_core::{Ask, Error, Locked, Patience, QueueStatus, ReqId};

use crate::blocker::Blocker;
use crate::errors::trouble;
use crate::hold::Ready;
use crate::live_processes::is_alive;
use crate::lockfile::LockFile;
use crate::pending::AnswerSender;
use crate::queue::{self, Ticket};
use crate::worker::{Spot, Waiter, Worker};

/// How often, and how long apart, a try looks again at a lock that is taken but not by anybody in
/// the file: an abandoned wait or a sweep has it for a moment, or a grant is being written. A tenth
/// of a second in all, since its holder may have to wait for a processor.
const GLIMPSES: u32 = 400;
const GLIMPSE_NANOS: i64 = 250_000;

impl Worker {
    /// A new request: granted at once, told that it is busy, or put in the queue.
    pub(crate) fn arrive(&mut self, spot: &mut Spot, ask: Ask, sender: AnswerSender) {
        let patient = ask.patience != Patience::Never;
        let first = spot.waiters.is_empty();
        match self.at_once(spot, patient) {
            Ok(Some(ready)) => {
                self.grant(spot, ready, None, Waiter { ask, sender }, 0);
                if spot.held.is_some() {
                    return;
                }
            }
            Ok(None) if patient => match self.queue(spot, &ask) {
                Ok(ticket) => {
                    spot.waiters.insert(ticket.clone(), Box::new(Waiter { ask, sender }));
                    if !first {
                        // Those before us have looked already; our place is behind them.
                        return self.news(spot, spot.waiters.range(ticket..));
                    }
                }
                Err(e) => drop(sender.answer(Err(e))),
            },
            Ok(None) => {
                let busy = Locked::Busy(self.status(spot, None));
                drop(sender.answer(Ok(busy)));
            }
            Err(e) => drop(sender.answer(Err(e))),
        }
        self.settle(spot);
    }

    /// The lock, if it is free and nobody is in the queue for it.
    fn at_once(&mut self, spot: &mut Spot, patient: bool) -> Result<Option<Ready>, Error> {
        if spot.held.is_some() || spot.ours.is_some() || !spot.waiters.is_empty() {
            return Ok(None);
        }
        if !self.living(&spot.line)?.is_empty() {
            return Ok(None);
        }
        match self.glimpse(spot, !patient) {
            Ok(Some(file)) => self.consider(spot, file),
            Ok(None) => Ok(None),
            Err(e) => Err(trouble("lock", &spot.path, e)),
        }
    }

    fn glimpse(&self, spot: &Spot, again: bool) -> io::Result<Option<LockFile>> {
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: GLIMPSE_NANOS };
        for _ in 0..GLIMPSES {
            let got = LockFile::try_lock(&spot.path)?;
            if got.is_some() || !again || self.is_accounted_for(spot) {
                return Ok(got);
            }
            // Not a deadline of anybody's: the kernel's own pause, with a held clock too.
            let _ = rustix::thread::nanosleep(&pause);
        }
        Ok(None)
    }

    fn queue(&mut self, spot: &Spot, ask: &Ask) -> Result<Ticket, Error> {
        let ticket = self.ticket(ask.req)?;
        queue::join(&spot.line, &ticket, ask).map_err(|e| {
            queue::leave(&spot.line, &ticket);
            trouble("stand in", &spot.line, e)
        })?;
        Ok(ticket)
    }

    /// Brings a lock forward as far as it goes: grants it, waits for it, or tells the next waiter.
    pub(crate) fn settle(&mut self, spot: &mut Spot) {
        if let Err(e) = self.try_settle(spot) {
            self.fail(spot, &e);
        }
        if spot.waiters.is_empty() {
            spot.ours = None;
            Self::no_use_for_blocker(spot);
        } else {
            self.news(spot, spot.waiters.iter().take(1));
        }
    }

    /// A wait that nobody wants ends by itself; an idle thread ends now.
    fn no_use_for_blocker(spot: &mut Spot) {
        spot.blocker.take_if(|b| !b.busy);
        if let Some(blocker) = &spot.blocker {
            blocker.no_use();
        }
    }

    fn try_settle(&mut self, spot: &mut Spot) -> Result<(), Error> {
        loop {
            let mut line = self.living(&spot.line)?;
            spot.head = line.first().cloned();
            let Some(head) = spot.head.clone() else {
                if spot.waiters.is_empty() {
                    return Ok(());
                }
                self.queue_again(spot)?;
                continue;
            };
            if !spot.waiters.contains_key(&head) {
                if head.session() == self.own() {
                    // Left behind when it could not be removed.
                    queue::leave(&spot.line, &head);
                    if queue::has(&spot.line, &head) {
                        return Ok(());
                    }
                    continue;
                }
                spot.ours = None;
                self.tell(spot, &head);
                return Ok(());
            }
            // The first in the queue is one of ours. Where the holder is too, its release comes here.
            if spot.held.is_some() {
                return Ok(());
            }
            let file = match spot.ours.take() {
                Some(file) => file,
                None => match LockFile::try_lock(&spot.path) {
                    Ok(Some(file)) => file,
                    Ok(None) => return self.block(spot),
                    Err(e) => return Err(trouble("lock", &spot.path, e)),
                },
            };
            let Some(ready) = self.consider(spot, file)? else { return Ok(()) };
            let Some(waiter) = spot.waiters.remove(&head) else { return Ok(()) };
            line.remove(0);
            spot.moved = true;
            self.grant(spot, ready, Some(&head), *waiter, line.len());
            // Once more: the next one is told, or takes what a vanished one left.
        }
    }

    fn block(&mut self, spot: &mut Spot) -> Result<(), Error> {
        let blocker = match spot.blocker.take() {
            Some(blocker) => blocker,
            None => Blocker::start(spot.stem.clone(), spot.path.clone(), self.tx.clone())
                .map_err(|e| trouble("start a thread to wait for", &spot.path, e).transient())?,
        };
        spot.blocker.insert(blocker).want();
        Ok(())
    }

    /// The kernel gave the lock to the thread that waited for it; nothing, if that thread had no
    /// use for it any more.
    pub(crate) fn got(&mut self, spot: &mut Spot, got: io::Result<Option<LockFile>>) {
        if let Some(blocker) = &mut spot.blocker {
            blocker.busy = false;
        }
        match got {
            Ok(Some(file)) if spot.held.is_none() && spot.ours.is_none() => spot.ours = Some(file),
            Ok(file) => drop(file),
            Err(e) => return self.fail(spot, &trouble("wait for", &spot.path, e)),
        }
        self.settle(spot);
    }

    /// Takes a waiter out of the queue; answers where it stood, if it still stood there.
    pub(crate) fn withdraw(&mut self, spot: &mut Spot, req: ReqId) -> Option<QueueStatus> {
        let ticket = spot.waiters.iter().find(|(_, w)| w.ask.req == req)?.0.clone();
        let line = queue::all(&spot.line).unwrap_or_default();
        let ahead = line.partition_point(|t| *t < ticket);
        let status = self.status(spot, Some(u32::try_from(ahead).unwrap_or(u32::MAX)));
        spot.waiters.remove(&ticket);
        spot.moved = true;
        queue::leave(&spot.line, &ticket);
        if ahead == 0 {
            self.settle(spot);
        } else if spot.waiters.is_empty() {
            Self::no_use_for_blocker(spot);
        }
        Some(status)
    }

    /// The queue of a lock from its first living ticket on.
    pub(crate) fn living(&self, line: &Path) -> Result<Vec<Ticket>, Error> {
        let tickets = queue::from_first_alive(line, &self.sessions, self.own());
        tickets.map_err(|e| trouble("read", line, e))
    }

    /// Somebody emptied the queue under us: everybody stands again where they stood.
    fn queue_again(&mut self, spot: &mut Spot) -> Result<(), Error> {
        let before = std::mem::take(&mut spot.waiters);
        for (old, waiter) in before {
            let same = self.hearing_session()?.id == old.session();
            let ticket = if same { old } else { self.ticket(waiter.ask.req)? };
            let stands = queue::join(&spot.line, &ticket, &waiter.ask);
            spot.waiters.insert(ticket, waiter);
            stands.map_err(|e| trouble("stand in", &spot.line, e))?;
        }
        Ok(())
    }

    /// The look once a second: a head that died, a message that was lost, news for waiters.
    pub(crate) fn look_after(&mut self, spot: &mut Spot) {
        if spot.waiters.keys().next().is_some_and(|t| !queue::has(&spot.line, t))
            && let Err(e) = self.queue_again(spot)
        {
            return self.fail(spot, &e);
        }
        let calm = match &spot.head {
            // Ours, and either the holder is too or a thread waits inside flock. That file may have
            // been removed by hand: then the lock at the path is another one.
            Some(head) if spot.waiters.contains_key(head) => {
                spot.held.is_some() || spot.ours.is_some() || {
                    spot.ours = LockFile::try_lock(&spot.path).ok().flatten();
                    spot.ours.is_none()
                }
            }
            Some(head) => {
                queue::has(&spot.line, head)
                    && is_alive(&self.sessions, head.session()).unwrap_or(true)
            }
            None => false,
        };
        if !calm {
            self.settle(spot);
        }
        if !calm || std::mem::take(&mut spot.moved) {
            self.news(spot, spot.waiters.iter());
        }
    }

    /// Tells some of our waiters where they stand.
    fn news<'a>(&self, spot: &Spot, waiters: impl Iterator<Item = (&'a Ticket, &'a Box<Waiter>)>) {
        let line = queue::all(&spot.line).unwrap_or_default();
        let status = self.status(spot, None);
        for (ticket, waiter) in waiters {
            waiter.sender.news(&status, line.partition_point(|t| t < ticket));
        }
    }

    /// Answers every waiter of this client with an error, and leaves the queue.
    pub(crate) fn fail(&mut self, spot: &mut Spot, e: &Error) {
        for (ticket, waiter) in std::mem::take(&mut spot.waiters) {
            queue::leave(&spot.line, &ticket);
            drop(waiter.sender.answer(Err(e.clone())));
        }
    }
}
