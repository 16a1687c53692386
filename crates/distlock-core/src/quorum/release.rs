//! Giving back: to all nodes at once, and to those that do not answer until they do.

use std::sync::Arc;
use std::time::Duration;

use super::holds::Departure;
use super::{Ending, Fan, Inner, QuorumNode, Round, Slot, Unacknowledged};
use crate::{BootInstant, Error, GRACE, Kept, Key, Kind, Mutex, Released, engine};

/// After a renewal without an answer the next one waits this long.
const PAUSE: Duration = Duration::from_millis(50);

impl<N: QuorumNode> Inner<N> {
    /// Tells nodes that a request, or a round of it, is over; how many have acknowledged. A node
    /// that has not is told again in the background; those that did not answer last time are waited
    /// for only as long as there are not enough.
    pub(super) async fn tell(
        &self,
        key: &Key,
        ending: Ending,
        ttl: Duration,
        nodes: &[usize],
        enough: usize,
    ) -> usize {
        // Debts first, so that dropping this future forgets none of them.
        let unpaid = Unpaid { inner: self, key, ending, ttl, nodes: nodes.to_vec().into() };
        let mut fan = Fan::new(self.clock(), self.bound(ttl), self.nodes.len());
        for i in nodes {
            fan.call(*i, ending.tell(&self.nodes[*i].node, key));
        }
        let mut told = 0;
        while let Some((i, answer)) = fan.next().await {
            self.nodes[i].answered(answer.is_ok());
            if answer.is_ok() {
                told += 1;
                unpaid.paid(i);
            }
            if told >= enough && fan.open().all(|i| self.nodes[i].ails()) {
                break;
            }
        }
        for i in fan.open() {
            self.nodes[i].answered(false);
        }
        told
    }

    /// Undoes a request, whatever became of it.
    pub(super) async fn abandon(self: &Arc<Self>, key: &Key) -> Result<(), Error> {
        let ttl = match self.holds.leave(&key.req, false, self.clock().now()) {
            Departure::Shared { .. } | Departure::Promised(_) => return Ok(()),
            Departure::Last(slot) if slot.state.lock().promised => {
                // Another request that shared it was released in order: so is the hold.
                if !self.linger(&slot) {
                    self.tell_all(&slot.key, Ending::Release, ttl_of(&slot)).await?;
                }
                if slot.key == *key {
                    return Ok(());
                }
                ttl_of(&slot)
            }
            Departure::Last(slot) => {
                let ttl = ttl_of(&slot);
                if slot.key != *key {
                    // It shared another request's hold, and was the last to leave it.
                    self.tell_all(&slot.key, Ending::Cancel(Round::ALL), ttl).await?;
                }
                ttl
            }
            // Nobody knows how long its lease is, where a node has granted it.
            Departure::Nothing => self.info().capability.ttl_max,
        };
        self.tell_all(key, Ending::Cancel(Round::ALL), ttl).await
    }

