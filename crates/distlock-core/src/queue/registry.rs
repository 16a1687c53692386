//! What this client has in all queues: its waiters, its holds, and the entries that are to leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::store::Keeping;
use crate::{
    Ask, BootInstant, ClockReading, Due, Error, FullName, Grant, HashMap, Key, Lease, LossReason,
    Mode, Mutex, Owner, ReqId, SameOwner, TokenRange,
};

/// One entry that holds.
#[derive(Clone)]
pub(super) struct HeldEntry<P> {
    /// The request the store knows it by.
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) place: P,
    pub(super) tokens: TokenRange,
    pub(super) lease: Lease,
    /// Before this a release frees nothing: the longest `min_hold` of all requests that entered.
    pub(super) free_at: BootInstant,
    /// The same, as of the last release of one that shared it: a later undo frees nothing before
    /// it.
    pub(super) promised: BootInstant,
    /// The requests that share it.
    pub(super) reqs: Vec<ReqId>,
}

impl<P: Clone> HeldEntry<P> {
    /// Whether it may still be believed in.
    pub(super) fn sound(&self, now: ClockReading) -> bool {
        !self.lease.left(now).is_zero()
    }

    /// Whether its lease was renewed as lately as that of a session that a join finds open.
    pub(super) fn fresh(&self, now: ClockReading) -> bool {
        now.since(self.lease.sent) < self.lease.ttl / 3
    }

    /// What the store is asked to keep.
    pub(super) fn keeping(&self) -> Keeping<P> {
        let (key, place) = (self.key.clone(), self.place.clone());
        Keeping { key, place, ttl: self.lease.ttl, held: true }
    }

    /// One more request shares it.
    pub(super) fn share(&mut self, ask: &Ask, now: ClockReading) {
        if !self.reqs.contains(&ask.req) {
            self.reqs.push(ask.req);
        }
        self.free_at = self.free_at.max(now.boot.plus(ask.min_hold));
    }

    pub(super) fn grant(&self, req: ReqId, waiters: u32) -> Grant {
        Grant { req, tokens: self.tokens, lease: self.lease, waiters }
    }

    /// The same grant once more, counted from now and no longer than before.
    pub(super) fn replay(&self, req: ReqId, now: ClockReading) -> Grant {
        Grant { lease: self.lease.recounted(now), ..self.grant(req, 0) }
    }
}

/// An entry that is to leave, and when.
#[derive(Clone)]
pub(super) struct Leaving<P> {
    pub(super) key: Key,
    /// `None` when its join was never answered.
    pub(super) place: Option<P>,
    pub(super) lease: Lease,
    pub(super) at: BootInstant,
    pub(super) cause: Cause,
    /// Somebody sees it out already.
    pub(super) under_way: bool,
    /// Several requests shared it.
    pub(super) shared: bool,
}

/// Why an entry is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Nobody waits for its turn any more, and nobody has undone it yet.
    Orphan,
    /// Released; its `min_hold` is not over.
    Lingering,
    /// An operator took it away. Its holder is told, and has until the end of its lease to stop.
    Revoked,
    /// Released or given up, without an answer.
    Unfinished,
}

impl<P> Leaving<P> {
    pub(super) fn of(hold: HeldEntry<P>, at: BootInstant, cause: Cause) -> Self {
        let shared = hold.reqs.len() > 1;
        let (key, place, lease) = (hold.key, Some(hold.place), hold.lease);
        Self { key, place, lease, at, cause, under_way: false, shared }
    }

    /// Of a request that stood in the queue, or whose join may yet arrive.
    pub(super) fn unjoined(
        key: Key,
        joined: Option<(P, Lease)>,
        ttl: Duration,
        now: ClockReading,
    ) -> Self {
        let unanswered = Lease { sent: now, ttl, margin: Duration::ZERO };
        let (place, lease) = joined.map_or((None, unanswered), |(p, lease)| (Some(p), lease));
        let (at, cause) = (now.boot, Cause::Unfinished);
        Self { key, place, lease, at, cause, under_way: false, shared: false }
    }

