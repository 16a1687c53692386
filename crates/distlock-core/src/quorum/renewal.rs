//! Renewal: one batch a node for all holds, and the healing of nodes that lost theirs.
//!
//! A hold is kept when a majority of the ownerships it counts on were extended in this round. A
//! node that lost it is taken again in the background, and counts from the next round on: only its
//! answer shows that it was taken while the hold was sound.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    CALL, Fan, Generation, Heal, Inner, NodeDue, NodeKept, QuorumNode, Round, Slot, SlotState, Vote,
};
use crate::{
    ClockReading, Due, Error, Event, HashMap, Kept, Key, Kind, Lease, LossReason, Token, abreast,
    engine,
};

/// What is renewed: a hold this client knows, or a request it only has the ticket of.
enum Wanted {
    Known(Arc<Slot>),
    Ticket(Key),
}

/// What a node that still has a hold says of it: what is left of its lease, its token, the waiters.
type Extended = (Duration, Option<Token>, u32);

struct Item {
    /// Which of the holds that were asked for.
    place: usize,
    wanted: Wanted,
    ttl: Duration,
    answers: Vec<Option<NodeKept>>,
}

impl Item {
    fn due(&self, node: usize) -> Option<NodeDue> {
        let (key, generation) = match &self.wanted {
            Wanted::Known(slot) => {
                let state = slot.state.lock();
                let lost = state.lost.is_some();
                (&slot.key, Some(state.owned[node].filter(|_| !lost)?))
            }
            Wanted::Ticket(key) => (key, None),
        };
        Some(NodeDue { key: key.clone(), generation, ttl: self.ttl })
    }

    fn held(&self) -> usize {
        let held = |a: &&NodeKept| matches!(a, NodeKept::Held { .. });
        self.answers.iter().flatten().filter(held).count()
    }
}

/// Most holds renewed by one call to a node: one that is late costs no more than these an answer.
const MOST: usize = 256;
/// How many batches are under way at a time.
const AT_ONCE: usize = 4;

/// Batches of holds, sorted by TTL, whose TTLs are about the same.
fn batches(items: &mut [Item]) -> Vec<&mut [Item]> {
    let (mut batches, mut rest) = (Vec::new(), items);
    while let Some(shortest) = rest.first().map(|item| item.ttl) {
        let alike = rest.partition_point(|item| item.ttl <= shortest * 2);
        let (batch, others) = rest.split_at_mut(alike.min(MOST));
        batches.push(batch);
        rest = others;
    }
    batches
}

impl<N: QuorumNode> Inner<N> {
    /// Renews holds: answers in the same order.
    pub(super) async fn keep(self: &Arc<Self>, due: &[Due]) -> Vec<Kept> {
        let mut items: Vec<Item> = Vec::with_capacity(due.len());
        // Requests that share a hold are one to the nodes.
        let mut places: HashMap<Key, usize> = HashMap::default();
        let mut of_due = Vec::with_capacity(due.len());
        for d in due {
            let (key, wanted) = match self.holds.of(&d.key.req) {
                Some(slot) => (slot.key.clone(), Wanted::Known(slot)),
                None => (d.key.clone(), Wanted::Ticket(d.key.clone())),
            };
            let place = *places.entry(key).or_insert_with(|| {
                let answers = vec![None; self.nodes.len()];
                let place = items.len();
                items.push(Item { place, wanted, ttl: d.ttl, answers });
                place
            });
            items[place].ttl = items[place].ttl.max(d.ttl);
            of_due.push(place);
        }
        // Short leases first, and together: how long a call may take follows from the shortest.
        items.sort_by_key(|item| item.ttl);
        let calls = batches(&mut items).into_iter().map(|batch| {
            let shortest = batch.first().map_or(Duration::ZERO, |item| item.ttl);
            // A large batch takes its time; a sixth of a TTL still leaves room for two more tries.
            let bound = self.bound(shortest).max((shortest / 6).min(CALL));
            self.renew(batch, bound)
        });
        let kept: Vec<Kept> =
            abreast(AT_ONCE, calls.collect()).await.into_iter().flatten().collect();
        self.heal(&items, &kept);
        let by_place: HashMap<usize, Kept> =
            items.iter().map(|item| item.place).zip(kept).collect();
        of_due.into_iter().map(|place| by_place[&place].clone()).collect()
    }

