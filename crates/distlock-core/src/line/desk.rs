//! What this client has in all lines: who waits, what is held, what is to leave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::hold::{Cause, Hold, Leaving, Left, Waits};
use super::store::{Keeping, Lease};
use crate::clock::BootInstant;
use crate::error::{Error, Kind};
use crate::ids::{Owner, ReqId};
use crate::lost::Why;
use crate::moment::Moment;
use crate::name::FullName;
use crate::seam::{Ask, Due, Grant, Key};
use crate::simulation::HashMap;

/// One request in line.
pub(super) struct Waiter<P> {
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// Rung when it should look again. It keeps one ring.
    pub(super) bell: Notify,
    state: Mutex<Waits<P>>,
}

impl<P> Waiter<P> {
    pub(super) fn state(&self) -> MutexGuard<'_, Waits<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its place is gone: it is told at once.
    pub(super) fn lose(&self, why: Why) {
        self.state().lost.get_or_insert(why);
        self.bell.notify_one();
    }
}

pub(super) struct Desk<P> {
    tables: Mutex<Tables<P>>,
    /// When the steward looks next.
    pub(super) wake: AtomicU64,
    /// Rung when it should look sooner.
    pub(super) hurry: Notify,
}

struct Tables<P> {
    waiting: HashMap<ReqId, Arc<Waiter<P>>>,
    /// By the request the store knows them by.
    holds: HashMap<ReqId, Hold<P>>,
    /// Which hold a request shares.
    shares: HashMap<ReqId, ReqId>,
    by_owner: HashMap<(FullName, Owner), ReqId>,
    leaving: HashMap<ReqId, Leaving<P>>,
    tended: bool,
}

/// One place in a heartbeat, and who waits there, if somebody does.
pub(super) type Beat<P> = (Option<Arc<Waiter<P>>>, Keeping<P>);

/// When the steward has something to do.
pub(super) struct Plan<P> {
    pub(super) beat: BootInstant,
    pub(super) pace: Duration,
    pub(super) next: BootInstant,
    /// What is to leave now.
    pub(super) due: Vec<Leaving<P>>,
}

impl<P> Default for Desk<P> {
    fn default() -> Self {
        let tables = Tables {
            waiting: HashMap::default(),
            holds: HashMap::default(),
            shares: HashMap::default(),
            by_owner: HashMap::default(),
            leaving: HashMap::default(),
            tended: false,
        };
        let wake = AtomicU64::new(BootInstant::FAR.as_nanos());
        Self { tables: Mutex::new(tables), wake, hurry: Notify::new() }
    }
}

impl<P: Clone> Desk<P> {
    fn tables(&self) -> MutexGuard<'_, Tables<P>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request has already: its own hold, or one of its owner's to enter again.
    ///
    /// # Errors
    /// When its owner holds the lock in another mode.
    pub(super) fn enter(&self, ask: &Ask, now: Moment) -> Result<Option<Grant>, Error> {
        let mut tables = self.tables();
        let tables = &mut *tables;
        if let Some(hold) = tables.shares.get(&ask.req).and_then(|e| tables.holds.get(e)) {
            return Ok(hold.sound(now).then(|| hold.replay(ask.req, now)));
        }
        // Asked before anything is made of it: most locks are held by nobody here.
        if tables.by_owner.is_empty() {
            return Ok(None);
        }
        let entry = tables.by_owner.get(&(ask.lock.clone(), ask.owner.clone()));
        let Some(hold) = entry.and_then(|e| tables.holds.get_mut(e)) else { return Ok(None) };
        if !hold.sound(now) {
            return Ok(None);
        }
        if hold.mode != ask.mode {
            let mode = hold.mode;
            return Err(Error::new(Kind::Usage, format!("this owner holds the lock as {mode}"))
                .with_hint("it would wait for itself: release it first, or use another owner"));
        }
        hold.share(ask, now);
        tables.shares.insert(ask.req, hold.key.req);
        Ok(Some(hold.grant(ask.req, 0)))
    }

