//! What this client has in all lines: who waits, what is held, what is to leave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::hold::{Cause, Hold, Leaving, Left, Waits};
use super::store::{Keeping, Lease};
use crate::backend::{Ask, Due, Grant, Key};
use crate::clock::BootInstant;
use crate::clock_reading::ClockReading;
use crate::error::{Error, Kind};
use crate::ids::{Owner, ReqId};
use crate::loss::LossReason;
use crate::name::FullName;
use crate::same_owner::SameOwner;
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
    pub(super) fn lose(&self, why: LossReason) {
        self.state().lost.get_or_insert(why);
        self.bell.notify_one();
    }
}

pub(super) struct Registry<P> {
    tables: Mutex<Tables<P>>,
    /// When the steward looks next.
    pub(super) wake: AtomicU64,
    /// Rung when it should look sooner.
    pub(super) hurry: Notify,
}

struct Tables<P> {
    waiting: HashMap<ReqId, Arc<Waiter<P>>>,
    /// Those who wait, by lock and owner.
    fellows: SameOwner<Waiter<P>>,
    /// By the request the store knows them by.
    holds: HashMap<ReqId, Hold<P>>,
    /// Which hold a request shares.
    shares: HashMap<ReqId, ReqId>,
    /// What an owner holds of a lock, the newest last. More than one when several shared requests
    /// were under way at once.
    by_owner: HashMap<(FullName, Owner), Vec<ReqId>>,
    leaving: HashMap<ReqId, Leaving<P>>,
    tended: bool,
}

/// One place in a heartbeat, and who waits there, if somebody does.
pub(super) type Beat<P> = (Option<Arc<Waiter<P>>>, Keeping<P>);

/// What an owner's request finds of its owner's.
pub(super) enum Entry<P> {
    /// It shares a hold from now on.
    Granted(Grant),
    /// A hold whose lease is to be renewed before it is shared.
    Stale(Keeping<P>),
    Nothing,
}

/// When the steward has something to do.
pub(super) struct Plan<P> {
    pub(super) beat: BootInstant,
    pub(super) pace: Duration,
    pub(super) next: BootInstant,
    /// What is to leave now.
    pub(super) due: Vec<Leaving<P>>,
}

