//! The rules of one node, in the order in which every operation meets them:
//!
//! 1. what has ended is dropped: the hold, waiters not heard of, tombstones;
//! 2. a tombstoned round stays refused; the same round again is the same grant; a later round of
//!    the same request ends the earlier one;
//! 3. a node that may have forgotten leases grants nothing;
//! 4. the queue: its place by ticket, and nobody gets past a backed ticket that is lower;
//! 5. a grant reads the counter and writes the proposed token in the same step.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    Bid, Commit, Committed, Generation, Heal, NodeDue, NodeHold, NodeOp, NodePhase, NodeReply,
    NodeRules, NodeState, NodeStep, NodeTombstone, NodeWaiter, Position, Round, Vote, Who,
};
use crate::state::{End, Now};
use crate::{
    Ask, Effects, Force, Forced, FullName, HoldInfo, Holder, LockInfo, LossReason, Micros, Mode,
    QueueStatus, Released, ReqId, Token, WaiterInfo,
};

impl NodeState {
    /// Applies one operation at one moment. Total, deterministic, and without side effects beyond
    /// `self`: the node that stores the state delivers the effects afterwards.
    pub fn step(&mut self, op: &NodeOp, now: Now, rules: &NodeRules) -> NodeStep {
        let mut effects = Effects::default();
        self.drop_ended(now.lease);
        let reply = match op {
            NodeOp::Propose(bid, via) => {
                NodeReply::Vote(self.propose(bid, via, now, rules, &mut effects))
            }
            NodeOp::Heal(heal, via) => NodeReply::Vote(self.heal(heal, via, now, rules)),
            NodeOp::Commit(commit) => NodeReply::Committed(self.commit(commit)),
            NodeOp::Renew(due) => self.renew(due, now.lease),
            NodeOp::Release(req) => {
                NodeReply::Released(self.release(req, now.lease, rules, &mut effects))
            }
            NodeOp::Cancel(req, upto) => {
                self.cancel(req, *upto, now.lease, rules, &mut effects);
                NodeReply::Cancelled
            }
            NodeOp::Force(token, how) => {
                NodeReply::Forced(self.force(*token, *how, now.lease, rules, &mut effects))
            }
        };
        NodeStep { reply, effects }
    }

    fn drop_ended(&mut self, now: Micros) {
        self.hold.take_if(|h| h.expires <= now);
        self.line.retain(|w| w.deadline > now);
        self.tombstones.retain(|s| s.until > now);
    }

    fn propose(
        &mut self,
        bid: &Bid,
        via: &str,
        now: Now,
        rules: &NodeRules,
        effects: &mut Effects,
    ) -> Vote {
        let req = bid.ask.req;
        if let Some(vote) = self.again(&req, bid.round, now.lease) {
            return vote;
        }
        if let Some(vote) = not_yet(now.lease, rules) {
            return vote;
        }
        let who = who(&bid.ask, via);
        let waited_for = self.hold.as_ref().is_some_and(|h| self.waiters(&h.who.req) > 0);
        let queued = self.take_place(&who, bid.place, now, rules);
        if !self.admits(&req) {
            if queued && !waited_for {
                effects.contended.extend(self.hold.as_ref().map(address));
            }
            let ahead = queued.then(|| self.ahead(&req));
            let status = QueueStatus { ahead, ..self.status(now.lease) };
            return Vote::Busy { status, queued };
        }
        let base = self.hi.max(now.wall.0);
        let p = bid.token.get();
        let near =
            p > now.wall.0.saturating_sub(micros(rules.slack)) && p < now.wall.plus(rules.ahead).0;
        let accepted = p > self.hi && near;
        if accepted {
            self.hi = p;
        }
        let token = accepted.then_some(bid.token);
        let taken = Taken { token, accepted, base, healed: false };
        self.take(who, bid.round, &bid.ask, taken, now)
    }

    fn heal(&mut self, heal: &Heal, via: &str, now: Now, rules: &NodeRules) -> Vote {
        let req = heal.ask.req;
        if let Some(vote) = self.again(&req, heal.round, now.lease) {
            // A straggler of the very round that was granted: it learns the token by this.
            if let (Vote::Granted { .. }, Some(hold)) = (&vote, &mut self.hold) {
                hold.token = Some(heal.token);
                self.hi = self.hi.max(heal.token.get());
            }
            return vote;
        }
        if let Some(vote) = not_yet(now.lease, rules) {
            return vote;
        }
        if self.hold.is_some() {
            return Vote::Busy { status: self.status(now.lease), queued: false };
        }
        let base = self.hi.max(now.wall.0);
        self.hi = self.hi.max(heal.token.get());
        let token = Some(heal.token);
        let taken = Taken { token, accepted: false, base, healed: true };
        self.take(who(&heal.ask, via), heal.round, &heal.ask, taken, now)
    }

