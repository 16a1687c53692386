//! One attempt: bids to all nodes at once, and what their votes make.
//!
//! 1. A majority accepted the proposed token: granted, in one round trip.
//! 2. A majority granted, but did not accept, or took long, or was connected anew meanwhile: one
//!    more than the highest base is written back to those, each only if it is still owned; granted
//!    when a majority wrote.
//! 3. After the last answer that counts there must be something left of the lease.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Ballot, Bid, Commit, Committed, Fan, Generation, Inner, QuorumNode, Slot, SlotState, Vote,
};
use crate::{BootInstant, ClockReading, Error, Kind, Outcome, QueueStatus, Token};

/// After a win, nodes that are slower than the others are waited for at least this long.
const LEAST_GRACE: Duration = Duration::from_millis(1);

/// What all nodes said to one bid.
pub(super) struct Tally {
    /// Their votes; `None` where there was no answer.
    pub(super) votes: Vec<Option<Vote>>,
    /// Why there was none, where that is known.
    pub(super) trouble: Option<Error>,
    /// A node may have taken the bid, and its answer never came.
    pub(super) unsure: bool,
    pub(super) sent: ClockReading,
}

/// What an attempt came to.
pub(super) enum Verdict {
    Granted(Arc<Slot>, u32),
    Refused(Tally),
}

impl Tally {
    fn count(&self, which: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().flatten().filter(|v| which(v)).count()
    }

    pub(super) fn answered(&self) -> usize {
        self.votes.iter().flatten().count()
    }

    pub(super) fn granted(&self) -> usize {
        self.count(|v| matches!(v, Vote::Granted { .. }))
    }

    fn accepted(&self) -> usize {
        self.count(|v| matches!(v, Vote::Granted { accepted: true, .. }))
    }

    /// How many have it in the queue.
    pub(super) fn queued(&self) -> usize {
        self.count(|v| matches!(v, Vote::Granted { .. } | Vote::Busy { queued: true, .. }))
    }

    pub(super) fn tombstoned(&self) -> usize {
        self.count(|v| matches!(v, Vote::Tombstoned))
    }

    /// The nodes where something of the round may be left: it was granted, or no answer came.
    pub(super) fn in_doubt(&self) -> impl Iterator<Item = usize> {
        let doubtful = |v: &Option<Vote>| matches!(v, None | Some(Vote::Granted { .. }));
        self.votes.iter().enumerate().filter(move |(_, v)| doubtful(v)).map(|(i, _)| i)
    }

    /// Where the request stands: the holder most nodes name, the middle place in the queue, and
    /// when a majority could be free.
    pub(super) fn status(&self, majority: usize) -> QueueStatus {
        let busy = || {
            self.votes.iter().flatten().filter_map(|v| match v {
                Vote::Busy { status, .. } => Some(status),
                _ => None,
            })
        };
        let named = |token: Token| {
            busy().filter(|s| s.holder.as_ref().is_some_and(|h| h.token == token)).count()
        };
        let holder = busy().filter_map(|s| s.holder.clone()).max_by_key(|h| named(h.token));
        let mut places: Vec<u32> = busy().filter_map(|s| s.ahead).collect();
        places.sort_unstable();
        let ahead = places.get(places.len() / 2).copied();
        let mut lefts: Vec<Duration> = self.votes.iter().flatten().filter_map(free_in).collect();
        lefts.sort_unstable();
        let mut status = QueueStatus { ahead, ..QueueStatus::default() };
        status.holder = holder;
        status.left = lefts.get(majority - 1).copied();
        if status.holder.is_none() {
            status.note = self.votes.iter().flatten().find_map(|v| match v {
                Vote::NotYet { why, .. } => Some(why.as_str().into()),
                _ => None,
            });
        }
        status
    }

    /// Some granted, and nobody else is seen to hold a majority: contenders took votes from each
    /// other.
    pub(super) fn split(&self, majority: usize) -> bool {
        let Some(holder) = self.status(majority).holder else { return self.granted() > 0 };
        let his = self.count(|v| match v {
            Vote::Busy { status, .. } => {
                status.holder.as_ref().is_some_and(|h| h.token == holder.token)
            }
            _ => false,
        });
        self.granted() > 0 && his < majority
    }
}

/// When a node could grant.
fn free_in(vote: &Vote) -> Option<Duration> {
    match vote {
        Vote::Granted { .. } => Some(Duration::ZERO),
        Vote::Busy { status, .. } => status.left,
        Vote::NotYet { left, .. } => Some(*left),
        Vote::Tombstoned => None,
    }
}

/// What a granted vote says.
#[derive(Clone, Copy)]
struct Grantor {
    node: usize,
    base: u64,
    generation: Generation,
    left: Duration,
    waiters: u32,
}

