//! What this client holds, by request; and by lock and owner, for entering again.

use std::sync::Arc;

use super::{Generation, Round};
use crate::{
    Ask, BootInstant, ClockReading, FullName, HashMap, Key, Lease, LossReason, Mutex, Owner, ReqId,
    Token,
};

/// One hold: the nodes that make it, and the requests that share it.
pub(super) struct Slot {
    /// The request the nodes know it by.
    pub(super) key: Key,
    /// What was asked for; unknown for a hold that was taken up by its ticket, which therefore is
    /// never healed.
    pub(super) ask: Option<Arc<Ask>>,
    pub(super) round: Round,
    pub(super) token: Token,
    pub(super) state: Mutex<SlotState>,
}

#[derive(Clone)]
pub(super) struct SlotState {
    /// The ownership at each node, of those that count.
    pub(super) owned: Vec<Option<Generation>>,
    /// As of the last question that a majority answered.
    pub(super) lease: Lease,
    /// The requests that share it.
    pub(super) reqs: Vec<ReqId>,
    /// Released or lost: nothing is healed any more.
    pub(super) over: bool,
    /// The owner of its ticket may end it: it is shared with nobody.
    detached: bool,
    /// Before this a release frees nothing: the longest `min_hold` of all requests that entered it
    /// again. The nodes know that of the first.
    pub(super) free_at: BootInstant,
    /// The longest `min_hold` of all requests that entered it, that of the first included.
    pub(super) lasts: BootInstant,
    /// A request that shared it was released in order: a later undo minds the `min_hold` of all.
    pub(super) promised: bool,
    /// Somebody renews it until the longest `min_hold` is over.
    pub(super) kept_on: bool,
    /// Why it was lost, if it was. The requests that share it keep what is left of it at the nodes
    /// until each of them has left: one that is not told yet may still believe in it.
    pub(super) lost: Option<LossReason>,
}

impl SlotState {
    pub(super) fn new(owned: Vec<Option<Generation>>, lease: Lease) -> Self {
        Self {
            owned,
            lease,
            reqs: Vec::new(),
            over: false,
            detached: false,
            free_at: BootInstant::from_nanos(0),
            lasts: BootInstant::from_nanos(0),
            promised: false,
            kept_on: false,
            lost: None,
        }
    }

    /// Whether it may still be believed in.
    pub(super) fn sound(&self, now: ClockReading) -> bool {
        !self.lease.left(now).is_zero()
    }
}

#[derive(Default)]
pub(super) struct Holds(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_req: HashMap<ReqId, Arc<Slot>>,
    /// By the request the nodes know it by, which may have left it before others.
    by_key: HashMap<ReqId, Arc<Slot>>,
    by_owner: HashMap<(FullName, Owner), Arc<Slot>>,
    /// How many there may be before those that ran out are looked for again.
    sweep_at: usize,
}

/// Fewer are never worth a sweep.
const FEW: usize = 64;

/// What is left of a hold after a request has left it.
pub(super) enum Departure {
    /// Others share it still; whether it was lost.
    Shared { lost: bool },
    /// The same, and it must last for the `min_hold` of one that was released.
    Promised(Arc<Slot>),
    /// It was the last one.
    Last(Arc<Slot>),
    /// Nothing known of it.
    Nothing,
}

impl Holds {
    pub(super) fn of(&self, req: &ReqId) -> Option<Arc<Slot>> {
        self.0.lock().by_req.get(req).cloned()
    }

    /// What this owner holds of a lock, and still believes in.
    pub(super) fn of_owner(&self, ask: &Ask, now: ClockReading) -> Option<Arc<Slot>> {
        let tables = self.0.lock();
        let slot = tables.by_owner.get(&(ask.lock.clone(), ask.owner.clone()))?;
        let believed = slot.state.lock().sound(now);
        believed.then(|| slot.clone())
    }

    /// A new hold of this request. Now and then, holds that ran out are forgotten: when there are
    /// twice as many as were left last time, so that a grant costs no look at all of them.
    pub(super) fn insert(&self, slot: Arc<Slot>, req: ReqId, now: BootInstant) {
        let mut tables = self.0.lock();
        if tables.by_req.len() >= tables.sweep_at.max(FEW) {
            tables.sweep(now);
            tables.sweep_at = tables.by_req.len() * 2;
        }
        if let Some(ask) = &slot.ask {
            slot.state.lock().lasts = now.plus(ask.min_hold);
            tables.by_owner.insert((ask.lock.clone(), ask.owner.clone()), slot.clone());
        }
        slot.state.lock().reqs.push(req);
        tables.by_key.insert(slot.key.req, slot.clone());
        tables.by_req.insert(req, slot);
    }

    /// Another request shares a hold; false when it is over.
    pub(super) fn join(&self, slot: &Arc<Slot>, ask: &Ask, now: BootInstant) -> bool {
        let (req, mut tables) = (ask.req, self.0.lock());
        let mut state = slot.state.lock();
        if state.over || state.detached || state.reqs.is_empty() {
            return false;
        }
        if !ask.min_hold.is_zero() {
            state.free_at = state.free_at.max(now.plus(ask.min_hold));
            state.lasts = state.lasts.max(state.free_at);
        }
        if !state.reqs.contains(&req) {
            state.reqs.push(req);
        }
        drop(state);
        tables.by_req.insert(req, slot.clone());
        true
    }