    /// What a round finds that this node knows already: a tombstone, or the same grant. An earlier
    /// round of the same request is over when a later one comes.
    fn again(&mut self, req: &ReqId, round: Round, now: Micros) -> Option<Vote> {
        if self.tombstones.iter().any(|s| s.req == *req && round <= s.upto) {
            return Some(Vote::Tombstoned);
        }
        let hold = self.hold.as_ref().filter(|h| h.who.req == *req)?;
        if hold.phase != NodePhase::Held || hold.round > round {
            return Some(Vote::Tombstoned);
        }
        if hold.round == round {
            return Some(self.granted(now));
        }
        self.hold = None;
        None
    }

    fn granted(&self, now: Micros) -> Vote {
        let Some(h) = &self.hold else { return Vote::Tombstoned };
        Vote::Granted {
            accepted: h.accepted,
            base: Some(h.base),
            generation: h.generation,
            left: h.expires.since(now),
            waiters: self.waiters(&h.who.req),
        }
    }

    fn take(&mut self, who: Who, round: Round, ask: &Ask, taken: Taken, now: Now) -> Vote {
        self.generation = now.wall.0.max(self.generation.saturating_add(1));
        self.hold = Some(NodeHold {
            who,
            round,
            generation: Generation(self.generation),
            token: taken.token,
            accepted: taken.accepted,
            base: taken.base,
            granted: now.lease,
            expires: now.lease.plus(ask.ttl),
            min_hold: ask.min_hold,
            phase: NodePhase::Held,
            healed: taken.healed,
        });
        self.granted(now.lease)
    }

    /// Puts a request in the queue, hears of one that is there, or takes it out. True when it is
    /// there.
    fn take_place(
        &mut self,
        who: &Who,
        place: Option<Position>,
        now: Now,
        rules: &NodeRules,
    ) -> bool {
        let at = self.line.iter().position(|w| w.who.req == who.req);
        let Some(place) = place else {
            at.map(|i| self.line.remove(i));
            return false;
        };
        let deadline = now.lease.plus(place.wait);
        if let Some(w) = at.map(|i| &mut self.line[i])
            && w.ticket == place.ticket
        {
            w.deadline = deadline;
            w.backed = place.backed;
            return true;
        }
        // A ticket is a moment: one from long ago, or from the future, is not believed.
        if place.ticket.abs_diff(now.wall.0) > micros(rules.window) {
            return false;
        }
        let since = at.map_or(now.lease, |i| self.line.remove(i).since);
        let (ticket, backed) = (place.ticket, place.backed);
        let waiter = NodeWaiter { who: who.clone(), ticket, since, deadline, backed };
        let i = self.line.partition_point(|w| (w.ticket, w.who.req) < (ticket, who.req));
        self.line.insert(i, waiter);
        true
    }

    /// Whether a request may take the lock: it is free, and no waiter that keeps others out is
    /// ahead.
    fn admits(&self, req: &ReqId) -> bool {
        let ahead = self.line.iter().take_while(|w| w.who.req != *req);
        self.hold.is_none() && ahead.into_iter().all(|w| !w.backed)
    }

    fn commit(&mut self, commit: &Commit) -> Committed {
        let mine = |h: &&mut NodeHold| {
            h.who.req == commit.key.req
                && (h.round, h.generation, h.phase)
                    == (commit.round, commit.generation, NodePhase::Held)
        };
        let Some(hold) = self.hold.as_mut().filter(mine) else { return Committed::Lost };
        hold.token = Some(commit.token);
        self.hi = self.hi.max(commit.token.get());
        Committed::Yes
    }