    async fn tell_all(&self, key: &Key, ending: Ending, ttl: Duration) -> Result<(), Error> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let told = self.tell(key, ending, ttl, &all, self.majority).await;
        if told >= self.majority {
            return Ok(());
        }
        Err(self.untold(told))
    }

    fn untold(&self, told: usize) -> Error {
        let all = self.nodes.len();
        Error::new(Kind::Unreachable, format!("{told} of {all} nodes have acknowledged"))
            .unknown()
            .store(&self.site)
            .with_hint("the others are told again in the background; the same call may be repeated")
    }

    /// Gives a hold back.
    pub(super) async fn release(self: &Arc<Self>, key: &Key) -> Result<Released, Error> {
        let slot = match self.holds.leave(&key.req, true, self.clock().now()) {
            Departure::Shared { lost: false } => return Ok(Released::Released),
            Departure::Shared { lost: true } => return Ok(Released::WasLost),
            Departure::Promised(slot) => {
                // The others may let it run out before that.
                self.keep_on(&slot);
                return Ok(Released::Released);
            }
            Departure::Last(slot) if self.linger(&slot) => return Ok(Released::Released),
            Departure::Last(slot) => Some(slot),
            Departure::Nothing => None,
        };
        let key = slot.as_ref().map_or(key, |slot| &slot.key);
        let ttl = slot.as_ref().map_or(self.info().capability.ttl_max, ttl_of);
        let size = self.nodes.len();
        let counts: Vec<bool> = match &slot {
            Some(slot) => slot.state.lock().owned.iter().map(Option::is_some).collect(),
            None => vec![true; size],
        };
        let nodes = (0..size).collect::<Vec<_>>().into();
        let unpaid = Unpaid { inner: self, key, ending: Ending::Release, ttl, nodes };
        let mut fan = Fan::new(self.clock(), self.bound(ttl), size);
        for (i, n) in self.nodes.iter().enumerate() {
            fan.call(i, n.node.release(key));
        }
        let (mut told, mut lost, mut released) = (0, 0, 0);
        while let Some((i, answer)) = fan.next().await {
            self.nodes[i].answered(answer.is_ok());
            if let Ok(answer) = answer {
                unpaid.paid(i);
                told += 1;
                lost += usize::from(counts[i] && answer == Released::WasLost);
                released += usize::from(answer == Released::Released);
            }
            if told >= self.majority && fan.open().all(|i| self.nodes[i].ails()) {
                break;
            }
        }
        for i in fan.open() {
            self.nodes[i].answered(false);
        }
        if told < self.majority {
            return Err(self.untold(told));
        }
        // Held up to now, if the ownerships that nobody has said to be lost still make a majority.
        let counted = counts.iter().filter(|c| **c).count();
        let held = counted - lost >= self.majority && released > 0;
        Ok(if held { Released::Released } else { Released::WasLost })
    }

    /// A hold that is over, whose `min_hold` is not: one that came with a re-entry, which the nodes
    /// do not know of. It is kept for that long, as long as the process lives, and then released.
    /// False where there is none.
    fn linger(self: &Arc<Self>, slot: &Arc<Slot>) -> bool {
        let (free_at, sound) = {
            let state = slot.state.lock();
            (state.free_at, state.lost.is_none() && state.sound(self.reading()))
        };
        if free_at <= self.clock().now() || !sound {
            return false;
        }
        self.holds.lingers(slot);
        let (inner, slot) = (self.clone(), slot.clone());
        engine::spawn(async move {
            inner.keep_until(&slot, free_at, || false).await;
            inner.owe_all(&slot.key, Ending::Release, ttl_of(&slot));
            inner.holds.forget(&slot);
        });
        true
    }

    /// Renews a hold that others share, for the `min_hold` of one that was released: they may be
    /// asked to let it run out. What comes after the last of them has left is theirs to see to.
    fn keep_on(self: &Arc<Self>, slot: &Arc<Slot>) {
        if std::mem::replace(&mut slot.state.lock().kept_on, true) {
            return;
        }
        let (inner, slot) = (self.clone(), slot.clone());
        engine::spawn(async move {
            loop {
                let lasts = slot.state.lock().lasts;
                inner.keep_until(&slot, lasts, || slot.state.lock().over).await;
                let mut state = slot.state.lock();
                // Somebody may have entered it meanwhile, with another.
                if state.over || state.lasts <= lasts {
                    state.kept_on = false;
                    return;
                }
            }
        });
    }

    /// Renews a hold until a moment, or until it is lost, or `over`, or the client is closed.
    async fn keep_until(&self, slot: &Arc<Slot>, end: BootInstant, over: impl Fn() -> bool) {
        let (clock, ttl, mut pause) = (self.clock(), ttl_of(slot), Duration::ZERO);
        loop {
            // At once, if nobody has renewed it for a while.
            let due = slot.state.lock().lease.sent.boot.plus(ttl / 3).max(clock.now().plus(pause));
            clock.sleep_until(due.min(end)).await;
            let closed = || self.nodes.iter().any(|n| n.debts.is_closed());
            if clock.now() >= end || over() || closed() {
                return;
            }
            pause = match self.renew_slot(slot, ttl).await {
                Kept::Lost(_) => return,
                Kept::Until { .. } => Duration::ZERO,
                Kept::Unknown(_) => PAUSE,
            };
        }
    }

    /// Tells all nodes in the background.
    pub(super) fn owe_all(&self, key: &Key, ending: Ending, ttl: Duration) {
        (0..self.nodes.len()).for_each(|i| self.owe(i, key, ending, ttl));
    }

    fn owe(&self, i: usize, key: &Key, ending: Ending, ttl: Duration) {
        let until = self.clock().now().plus(ttl).plus(GRACE);
        let node = &self.nodes[i];
        if node.debts.owe(key.clone(), ending, until) {
            let (node, bound) = (node.clone(), self.bound(GRACE));
            engine::spawn(async move { Unacknowledged::pay(&node, bound).await });
        }
    }
}

/// How long the nodes keep a hold that they hear no more of.
fn ttl_of(slot: &Arc<Slot>) -> Duration {
    slot.ask.as_ref().map_or(GRACE, |ask| ask.ttl)
}

/// Nodes that have to be told: one that has not acknowledged when this is dropped is told in the
/// background.
struct Unpaid<'a, N: QuorumNode> {
    inner: &'a Inner<N>,
    key: &'a Key,
    ending: Ending,
    ttl: Duration,
    nodes: Mutex<Vec<usize>>,
}

impl<N: QuorumNode> Unpaid<'_, N> {
    fn paid(&self, i: usize) {
        self.nodes.lock().retain(|n| *n != i);
    }
}

impl<N: QuorumNode> Drop for Unpaid<'_, N> {
    fn drop(&mut self) {
        let nodes = self.nodes.lock();
        for i in nodes.iter() {
            self.inner.owe(*i, self.key, self.ending, self.ttl);
        }
    }
}