    /// A request leaves its hold: released in order, or undone.
    pub(super) fn leave(&self, req: &ReqId, released: bool, now: BootInstant) -> Departure {
        let mut tables = self.0.lock();
        let Some(slot) = tables.by_req.remove(req) else {
            // It has left already, and is what the nodes know the hold of others by, or one that is
            // kept for its `min_hold`.
            return match tables.by_key.get(req) {
                Some(slot) => Departure::Shared { lost: slot.state.lock().lost.is_some() },
                None => Departure::Nothing,
            };
        };
        let mut state = slot.state.lock();
        state.reqs.retain(|r| r != req);
        if !state.reqs.is_empty() {
            state.promised |= released;
            let lost = state.lost.is_some();
            let lasts = released && !lost && now < state.lasts;
            drop(state);
            return if lasts { Departure::Promised(slot) } else { Departure::Shared { lost } };
        }
        state.over = true;
        drop(state);
        tables.forget(&slot);
        Departure::Last(slot)
    }

    /// Nobody enters the hold of this request any more; false when somebody shares it.
    pub(super) fn detach(&self, req: &ReqId) -> bool {
        let mut tables = self.0.lock();
        let Some(slot) = tables.by_req.get(req).cloned() else { return true };
        let mut state = slot.state.lock();
        if state.reqs.len() > 1 {
            return false;
        }
        state.detached = true;
        drop(state);
        tables.enter_no_more(&slot);
        true
    }

    /// A hold that everybody has left stays known by its request, while it is kept for its
    /// `min_hold`.
    pub(super) fn lingers(&self, slot: &Arc<Slot>) {
        self.0.lock().by_key.insert(slot.key.req, slot.clone());
    }

    /// It is over.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        self.0.lock().forget(slot);
    }

    /// A hold is lost; returns the requests that share it. Nobody enters it any more.
    pub(super) fn strike(&self, slot: &Arc<Slot>, why: LossReason) -> Vec<ReqId> {
        let mut tables = self.0.lock();
        let mut state = slot.state.lock();
        state.over = true;
        state.lost = Some(why);
        let reqs = state.reqs.clone();
        drop(state);
        tables.enter_no_more(slot);
        reqs
    }
}

impl Tables {
    /// Forgets what ran out and nobody gave back: holds that were detached, or lost at their
    /// deadline.
    fn sweep(&mut self, now: BootInstant) {
        let over = |slot: &Arc<Slot>| {
            let state = slot.state.lock();
            now >= state.lease.sent.boot.plus(state.lease.ttl).plus(state.lease.ttl)
        };
        self.by_req.retain(|_, slot| !over(slot));
        self.by_key.retain(|_, slot| !over(slot));
        self.by_owner.retain(|_, slot| !over(slot));
    }

    fn forget(&mut self, slot: &Arc<Slot>) {
        // Lost and taken anew, it may be another hold by now: here and below.
        if self.by_key.get(&slot.key.req).is_some_and(|s| Arc::ptr_eq(s, slot)) {
            self.by_key.remove(&slot.key.req);
        }
        self.enter_no_more(slot);
    }

    fn enter_no_more(&mut self, slot: &Arc<Slot>) {
        let Some(ask) = &slot.ask else { return };
        let key = (ask.lock.clone(), ask.owner.clone());
        if self.by_owner.get(&key).is_some_and(|s| Arc::ptr_eq(s, slot)) {
            self.by_owner.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::name::{Name, Namespace};

    const TTL: Duration = Duration::from_secs(10);

    fn slot(clock: &Clock) -> Arc<Slot> {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let state = SlotState::new(
            Vec::new(),
            Lease { sent: clock.reading(), ttl: TTL, margin: Duration::ZERO },
        );
        Arc::new(Slot {
            key: Key { lock, req: ReqId::random() },
            ask: None,
            round: Round(1),
            token: Token::MIN,
            state: Mutex::new(state),
        })
    }

    /// A hold whose state is locked stops every look at all of them.
    #[test]
    fn a_grant_does_not_look_at_every_hold() {
        let (clock, holds) = (Clock::held(), Arc::new(Holds::default()));
        let insert = |slot: Arc<Slot>| holds.insert(slot.clone(), slot.key.req, clock.now());
        let first = slot(&clock);
        insert(first.clone());
        (0..FEW).for_each(|_| insert(slot(&clock)));
        let looked_at = first.state.lock();
        let (many, (done, ends)) = (holds.clone(), channel());
        let (time, more) = (clock.now(), (2..FEW).map(|_| slot(&clock)).collect::<Vec<_>>());
        crate::engine::thread("grants", move || {
            for slot in more {
                let req = slot.key.req;
                many.insert(slot, req, time);
            }
            let _ = done.send(());
        })
        .unwrap();
        ends.recv_timeout(Duration::from_secs(20)).expect("no grant looks at the first hold");
        drop(looked_at);
    }

    #[test]
    fn what_ran_out_is_forgotten_in_time() {
        let (clock, holds) = (Clock::held(), Holds::default());
        for _ in 0..10 * FEW {
            let slot = slot(&clock);
            holds.insert(slot.clone(), slot.key.req, clock.now());
            clock.advance(TTL);
        }
        assert!(holds.0.lock().by_req.len() <= 2 * FEW, "{}", holds.0.lock().by_req.len());
    }
}