    fn renew(&mut self, due: &NodeDue, now: Micros) -> NodeReply {
        let waiters = self.waiters(&due.key.req);
        let Some(hold) = self.hold.as_mut().filter(|h| h.who.req == due.key.req) else {
            return NodeReply::Lost(LossReason::Gone);
        };
        let meant = due.generation.map_or(!hold.healed, |g| g == hold.generation);
        match hold.phase {
            NodePhase::Held if meant => {
                hold.expires = hold.expires.max(now.plus(due.ttl));
                // A request that quotes its generation has counted it.
                hold.healed &= due.generation.is_none();
                let (generation, token) = (hold.generation, hold.token);
                NodeReply::Kept { generation, left: hold.expires.since(now), token, waiters }
            }
            NodePhase::Revoked => NodeReply::Lost(LossReason::Revoked),
            NodePhase::Held | NodePhase::Lingering => NodeReply::Lost(LossReason::Gone),
        }
    }

    fn release(
        &mut self,
        req: &ReqId,
        now: Micros,
        rules: &NodeRules,
        effects: &mut Effects,
    ) -> Released {
        let whole = |s: &NodeTombstone| s.req == *req && s.upto == Round::ALL;
        let hold = self.hold.as_mut().filter(|h| h.who.req == *req);
        let (end, from) = match (hold, self.tombstones.iter().find(|s| whole(s))) {
            // How it ended first is how it ended.
            (None, Some(tombstone)) => (tombstone.end, now),
            (None, None) => (End::Cancelled, now),
            (Some(hold), _) if hold.phase == NodePhase::Revoked => (End::Cancelled, now),
            (Some(hold), _) => {
                let until = hold.granted.plus(hold.min_hold);
                if until > now {
                    hold.phase = NodePhase::Lingering;
                    hold.expires = until;
                }
                (End::Released, until.max(now))
            }
        };
        self.leave(req);
        let ends = |h: &mut NodeHold| h.who.req == *req && h.phase != NodePhase::Lingering;
        let freed = self.hold.take_if(ends).is_some();
        self.spend(*req, Round::ALL, end, from, rules);
        if freed {
            self.call_next(req, effects);
        }
        match end {
            End::Released => Released::Released,
            End::Cancelled => Released::WasLost,
        }
    }

    fn cancel(
        &mut self,
        req: &ReqId,
        upto: Round,
        now: Micros,
        rules: &NodeRules,
        effects: &mut Effects,
    ) {
        // A revoked one too: a request that cancels knows that it does not hold it.
        let ends = |h: &mut NodeHold| {
            h.who.req == *req && h.round <= upto && h.phase != NodePhase::Lingering
        };
        let freed = self.hold.take_if(ends).is_some();
        let left = upto == Round::ALL && self.leave(req);
        self.spend(*req, upto, End::Cancelled, now, rules);
        if freed || (left && self.hold.is_none()) {
            self.call_next(req, effects);
        }
    }

    fn force(
        &mut self,
        token: Option<Token>,
        how: Force,
        now: Micros,
        rules: &NodeRules,
        effects: &mut Effects,
    ) -> Forced {
        let meant = |h: &&mut NodeHold| token.is_none() || h.token == token;
        let Some(hold) = self.hold.as_mut().filter(meant) else { return Forced::NoMatch };
        let req = hold.who.req;
        effects.revoked.push(address(hold));
        let mut from = now;
        match (how, hold.phase) {
            (Force::Revoke, NodePhase::Held | NodePhase::Revoked) => {
                hold.phase = NodePhase::Revoked;
                from = hold.expires;
            }
            // Nobody believes in a hold that was released.
            (Force::Now, _) | (Force::Revoke, NodePhase::Lingering) => {
                self.hold = None;
                self.call_next(&req, effects);
            }
        }
        self.leave(&req);
        self.spend(req, Round::ALL, End::Cancelled, from, rules);
        Forced::Done
    }

    /// Remembers that rounds have ended. How a whole request ended first stays.
    fn spend(&mut self, req: ReqId, upto: Round, end: End, from: Micros, rules: &NodeRules) {
        let until = from.plus(rules.tombstone);
        let before = self.tombstones.iter().position(|s| s.req == req);
        let tombstone = match before.and_then(|i| self.tombstones.remove(i)) {
            Some(old) if old.upto >= upto => NodeTombstone { until: until.max(old.until), ..old },
            Some(old) => NodeTombstone { req, upto, end, until: until.max(old.until) },
            None => NodeTombstone { req, upto, end, until },
        };
        while self.tombstones.len() >= rules.spent_cap.max(1) {
            self.tombstones.pop_front();
        }
        if rules.spent_cap > 0 {
            self.tombstones.push_back(tombstone);
        }
    }