impl<N: QuorumNode> Inner<N> {
    /// Puts a bid to all nodes.
    pub(super) async fn attempt(&self, bid: &Bid) -> Result<Verdict, Error> {
        let links: Vec<u64> = self.nodes.iter().map(|n| n.node.link()).collect();
        let tally = self.poll(bid).await;
        let granted: Vec<Grantor> = tally.votes.iter().enumerate().filter_map(grantor).collect();
        if granted.len() < self.majority {
            return Ok(Verdict::Refused(tally));
        }
        let elapsed = self.reading().since(tally.sent);
        let same = |g: &Grantor| self.nodes[g.node].node.link() == links[g.node];
        let fast = tally.accepted() >= self.majority
            && elapsed <= bid.ask.ttl / 2
            && granted.iter().all(same);
        let (token, owners) = if fast || !self.ordered {
            (bid.token, granted)
        } else {
            let highest = granted.iter().map(|g| g.base).max().unwrap_or(0);
            let token = Token::new(highest.saturating_add(1))?;
            let owners = self.write_back(bid, token, &granted).await;
            (token, owners)
        };
        self.drift.seen(token.get());
        // The lease ends when the first of the last majority ends: the m-th longest counts.
        let mut lefts: Vec<Duration> = owners.iter().map(|g| g.left).collect();
        lefts.sort_unstable_by(|a, b| b.cmp(a));
        let Some(left) = lefts.get(self.majority - 1).copied() else {
            return Ok(Verdict::Refused(tally));
        };
        let lease = self.info().capability.lease(tally.sent, left);
        if lease.left(self.reading()).is_zero() {
            return Ok(Verdict::Refused(tally));
        }
        let mut owned = vec![None; self.nodes.len()];
        for g in &owners {
            owned[g.node] = Some(g.generation);
        }
        let waiters = owners.iter().map(|g| g.waiters).max().unwrap_or(0);
        let state = SlotState::new(owned, lease);
        let slot = Slot {
            key: bid.ask.key(),
            ask: Some(bid.ask.clone()),
            round: bid.round,
            token,
            state: state.into(),
        };
        Ok(Verdict::Granted(Arc::new(slot), waiters))
    }

    async fn poll(&self, bid: &Bid) -> Tally {
        let size = self.nodes.len();
        let sent = self.reading();
        let mut tally = Tally { votes: vec![None; size], trouble: None, unsure: false, sent };
        let mut fan = Fan::new(self.clock(), self.bound(bid.ask.ttl), size);
        for (i, n) in self.nodes.iter().enumerate() {
            fan.call(i, n.node.propose(bid));
        }
        let mut grace = BootInstant::FAR;
        while let Some((i, answer)) = self.until(grace, fan.next()).await {
            self.nodes[i].answered(answer.is_ok());
            match answer {
                Ok(Ballot { vote, at }) => {
                    if let Some(at) = at {
                        self.drift.heard(i, at, self.clock());
                    }
                    if let Vote::Granted { base: Some(base), .. } = vote {
                        self.drift.seen(base);
                    }
                    tally.votes[i] = Some(vote);
                }
                Err(e) => {
                    tally.unsure |= e.outcome() == Outcome::Unknown;
                    tally.trouble = Some(e);
                }
            }
            let wins = if self.ordered { tally.accepted() } else { tally.granted() };
            let won = wins >= self.majority;
            let decided = won || wins + fan.open().count() < self.majority;
            if decided && fan.open().all(|i| self.nodes[i].ails()) {
                tally.unsure |= fan.open().next().is_some();
                return tally;
            }
            // Won: the others get as long again. Each that is heard is one more that may be lost
            // later; none is worth a slow call.
            if won && grace == BootInstant::FAR {
                let now = self.clock().now();
                grace = now.plus(now.since(sent.boot).max(LEAST_GRACE));
            }
        }
        for i in fan.open() {
            self.nodes[i].answered(false);
            tally.unsure = true;
        }
        tally
    }

    async fn until<T>(&self, end: BootInstant, next: impl Future<Output = Option<T>>) -> Option<T> {
        if end == BootInstant::FAR {
            return next.await;
        }
        let left = end.since(self.clock().now());
        self.clock().timeout(left, next).await.flatten()
    }

    async fn write_back(&self, bid: &Bid, token: Token, granted: &[Grantor]) -> Vec<Grantor> {
        let mut fan = Fan::new(self.clock(), self.bound(bid.ask.ttl), self.nodes.len());
        for g in granted {
            let (key, round, generation) = (bid.ask.key(), bid.round, g.generation);
            let commit = Commit { key, round, generation, token };
            fan.call(g.node, async move { self.nodes[g.node].node.commit(&commit).await });
        }
        let mut wrote = Vec::new();
        while let Some((i, answer)) = fan.next().await {
            self.nodes[i].answered(answer.is_ok());
            if let Ok(Committed::Yes) = answer {
                wrote.extend(granted.iter().filter(|g| g.node == i).copied());
            }
            let enough = wrote.len() >= self.majority;
            if enough && fan.open().all(|i| self.nodes[i].ails()) {
                break;
            }
        }
        wrote
    }

    /// Too few nodes answered to say anything.
    pub(super) fn unheard(&self, tally: &Tally) -> Error {
        // What the caller must mend is no matter of reaching anybody.
        if let Some(e) = tally.trouble.as_ref().filter(|e| e.kind() == Kind::Usage) {
            return e.clone().store(&self.site);
        }
        let (answered, all) = (tally.answered(), self.nodes.len());
        let e = Error::new(Kind::Unreachable, format!("{answered} of {all} nodes answered"))
            .store(&self.site)
            .with_hint(format!(
                "a lock needs {} of them: see whether the others run and can be reached",
                self.majority
            ));
        tally.trouble.iter().cloned().fold(e, Error::because)
    }
}

fn grantor((node, vote): (usize, &Option<Vote>)) -> Option<Grantor> {
    match vote {
        Some(Vote::Granted { base, generation, left, waiters, .. }) => Some(Grantor {
            node,
            base: base.unwrap_or(0),
            generation: *generation,
            left: *left,
            waiters: *waiters,
        }),
        _ => None,
    }
}
