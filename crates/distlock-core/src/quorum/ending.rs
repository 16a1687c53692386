//! Giving back: to all nodes at once, and to those that do not answer until they do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Inner;
use super::debts::{self, Debts, Ending};
use super::fan::Fan;
use super::holds::{Left, Slot};
use super::node::{QuorumNode, Round};
use crate::engine;
use crate::error::{Error, Kind};
use crate::seam::{Kept, Key, Released};

impl<N: QuorumNode> Inner<N> {
    /// Tells nodes that a request, or a round of it, is over; how many have acknowledged. Whoever
    /// has not is told again in the background; those that did not answer last time are waited
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
        let ttl = match self.holds.leave(&key.req, false) {
            Left::Shared { .. } => return Ok(()),
            Left::Last(slot) if slot.state().promised => {
                // Another request that shared it was released in order: so is the hold.
                if !self.linger(&slot) {
                    self.tell_all(&slot.key, Ending::Release, ttl_of(&slot)).await?;
                }
                if slot.key == *key {
                    return Ok(());
                }
                ttl_of(&slot)
            }
            Left::Last(slot) => {
                let ttl = ttl_of(&slot);
                if slot.key != *key {
                    // It shared another request's hold, and was the last to leave it.
                    self.tell_all(&slot.key, Ending::Cancel(Round::ALL), ttl).await?;
                }
                ttl
            }
            // Nobody knows how long its lease is, where a node has granted it.
            Left::Nothing => self.capability().ttl_max,
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
        let slot = match self.holds.leave(&key.req, true) {
            Left::Shared { lost: false } => return Ok(Released::Released),
            Left::Shared { lost: true } => return Ok(Released::WasLost),
            Left::Last(slot) if self.linger(&slot) => return Ok(Released::Released),
            Left::Last(slot) => Some(slot),
            Left::Nothing => None,
        };
        let key = slot.as_ref().map_or(key, |slot| &slot.key);
        let ttl = slot.as_ref().map_or(self.capability().ttl_max, ttl_of);
        let size = self.nodes.len();
        let counts: Vec<bool> = match &slot {
            Some(slot) => slot.state().owned.iter().map(Option::is_some).collect(),
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

    /// A hold that is over, whose `min_hold` is not: one that came with a re-entry, which the nodes do
    /// not know of. It is kept for that long, as long as the process lives, and then released. False
    /// where there is none.
    fn linger(self: &Arc<Self>, slot: &Arc<Slot>) -> bool {
        let (free_at, sound) = {
            let state = slot.state();
            (state.free_at, state.lost.is_none() && state.sound(self.moment()))
        };
        if free_at <= self.clock().now() || !sound {
            return false;
        }
        let (inner, slot) = (self.clone(), slot.clone());
        engine::spawn(async move {
            let (clock, ttl) = (inner.clock(), ttl_of(&slot));
            loop {
                let look = clock.now().plus(ttl / 3).min(free_at);
                clock.sleep_until(look).await;
                let over =
                    clock.now() >= free_at || inner.nodes.iter().any(|n| n.debts.is_closed());
                if over || matches!(inner.renew_slot(&slot, ttl).await, Kept::Lost(_)) {
                    break;
                }
            }
            inner.owe_all(&slot.key, Ending::Release, ttl);
        });
        true
    }

    /// Tells all nodes in the background.
    pub(super) fn owe_all(&self, key: &Key, ending: Ending, ttl: Duration) {
        (0..self.nodes.len()).for_each(|i| self.owe(i, key, ending, ttl));
    }

    fn owe(&self, i: usize, key: &Key, ending: Ending, ttl: Duration) {
        let until = self.clock().now().plus(ttl).plus(debts::GRACE);
        let node = &self.nodes[i];
        if node.debts.owe(key.clone(), ending, until) {
            let (node, bound) = (node.clone(), self.bound(debts::GRACE));
            engine::spawn(async move { Debts::pay(&node, bound).await });
        }
    }
}

/// How long the nodes keep a hold that they hear no more of.
fn ttl_of(slot: &Arc<Slot>) -> Duration {
    slot.ask.as_ref().map_or(debts::GRACE, |ask| ask.ttl)
}

/// Nodes that have to be told: whoever has not acknowledged when this is dropped is told in the
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
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).retain(|n| *n != i);
    }
}

impl<N: QuorumNode> Drop for Unpaid<'_, N> {
    fn drop(&mut self) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for i in nodes.iter() {
            self.inner.owe(*i, self.key, self.ending, self.ttl);
        }
    }
}