    /// Whether it must stay until its lease ends: it was taken away from several requests of one
    /// owner, and one that gives it back cannot know that all the others were told.
    pub(super) fn outlasts_a_release(&self) -> bool {
        self.cause == Cause::Revoked && self.shared && !self.under_way
    }

    /// Whether its session is to be kept for it.
    pub(super) fn lingers(&self) -> bool {
        self.cause == Cause::Lingering && !self.under_way
    }
}

/// What a request had that leaves.
pub(super) enum Departure<P> {
    /// Others share the hold still.
    Shared,
    /// The same, and it must last for the `min_hold` of one that was released.
    Promised(HeldEntry<P>),
    /// A hold, and it was the last request that shared it.
    Last(HeldEntry<P>),
    /// A place in the queue, or an entry that was to leave anyway.
    Leaving(Leaving<P>),
    /// Nothing that is known here.
    Nothing,
}

/// What became of a waiter's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits<P> {
    pub(super) joined: Option<(P, Lease)>,
    pub(super) lost: Option<LossReason>,
}

/// One request in the queue.
pub(super) struct Waiter<P> {
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// Rung when it should look again. It keeps one ring.
    pub(super) wake_up: Notify,
    pub(super) state: Mutex<Waits<P>>,
}

impl<P> Waiter<P> {
    /// Its place is gone: it is told at once.
    pub(super) fn lose(&self, why: LossReason) {
        self.state.lock().lost.get_or_insert(why);
        self.wake_up.notify_one();
    }
}

pub(super) struct Registry<P> {
    tables: Mutex<Tables<P>>,
    /// When the housekeeper looks next.
    pub(super) wake: AtomicU64,
    /// Rung when it should look sooner.
    pub(super) hurry: Notify,
}

struct Tables<P> {
    waiting: HashMap<ReqId, Arc<Waiter<P>>>,
    /// The waiters, by lock and owner.
    same_owner: SameOwner<Waiter<P>>,
    /// By the request the store knows them by.
    holds: HashMap<ReqId, HeldEntry<P>>,
    /// Which hold a request shares.
    shares: HashMap<ReqId, ReqId>,
    /// What an owner holds of a lock, the newest last. More than one when several shared requests
    /// were under way at once.
    by_owner: HashMap<(FullName, Owner), Vec<ReqId>>,
    leaving: HashMap<ReqId, Leaving<P>>,
    tended: bool,
}

/// One place in a heartbeat, and its waiter if it has one.
pub(super) type Beat<P> = (Option<Arc<Waiter<P>>>, Keeping<P>);

/// What an owner's request finds of its owner's.
pub(super) enum Reentry<P> {
    /// It shares a hold from now on.
    Granted(Grant),
    /// A hold whose lease is to be renewed before it is shared.
    Stale(Keeping<P>),
    Nothing,
}