    /// Puts a request on the list, before it is sent: news may come before its answer.
    pub(super) fn stand(&self, ask: &Ask) -> Arc<Waiter<P>> {
        let waiter = Arc::new(Waiter {
            key: ask.key(),
            owner: ask.owner.clone(),
            ttl: ask.ttl,
            bell: Notify::new(),
            state: Mutex::default(),
        });
        let mut tables = self.tables();
        if tables.leaving.get(&ask.req).is_some_and(|l| l.cause == Cause::Orphan) {
            tables.leaving.remove(&ask.req);
        }
        tables.waiting.insert(ask.req, waiter.clone());
        waiter
    }

    /// Takes a waiter off the list; false when it was not there any more.
    pub(super) fn unstand(&self, waiter: &Arc<Waiter<P>>) -> bool {
        let mut tables = self.tables();
        let there = tables.waiting.get(&waiter.key.req).is_some_and(|w| Arc::ptr_eq(w, waiter));
        if there {
            tables.waiting.remove(&waiter.key.req);
        }
        there
    }

    /// A waiter holds from now on; its owner's other requests may enter.
    pub(super) fn hold(&self, hold: Hold<P>) {
        let mut tables = self.tables();
        tables.waiting.remove(&hold.key.req);
        for w in tables.waiting.values() {
            if w.owner == hold.owner && w.key.lock == hold.key.lock {
                w.bell.notify_one();
            }
        }
        tables.by_owner.insert((hold.key.lock.clone(), hold.owner.clone()), hold.key.req);
        for req in &hold.reqs {
            tables.shares.insert(*req, hold.key.req);
        }
        tables.holds.insert(hold.key.req, hold);
    }

    /// A request leaves whatever it has.
    pub(super) fn leave(&self, req: &ReqId) -> Left<P> {
        let mut tables = self.tables();
        if let Some(waiter) = tables.waiting.remove(req) {
            let joined = waiter.state().joined.clone();
            return joined.map_or(Left::Nothing, |(place, _)| Left::Place(place));
        }
        // What it shares goes before its own entry: one that entered its owner's hold from the line
        // has both, and its entry leaves by itself.
        let Some(entry) = tables.shares.remove(req) else {
            return tables.leaving.remove(req).map_or(Left::Nothing, Left::Leaving);
        };
        let Some(hold) = tables.holds.get_mut(&entry) else { return Left::Nothing };
        hold.reqs.retain(|r| r != req);
        if !hold.reqs.is_empty() {
            return Left::Shared;
        }
        tables.strike(&entry).map_or(Left::Nothing, Left::Hold)
    }

    /// A hold is lost, for all who share it.
    pub(super) fn strike(&self, entry: &ReqId) -> Option<Hold<P>> {
        self.tables().strike(entry)
    }

    /// An entry is to leave later.
    pub(super) fn leave_later(&self, leaving: Leaving<P>) {
        self.tables().leaving.insert(leaving.key.req, leaving);
    }

    /// An entry need not leave any more.
    pub(super) fn gone(&self, entry: &ReqId) {
        self.tables().leaving.remove(entry);
    }

    /// Forgets what is to leave: the client is closed.
    pub(super) fn close(&self) {
        self.tables().leaving.clear();
        self.hurry.notify_one();
    }

    pub(super) fn waiter(&self, req: &ReqId) -> Option<Arc<Waiter<P>>> {
        self.tables().waiting.get(req).cloned()
    }

    pub(super) fn ring_all(&self) {
        self.tables().waiting.values().for_each(|w| w.bell.notify_one());
    }

    /// The requests that share an entry's hold.
    pub(super) fn sharing(&self, entry: &ReqId) -> Vec<ReqId> {
        self.tables().holds.get(entry).map(|h| h.reqs.clone()).unwrap_or_default()
    }