impl<P> Default for Registry<P> {
    fn default() -> Self {
        let tables = Tables {
            waiting: HashMap::default(),
            fellows: SameOwner::default(),
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

impl<P: Clone> Registry<P> {
    fn tables(&self) -> MutexGuard<'_, Tables<P>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request has already: its own hold, or one of its owner's to enter again. A lease that
    /// was not renewed for long is to be `renewed` first: its holder may let it run out.
    ///
    /// # Errors
    /// When its owner holds the lock in another mode.
    pub(super) fn enter(
        &self,
        ask: &Ask,
        now: ClockReading,
        renewed: bool,
    ) -> Result<Entry<P>, Error> {
        let mut tables = self.tables();
        let tables = &mut *tables;
        if let Some(hold) = tables.shares.get(&ask.req).and_then(|e| tables.holds.get(e)) {
            return Ok(match hold.sound(now) {
                true => Entry::Granted(hold.replay(ask.req, now)),
                false => Entry::Nothing,
            });
        }
        // Asked before anything is made of it: most locks are held by nobody here.
        if tables.by_owner.is_empty() {
            return Ok(Entry::Nothing);
        }
        let entries = tables.by_owner.get(&(ask.lock.clone(), ask.owner.clone()));
        let sound = |e: &&ReqId| tables.holds.get(*e).is_some_and(|h| h.sound(now));
        let entry = entries.into_iter().flatten().rev().find(sound);
        let Some(hold) = entry.copied().and_then(|e| tables.holds.get_mut(&e)) else {
            return Ok(Entry::Nothing);
        };
        if hold.mode != ask.mode {
            let mode = hold.mode;
            return Err(Error::new(Kind::Usage, format!("this owner holds the lock as {mode}"))
                .with_hint("it would wait for itself: release it first, or use another owner"));
        }
        if !renewed && !hold.fresh(now) {
            return Ok(Entry::Stale(hold.keeping()));
        }
        hold.share(ask, now);
        tables.shares.insert(ask.req, hold.key.req);
        Ok(Entry::Granted(hold.grant(ask.req, 0)))
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
        let orphan = |l: &Leaving<P>| l.cause == Cause::Orphan && !l.under_way;
        if tables.leaving.get(&ask.req).is_some_and(orphan) {
            tables.leaving.remove(&ask.req);
        }
        tables.fellows.add(&ask.lock, &ask.owner, ask.req, waiter.clone());
        tables.waiting.insert(ask.req, waiter.clone());
        waiter
    }

    /// Takes a waiter off the list; false when it was not there any more.
    pub(super) fn unstand(&self, waiter: &Arc<Waiter<P>>) -> bool {
        let mut tables = self.tables();
        let there = tables.waiting.get(&waiter.key.req).is_some_and(|w| Arc::ptr_eq(w, waiter));
        if there {
            tables.unstand(&waiter.key.req);
        }
        there
    }

    /// A waiter holds from now on; its owner's other requests may enter.
    pub(super) fn hold(&self, hold: Hold<P>) {
        let mut tables = self.tables();
        tables.unstand(&hold.key.req);
        tables.fellows.of(&hold.key.lock, &hold.owner).for_each(|w| w.bell.notify_one());
        let owner = (hold.key.lock.clone(), hold.owner.clone());
        tables.by_owner.entry(owner).or_default().push(hold.key.req);
        for req in &hold.reqs {
            tables.shares.insert(*req, hold.key.req);
        }
        tables.holds.insert(hold.key.req, hold);
    }

    /// A request leaves whatever it has: released in order, or undone.
    pub(super) fn leave(&self, req: &ReqId, released: bool, now: ClockReading) -> Left<P> {
        let mut tables = self.tables();
        if let Some(waiter) = tables.unstand(req) {
            let joined = waiter.state().joined.clone();
            let key = waiter.key.clone();
            return Left::Leaving(Leaving::unjoined(key, joined, waiter.ttl, now));
        }
        // What it shares goes before its own entry: one that entered its owner's hold from the line
        // has both, and its entry leaves by itself.
        let Some(entry) = tables.shares.remove(req) else {
            // It has left, and its entry is what others of its owner hold by.
            if tables.holds.contains_key(req) {
                return Left::Shared;
            }
            let Some(leaving) = tables.leaving.get(req).cloned() else { return Left::Nothing };
            if !leaving.under_way {
                tables.leaving.remove(req);
            }
            return Left::Leaving(leaving);
        };
        let Some(hold) = tables.holds.get_mut(&entry) else { return Left::Nothing };
        hold.reqs.retain(|r| r != req);
        if !hold.reqs.is_empty() {
            if released {
                hold.promised = hold.free_at;
            }
            if released && hold.promised > now.boot {
                return Left::Promised(hold.clone());
            }
            return Left::Shared;
        }
        tables.strike(&entry).map_or(Left::Nothing, Left::Hold)
    }

    /// A hold is lost, for all who share it.
    pub(super) fn strike(&self, entry: &ReqId) -> Option<Hold<P>> {
        self.tables().strike(entry)
    }

    /// An entry is to leave later, unless somebody sees to that already.
    pub(super) fn leave_later(&self, leaving: Leaving<P>) {
        let mut tables = self.tables();
        if !tables.leaving.get(&leaving.key.req).is_some_and(|l| l.under_way) {
            tables.leaving.insert(leaving.key.req, leaving);
        }
    }

    /// Whether an entry is still to leave.
    pub(super) fn is_leaving(&self, entry: &ReqId) -> bool {
        self.tables().leaving.contains_key(entry)
    }

    /// An entry need not leave any more.
    pub(super) fn gone(&self, entry: &ReqId) {
        self.tables().leaving.remove(entry);
    }

    /// Forgets what is to leave: the client is closed. What nobody wants any more is told, to leave
    /// at once; the rest is left to its session.
    pub(super) fn close(&self) -> Vec<Leaving<P>> {
        let leaving = std::mem::take(&mut self.tables().leaving);
        self.hurry.notify_one();
        let unwanted = |l: &Leaving<P>| matches!(l.cause, Cause::Orphan | Cause::Unfinished);
        leaving.into_values().filter(unwanted).collect()
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
        Some(hold.keeping())
    }

    /// A hold was kept.
    pub(super) fn kept(&self, entry: &ReqId, lease: Lease) {
        if let Some(hold) = self.tables().holds.get_mut(entry) {
            hold.lease = lease;
        }
    }

    /// Everything that no renewal keeps: who waits, what lingers, and what was promised to last longer
    /// than those who share it may renew it.
    pub(super) fn beats(&self, now: BootInstant) -> Vec<Beat<P>> {
        let tables = self.tables();
        let waiting = tables.waiting.values().filter_map(|w| {
            let (place, lease) = w.state().joined.clone()?;
            let key = w.key.clone();
            Some((Some(w.clone()), Keeping { key, place, ttl: lease.ttl, held: false }))
        });
        let lingering = tables.leaving.values().filter(|l| l.lingers());
        let lingering = lingering.filter_map(|l| {
            let (key, place) = (l.key.clone(), l.place.clone()?);
            Some((None, Keeping { key, place, ttl: l.lease.ttl, held: false }))
        });
        let promised = tables.holds.values().filter(|h| h.promised > now);
        let promised = promised.map(|h| (None, h.keeping()));
        waiting.chain(lingering).chain(promised).collect()
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
        // They stay on the list while they are seen out, so that word of their end stops that.
        let mut due = Vec::new();
        for l in tables.leaving.values_mut().filter(|l| l.at <= now && !l.under_way) {
            l.under_way = true;
            due.push(l.clone());
        }
        let waiting =
            tables.waiting.values().filter_map(|w| w.state().joined.as_ref().map(|j| j.1));
        let lingering = tables.leaving.values().filter(|l| l.lingers());
        let promised = tables.holds.values().filter(|h| h.promised > now).map(|h| h.lease);
        let leases = waiting.chain(lingering.map(|l| l.lease)).chain(promised);
        let shortest = leases.map(|lease| lease.ttl).min();
        let later = tables.leaving.values().filter(|l| !l.under_way).map(|l| l.at).min();
        let leave = later.unwrap_or(BootInstant::FAR);
        if shortest.is_none() && later.is_none() && due.is_empty() {
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
    fn unstand(&mut self, req: &ReqId) -> Option<Arc<Waiter<P>>> {
        let waiter = self.waiting.remove(req)?;
        self.fellows.remove(&waiter.key.lock, &waiter.owner, req);
        Some(waiter)
    }

    fn strike(&mut self, entry: &ReqId) -> Option<Hold<P>> {
        let hold = self.holds.remove(entry)?;
        for req in &hold.reqs {
            self.shares.remove(req);
        }
        let key = (hold.key.lock.clone(), hold.owner.clone());
        if let Some(entries) = self.by_owner.get_mut(&key) {
            entries.retain(|e| e != entry);
            if entries.is_empty() {
                self.by_owner.remove(&key);
            }
        }
        Some(hold)
    }
}