/// When the housekeeper has something to do.
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
            same_owner: SameOwner::default(),
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
    ) -> Result<Reentry<P>, Error> {
        let mut tables = self.tables.lock();
        let tables = &mut *tables;
        if let Some(hold) = tables.shares.get(&ask.req).and_then(|e| tables.holds.get(e)) {
            return Ok(match hold.sound(now) {
                true => Reentry::Granted(hold.replay(ask.req, now)),
                false => Reentry::Nothing,
            });
        }
        // Asked before anything is made of it: most locks are held by nobody here.
        if tables.by_owner.is_empty() {
            return Ok(Reentry::Nothing);
        }
        let entries = tables.by_owner.get(&(ask.lock.clone(), ask.owner.clone()));
        let sound = |e: &&ReqId| tables.holds.get(*e).is_some_and(|h| h.sound(now));
        let entry = entries.into_iter().flatten().rev().find(sound);
        let Some(hold) = entry.copied().and_then(|e| tables.holds.get_mut(&e)) else {
            return Ok(Reentry::Nothing);
        };
        if hold.mode != ask.mode {
            return Err(Error::mode_differs(hold.mode));
        }
        if !renewed && !hold.fresh(now) {
            return Ok(Reentry::Stale(hold.keeping()));
        }
        hold.share(ask, now);
        tables.shares.insert(ask.req, hold.key.req);
        Ok(Reentry::Granted(hold.grant(ask.req, 0)))
    }

    /// Puts a request on the list, before it is sent: news may come before its answer.
    pub(super) fn stand(&self, ask: &Ask) -> Arc<Waiter<P>> {
        let waiter = Arc::new(Waiter {
            key: ask.key(),
            owner: ask.owner.clone(),
            ttl: ask.ttl,
            wake_up: Notify::new(),
            state: Mutex::new(Waits { joined: None, lost: None }),
        });
        let mut tables = self.tables.lock();
        let orphan = |l: &Leaving<P>| l.cause == Cause::Orphan && !l.under_way;
        if tables.leaving.get(&ask.req).is_some_and(orphan) {
            tables.leaving.remove(&ask.req);
        }
        tables.same_owner.add(&ask.lock, &ask.owner, ask.req, waiter.clone());
        tables.waiting.insert(ask.req, waiter.clone());
        waiter
    }

    /// Takes a waiter off the list; false when it was not there any more.
    pub(super) fn unstand(&self, waiter: &Arc<Waiter<P>>) -> bool {
        let mut tables = self.tables.lock();
        let there = tables.waiting.get(&waiter.key.req).is_some_and(|w| Arc::ptr_eq(w, waiter));
        if there {
            tables.unstand(&waiter.key.req);
        }
        there
    }

    /// A waiter holds from now on; its owner's other requests may enter.
    pub(super) fn hold(&self, hold: HeldEntry<P>) {
        let mut tables = self.tables.lock();
        tables.unstand(&hold.key.req);
        tables.same_owner.of(&hold.key.lock, &hold.owner).for_each(|w| w.wake_up.notify_one());
        let owner = (hold.key.lock.clone(), hold.owner.clone());
        tables.by_owner.entry(owner).or_default().push(hold.key.req);
        for req in &hold.reqs {
            tables.shares.insert(*req, hold.key.req);
        }
        tables.holds.insert(hold.key.req, hold);
    }

    /// A request leaves whatever it has: released in order, or undone.
    pub(super) fn leave(&self, req: &ReqId, released: bool, now: ClockReading) -> Departure<P> {
        let mut tables = self.tables.lock();
        if let Some(waiter) = tables.unstand(req) {
            let joined = waiter.state.lock().joined.clone();
            let key = waiter.key.clone();
            return Departure::Leaving(Leaving::unjoined(key, joined, waiter.ttl, now));
        }
        // What it shares goes before its own entry: one that entered its owner's hold from the
        // queue has both, and its entry leaves by itself.
        let Some(entry) = tables.shares.remove(req) else {
            // It has left, and its entry is what others of its owner hold by.
            if tables.holds.contains_key(req) {
                return Departure::Shared;
            }
            let Some(leaving) = tables.leaving.get(req).cloned() else { return Departure::Nothing };
            if !leaving.under_way {
                tables.leaving.remove(req);
            }
            return Departure::Leaving(leaving);
        };
        let Some(hold) = tables.holds.get_mut(&entry) else { return Departure::Nothing };
        hold.reqs.retain(|r| r != req);
        if !hold.reqs.is_empty() {
            if released {
                hold.promised = hold.free_at;
            }
            if released && hold.promised > now.boot {
                return Departure::Promised(hold.clone());
            }
            return Departure::Shared;
        }
        tables.strike(&entry).map_or(Departure::Nothing, Departure::Last)
    }

    /// A hold is lost, for all requests that share it.
    pub(super) fn strike(&self, entry: &ReqId) -> Option<HeldEntry<P>> {
        self.tables.lock().strike(entry)
    }

    /// An entry is to leave later, unless somebody sees to that already.
    pub(super) fn leave_later(&self, leaving: Leaving<P>) {
        let mut tables = self.tables.lock();
        if !tables.leaving.get(&leaving.key.req).is_some_and(|l| l.under_way) {
            tables.leaving.insert(leaving.key.req, leaving);
        }
    }

    /// Whether an entry is still to leave.
    pub(super) fn is_leaving(&self, entry: &ReqId) -> bool {
        self.tables.lock().leaving.contains_key(entry)
    }

    /// An entry need not leave any more.
    pub(super) fn gone(&self, entry: &ReqId) {
        self.tables.lock().leaving.remove(entry);
    }

    /// Forgets what is to leave: the client is closed. What nobody wants any more is told, to leave
    /// at once; the rest is left to its session.
    pub(super) fn close(&self) -> Vec<Leaving<P>> {
        let leaving = std::mem::take(&mut self.tables.lock().leaving);
        self.hurry.notify_one();
        let unwanted = |l: &Leaving<P>| matches!(l.cause, Cause::Orphan | Cause::Unfinished);
        leaving.into_values().filter(unwanted).collect()
    }

    pub(super) fn waiter(&self, req: &ReqId) -> Option<Arc<Waiter<P>>> {
        self.tables.lock().waiting.get(req).cloned()
    }

    pub(super) fn wake_all(&self) {
        self.tables.lock().waiting.values().for_each(|w| w.wake_up.notify_one());
    }

    /// The requests that share an entry's hold.
    pub(super) fn sharing(&self, entry: &ReqId) -> Vec<ReqId> {
        self.tables.lock().holds.get(entry).map(|h| h.reqs.clone()).unwrap_or_default()
    }

    /// The place of what a request holds.
    pub(super) fn place(&self, req: &ReqId) -> Option<P> {
        let tables = self.tables.lock();
        let hold = tables.shares.get(req).and_then(|e| tables.holds.get(e))?;
        Some(hold.place.clone())
    }

    /// What to keep for a renewal; `None` for a request that holds nothing.
    pub(super) fn keeping(&self, due: &Due) -> Option<Keeping<P>> {
        let tables = self.tables.lock();
        let hold = tables.shares.get(&due.key.req).and_then(|e| tables.holds.get(e))?;
        Some(hold.keeping())
    }

    /// A hold was kept.
    pub(super) fn kept(&self, entry: &ReqId, lease: Lease) {
        if let Some(hold) = self.tables.lock().holds.get_mut(entry) {
            hold.lease = lease;
        }
    }

    /// Everything that no renewal keeps: waiters, lingering entries, and holds that were promised
    /// to last longer than the requests that share them may renew them.
    pub(super) fn beats(&self, now: BootInstant) -> Vec<Beat<P>> {
        let tables = self.tables.lock();
        let waiting = tables.waiting.values().filter_map(|w| {
            let (place, lease) = w.state.lock().joined.clone()?;
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

    /// Whether the caller is to start the housekeeper: true for one at a time. One that sleeps past
    /// this moment is woken.
    pub(super) fn tend(&self, at: BootInstant) -> bool {
        if !std::mem::replace(&mut self.tables.lock().tended, true) {
            return true;
        }
        if at.as_nanos() < self.wake.load(Ordering::Acquire) {
            self.hurry.notify_one();
        }
        false
    }

    /// What the housekeeper has to do; `None` when there is nothing, and it ends.
    pub(super) fn plan(&self, beaten: BootInstant, now: BootInstant) -> Option<Plan<P>> {
        let mut tables = self.tables.lock();
        // They stay on the list while they are seen out, so that word of their end stops that.
        let mut due = Vec::new();
        for l in tables.leaving.values_mut().filter(|l| l.at <= now && !l.under_way) {
            l.under_way = true;
            due.push(l.clone());
        }
        let waiting =
            tables.waiting.values().filter_map(|w| w.state.lock().joined.as_ref().map(|j| j.1));
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
        self.same_owner.remove(&waiter.key.lock, &waiter.owner, req);
        Some(waiter)
    }

    fn strike(&mut self, entry: &ReqId) -> Option<HeldEntry<P>> {
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