    /// The place of what a request holds.
    pub(super) fn place(&self, req: &ReqId) -> Option<P> {
        let tables = self.tables();
        let hold = tables.shares.get(req).and_then(|e| tables.holds.get(e))?;
        Some(hold.place.clone())
    }

    /// What to keep for a renewal; `None` for a request that holds nothing.
    pub(super) fn keeping(&self, due: &Due) -> Option<Keeping<P>> {
        let tables = self.tables();
        let hold = tables.shares.get(&due.key.req).and_then(|e| tables.holds.get(e))?;
        let (key, place) = (hold.key.clone(), hold.place.clone());
        Some(Keeping { key, place, ttl: hold.lease.ttl, held: true })
    }

    /// A hold was kept.
    pub(super) fn kept(&self, entry: &ReqId, lease: Lease) {
        if let Some(hold) = self.tables().holds.get_mut(entry) {
            hold.lease = lease;
        }
    }

    /// Everything that no renewal keeps: who waits, and what lingers.
    pub(super) fn beats(&self) -> Vec<Beat<P>> {
        let tables = self.tables();
        let waiting = tables.waiting.values().filter_map(|w| {
            let (place, lease) = w.state().joined.clone()?;
            let key = w.key.clone();
            Some((Some(w.clone()), Keeping { key, place, ttl: lease.ttl, held: false }))
        });
        let lingering = tables.leaving.values().filter(|l| l.cause == Cause::Lingering);
        let lingering = lingering.filter_map(|l| {
            let (key, place) = (l.key.clone(), l.place.clone()?);
            Some((None, Keeping { key, place, ttl: l.lease.ttl, held: false }))
        });
        waiting.chain(lingering).collect()
    }

    /// Whether the caller is to start the steward: true for one at a time. One that sleeps past
    /// this moment is woken.
    pub(super) fn tend(&self, at: BootInstant) -> bool {
        if !std::mem::replace(&mut self.tables().tended, true) {
            return true;
        }
        if at.as_nanos() < self.wake.load(Ordering::Acquire) {
            self.hurry.notify_one();
        }
        false
    }

    /// What the steward has to do; `None` when there is nothing, and it ends.
    pub(super) fn plan(&self, beaten: BootInstant, now: BootInstant) -> Option<Plan<P>> {
        let mut tables = self.tables();
        let ripe = |l: &Leaving<P>| l.at <= now;
        let reqs: Vec<_> =
            tables.leaving.iter().filter(|(_, l)| ripe(l)).map(|(r, _)| *r).collect();
        let due: Vec<_> = reqs.iter().filter_map(|r| tables.leaving.remove(r)).collect();
        let waiting =
            tables.waiting.values().filter_map(|w| w.state().joined.as_ref().map(|j| j.1));
        let lingering = tables.leaving.values().filter(|l| l.cause == Cause::Lingering);
        let shortest = waiting.chain(lingering.map(|l| l.lease)).map(|lease| lease.ttl).min();
        let leave = tables.leaving.values().map(|l| l.at).min().unwrap_or(BootInstant::FAR);
        if shortest.is_none() && tables.leaving.is_empty() && due.is_empty() {
            tables.tended = false;
            return None;
        }
        let pace = shortest.map_or(Duration::MAX, |ttl| ttl / 3);
        let beat = beaten.plus(pace);
        let next = beat.min(leave);
        self.wake.store(next.as_nanos(), Ordering::Release);
        Some(Plan { beat, pace, next, due })
    }
}

impl<P> Tables<P> {
    fn strike(&mut self, entry: &ReqId) -> Option<Hold<P>> {
        let hold = self.holds.remove(entry)?;
        for req in &hold.reqs {
            self.shares.remove(req);
        }
        let key = (hold.key.lock.clone(), hold.owner.clone());
        // Lost and taken anew, it may be another hold by now.
        if self.by_owner.get(&key) == Some(entry) {
            self.by_owner.remove(&key);
        }
        Some(hold)
    }
}