    /// Renews one hold and heals nothing.
    pub(super) async fn renew_slot(&self, slot: &Arc<Slot>, ttl: Duration) -> Kept {
        let wanted = Wanted::Known(slot.clone());
        let answers = vec![None; self.nodes.len()];
        let mut item = [Item { place: 0, wanted, ttl, answers }];
        // Somebody waits for it, as for a bid: a node gets no longer than for one.
        let mut kept = self.renew(&mut item, self.bound(ttl)).await;
        kept.pop().unwrap_or_else(|| Kept::Unknown(self.unanswered()))
    }

    /// Renews a batch of holds, in one call to each node.
    async fn renew(&self, items: &mut [Item], bound: Duration) -> Vec<Kept> {
        let sent = self.reading();
        let size = self.nodes.len();
        let mut asked: Vec<Vec<usize>> = Vec::with_capacity(size);
        let mut fan = Fan::new(self.clock(), bound, size);
        for (i, n) in self.nodes.iter().enumerate() {
            let (places, dues): (Vec<usize>, Vec<NodeDue>) = items
                .iter()
                .enumerate()
                .filter_map(|(place, item)| Some((place, item.due(i)?)))
                .unzip();
            asked.push(places);
            if !dues.is_empty() {
                fan.call(i, async move { n.node.renew(&dues).await });
            }
        }
        while let Some((i, answers)) = fan.next().await {
            let well = !answers.iter().all(|a| matches!(a, NodeKept::Unknown(_)));
            self.nodes[i].answered(well);
            for (place, answer) in asked[i].iter().zip(answers) {
                items[*place].answers[i] = Some(answer);
            }
            let all_kept = items.iter().all(|item| item.held() >= self.majority);
            if all_kept && fan.open().all(|i| self.nodes[i].ails()) {
                break;
            }
        }
        for i in fan.open() {
            self.nodes[i].answered(false);
        }
        items.iter().map(|item| self.judge(item, sent)).collect()
    }

    /// A hold is lost. All requests that share it are told to ask, and what is left of it at the
    /// nodes is given back by the last of them: until it was told, a guard may believe in its
    /// deadline.
    fn strike(&self, slot: &Arc<Slot>, why: LossReason) {
        for req in self.holds.strike(slot, why) {
            let key = Key { lock: slot.key.lock.clone(), req };
            let _ = self.news.send(Event::InDoubt(key));
        }
    }

    /// What a majority says of one hold.
    fn judge(&self, item: &Item, sent: ClockReading) -> Kept {
        let size = self.nodes.len();
        let (mut held, mut owned) = (Vec::new(), vec![None; size]);
        let mut lost = Vec::new();
        let mut trouble = None;
        for (i, answer) in item.answers.iter().enumerate() {
            match answer {
                Some(NodeKept::Held { generation, left, token, waiters }) => {
                    held.push((*left, *token, *waiters));
                    owned[i] = Some((*generation, *token));
                }
                Some(NodeKept::Lost(why)) => lost.push((i, *why)),
                Some(NodeKept::Unknown(e)) => trouble = Some(e.clone()),
                None => {}
            }
        }
        let revoked = lost.iter().any(|(_, why)| *why == LossReason::Revoked);
        let why = if revoked { LossReason::Revoked } else { LossReason::Gone };
        let unknown =
            || Kept::Unknown(trouble.iter().cloned().fold(self.unanswered(), Error::because));
        match &item.wanted {
            Wanted::Known(slot) => {
                let counted = {
                    let mut state = slot.state.lock();
                    if let Some(why) = state.lost {
                        return Kept::Lost(why);
                    }
                    for (i, _) in &lost {
                        state.owned[*i] = None;
                    }
                    state.owned.iter().flatten().count()
                };
                if counted < self.majority {
                    self.strike(slot, why);
                    return Kept::Lost(why);
                }
                if held.len() < self.majority {
                    return unknown();
                }
                let (lease, waiters) = self.counted(sent, &held);
                slot.state.lock().lease = lease;
                Kept::Until { lease, waiters }
            }
            Wanted::Ticket(key) => {
                if size - lost.len() < self.majority {
                    return Kept::Lost(why);
                }
                let Some(token) = self.common(&held) else { return unknown() };
                held.retain(|(_, t, _)| *t == Some(token));
                let (lease, waiters) = self.counted(sent, &held);
                let of_token = |o: Option<(Generation, Option<Token>)>| {
                    o.filter(|(_, t)| *t == Some(token)).map(|(g, _)| g)
                };
                let owned = owned.into_iter().map(of_token).collect();
                let state = SlotState::new(owned, lease).into();
                let round = Round::default();
                let slot = Slot { key: key.clone(), ask: None, round, token, state };
                self.holds.insert(Arc::new(slot), key.req, self.clock().now());
                Kept::Until { lease, waiters }
            }
        }
    }