    fn leave(&mut self, req: &ReqId) -> bool {
        let before = self.line.len();
        self.line.retain(|w| w.who.req != *req);
        self.line.len() < before
    }

    /// Tells the head of the queue, and the first that keeps others out if that is another one. Not
    /// the one that gave way just now: it knows, and those behind it could not pass it.
    fn call_next(&self, by: &ReqId, effects: &mut Effects) {
        let head = self.line.first();
        let backed = self.line.iter().find(|w| w.backed);
        let backed = backed.filter(|w| head.is_some_and(|h| h.who.req != w.who.req));
        let called = head.into_iter().chain(backed).filter(|w| w.who.req != *by);
        effects.turns.extend(called.map(|w| (w.who.req, w.who.via.clone())));
    }

    fn waiters(&self, but: &ReqId) -> u32 {
        let others = self.line.iter().filter(|w| w.who.req != *but).count();
        u32::try_from(others).unwrap_or(u32::MAX)
    }

    /// How many are before it; not the holder, whose place stays until it gives back.
    fn ahead(&self, req: &ReqId) -> u32 {
        let holds = |w: &&NodeWaiter| self.hold.as_ref().is_some_and(|h| h.who.req == w.who.req);
        let before = self.line.iter().take_while(|w| w.who.req != *req);
        let ahead = before.filter(|w| !holds(w)).count();
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    fn status(&self, now: Micros) -> QueueStatus {
        let ends = match &self.hold {
            Some(hold) => Some(hold.expires),
            None => self.line.iter().filter(|w| w.backed).map(|w| w.deadline).max(),
        };
        let holder = self.hold.as_ref().and_then(|h| h.seen_by_others(now));
        QueueStatus { holder, left: ends.map(|e| e.since(now)), ..QueueStatus::default() }
    }

    /// This lock as an operator sees it at this node; `None` when there is nothing to see.
    #[must_use]
    pub fn view(&self, lock: &FullName, now: Micros) -> Option<LockInfo> {
        let mut live = self.clone();
        live.drop_ended(now);
        let holds: Vec<_> = live.hold.iter().filter_map(|h| h.info(now)).collect();
        let waiter = |w: &NodeWaiter| WaiterInfo {
            req: w.who.req,
            owner: w.who.owner.clone(),
            label: w.who.label.clone(),
            mode: Mode::Exclusive,
            waited: now.since(w.since),
        };
        let held = |w: &&NodeWaiter| live.hold.as_ref().is_none_or(|h| h.who.req != w.who.req);
        let waiters: Vec<_> = live.line.iter().filter(held).map(waiter).collect();
        let seen = !holds.is_empty() || !waiters.is_empty();
        seen.then(|| LockInfo { lock: lock.clone(), holds, waiters })
    }
}

/// What a grant writes.
struct Taken {
    token: Option<Token>,
    accepted: bool,
    base: u64,
    healed: bool,
}

impl NodeHold {
    /// Unknown to others until it has a token: it may be a bid that fails.
    fn seen_by_others(&self, now: Micros) -> Option<Holder> {
        Some(Holder {
            label: self.who.label.clone(),
            owner: self.who.owner.clone(),
            token: self.token?,
            age: now.since(self.granted),
            left: Some(self.expires.since(now)),
        })
    }

    fn info(&self, now: Micros) -> Option<HoldInfo> {
        Some(HoldInfo {
            req: self.who.req,
            holder: self.seen_by_others(now)?,
            tokens: NonZeroU32::MIN,
            mode: Mode::Exclusive,
            lingering: self.phase == NodePhase::Lingering,
            revoked: self.phase == NodePhase::Revoked,
        })
    }
}

fn who(ask: &Ask, via: &str) -> Who {
    Who { req: ask.req, owner: ask.owner.clone(), label: ask.label.clone(), via: via.to_owned() }
}

fn address(hold: &NodeHold) -> (ReqId, String) {
    (hold.who.req, hold.who.via.clone())
}

fn not_yet(now: Micros, rules: &NodeRules) -> Option<Vote> {
    let left = rules.opens.since(now);
    let why = || {
        format!(
            "a node started without durable data: granting in {:?}",
            Duration::from_millis(left.as_millis().try_into().unwrap_or(u64::MAX))
        )
    };
    (!left.is_zero()).then(|| Vote::NotYet { left, why: why() })
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