    /// The token that a majority has for a hold.
    fn common(&self, held: &[Extended]) -> Option<Token> {
        let count = |token: Token| held.iter().filter(|(_, t, _)| *t == Some(token)).count();
        held.iter().filter_map(|(_, t, _)| *t).find(|t| count(*t) >= self.majority)
    }

    /// The lease of a hold: what is left by the m-th longest of a majority; and how many wait.
    fn counted(&self, sent: ClockReading, held: &[Extended]) -> (Lease, u32) {
        let mut lefts: Vec<Duration> = held.iter().map(|(left, ..)| *left).collect();
        lefts.sort_unstable_by(|a, b| b.cmp(a));
        let left = lefts.get(self.majority - 1).copied().unwrap_or_default();
        let waiters = held.iter().map(|(.., w)| *w).max().unwrap_or(0);
        (self.info().capability.lease(sent, left), waiters)
    }

    fn unanswered(&self) -> Error {
        Error::new(Kind::Unreachable, "too few nodes answered a renewal")
            .unknown()
            .store(&self.site)
            .with_hint("see whether the nodes run and can be reached; it is tried again until the deadline")
    }

    /// Takes holds again at nodes that lost them, in the background.
    fn heal(self: &Arc<Self>, items: &[Item], kept: &[Kept]) {
        let sound: Vec<(Arc<Slot>, Heal)> = items
            .iter()
            .zip(kept)
            .filter(|(_, kept)| matches!(kept, Kept::Until { .. }))
            .filter_map(|(item, _)| match &item.wanted {
                Wanted::Known(slot) => {
                    let ask = slot.ask.clone()?;
                    Some((slot.clone(), Heal { ask, round: slot.round, token: slot.token }))
                }
                Wanted::Ticket(_) => None,
            })
            .collect();
        for i in 0..self.nodes.len() {
            let sick = sound.iter().filter(|(slot, _)| slot.state.lock().owned[i].is_none());
            let (slots, heals): (Vec<_>, Vec<_>) = sick.cloned().unzip();
            if heals.is_empty() || self.nodes[i].healing.swap(true, Ordering::AcqRel) {
                continue;
            }
            let inner = self.clone();
            engine::spawn(async move {
                inner.heal_node(i, &slots, &heals).await;
                inner.nodes[i].healing.store(false, Ordering::Release);
            });
        }
    }

    async fn heal_node(&self, i: usize, slots: &[Arc<Slot>], heals: &[Heal]) {
        let shortest = heals.iter().map(|h| h.ask.ttl).min().unwrap_or_default();
        let bound = self.bound(shortest).max((shortest / 6).min(CALL));
        let node = &self.nodes[i];
        let votes = self.clock().timeout(bound, node.node.heal(heals)).await;
        for (slot, vote) in slots.iter().zip(votes.unwrap_or_default()) {
            let Ok(Vote::Granted { generation, .. }) = vote else { continue };
            let mut state = slot.state.lock();
            // Only what was taken while the hold was sound may ever count.
            if !state.over && state.sound(self.reading()) {
                state.owned[i] = Some(generation);
            }
        }
    }
}
