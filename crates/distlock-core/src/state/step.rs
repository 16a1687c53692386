//! The rules, in the order in which every operation meets them:
//!
//! 1. what has ended is dropped: holds, waiters not heard of, tombstones; a waiter
//!    whose promotion ended unconfirmed is back in its place, passed over;
//! 2. the asking waiter, if it is in the queue, is heard of;
//! 3. the head of the queue is promoted while it is compatible with every holder;
//! 4. then the operation itself.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    Claim, Effects, End, Hold, Left, LockState, Micros, Now, Op, Phase, Pulse, Refusal, Reply,
    Rules, Step, Tombstone, Waiter,
};
use crate::{Force, Holder, LossReason, Mode, ReqId, Token, TokenRange};

/// What an operation meets: the time and the rules; and the wake-ups that it causes.
struct Context<'a> {
    now: Now,
    rules: &'a Rules,
    effects: Effects,
}

impl LockState {
    /// Applies one operation at one moment. Total, deterministic, and without side effects beyond
    /// `self`: the store delivers the effects after it has stored the state.
    pub fn step(&mut self, op: &Op, now: Now, rules: &Rules) -> Step {
        let mut cx = Context { now, rules, effects: Effects::default() };
        self.drop_ended(now.lease);
        self.hear(op, now.lease);
        self.promote(&mut cx);
        let reply = match op {
            Op::Acquire { claim, wait } => self.acquire(claim, *wait, &mut cx),
            Op::Heartbeat { req, .. } => Reply::Pulse(self.pulse(req, now.lease)),
            Op::Renew { req, ttl } => self.renew(req, *ttl, now.lease),
            Op::Release { req } => self.release(req, &mut cx),
            Op::Cancel { req } => self.cancel(req, &mut cx),
            Op::Force { token, how } => self.force(*token, *how, &mut cx),
            Op::Withdraw { req, gone } => self.withdraw(req, *gone, &mut cx),
            Op::Settle => Reply::Settled,
        };
        Step { reply, effects: cx.effects }
    }

    pub(super) fn drop_ended(&mut self, now: Micros) {
        let ended: Vec<Hold> = self.holds.extract_if(.., |h| h.expires <= now).collect();
        for hold in ended {
            match hold.phase {
                // Only a holder that may still believe in its hold is a reason to wait on.
                Phase::Held | Phase::Revoked if !hold.claim.lock_delay.is_zero() => {
                    let until = hold.expires.plus(hold.claim.lock_delay);
                    self.delay_until = self.delay_until.max(until);
                }
                // It may not have heard that it was its turn, which is no reason to lose its place.
                Phase::Claimed { since, deadline } => {
                    self.pass_over(hold.claim, since, deadline, now);
                }
                Phase::Held | Phase::Revoked | Phase::Lingering => {}
            }
        }
        self.queue.drop_silent(now);
        self.tombstones.retain(|s| s.until > now);
    }

    /// A waiter that speaks up is alive, and reachable where it speaks from. A heartbeat comes from
    /// where its waiter last asked.
    fn hear(&mut self, op: &Op, now: Micros) {
        let (req, wait, via) = match op {
            Op::Acquire { claim, wait: Some(wait) } => (&claim.req, wait, Some(&claim.via)),
            Op::Heartbeat { req, wait } => (req, wait, None),
            _ => return,
        };
        // Holds first: they are few, and a request that is among them is not in the queue.
        let heard = if let Some(i) = self.hold_of(req) {
            let Phase::Claimed { deadline, .. } = &mut self.holds[i].phase else { return };
            *deadline = (*deadline).max(now.plus(*wait));
            &mut self.holds[i].claim
        } else if let Some(place) = self.queue.place(req) {
            &mut self.queue.hear(place, now.plus(*wait)).claim
        } else {
            return;
        };
        if let Some(via) = via.filter(|via| **via != heard.via) {
            heard.via.clone_from(via);
        }
    }

    /// Hears of many waiters at one moment: what a heartbeat for each would do. All are
    /// heard of before anybody is promoted. Answers in the order of the questions.
    pub fn beat(
        &mut self,
        waiting: &[(ReqId, Duration)],
        now: Now,
        rules: &Rules,
    ) -> (Vec<Pulse>, Effects) {
        let mut cx = Context { now, rules, effects: Effects::default() };
        self.drop_ended(now.lease);
        if waiting.len() > 1 {
            self.queue.index();
        }
        for (req, wait) in waiting {
            self.hear(&Op::Heartbeat { req: *req, wait: *wait }, now.lease);
        }
        self.promote(&mut cx);
        (waiting.iter().map(|(req, _)| self.pulse(req, now.lease)).collect(), cx.effects)
    }

    /// Grants the head while it fits, as a claim that its waiter must confirm. A waiter whose owner
    /// holds the lock already is let in whatever its place, because the holder may be waiting for
    /// it.
    fn promote(&mut self, cx: &mut Context<'_>) {
        while let Some(i) = self.next_up(cx.now.lease) {
            let Some(waiter) = self.queue.remove(i) else { break };
            let until = cx.now.lease.plus(cx.rules.claim.min(waiter.claim.ttl));
            cx.effects.turns.push((waiter.claim.req, waiter.claim.via.clone()));
            let phase = Phase::Claimed { since: waiter.since, deadline: waiter.deadline };
            self.grant(waiter.claim, phase, until, cx);
        }
    }

    fn next_up(&self, now: Micros) -> Option<usize> {
        let waits_too = |h: &Hold| h.phase == Phase::Held && self.queue.may_have(&h.claim.owner);
        let enters = |w: &Waiter| !w.unreachable && self.joins(&w.claim).is_some();
        let owner_waits = self.holds.iter().any(waits_too);
        owner_waits.then(|| self.queue.iter().position(enters)).flatten().or_else(|| {
            let head = self.queue.iter().position(|w| !w.unreachable)?;
            (now >= self.delay_until && self.fits(self.queue[head].claim.mode)).then_some(head)
        })
    }

    /// The hold that lets this claim in as a re-entry.
    fn joins(&self, claim: &Claim) -> Option<&Hold> {
        let same = |h: &&Hold| h.claim.owner == claim.owner && h.claim.mode == claim.mode;
        self.holds.iter().filter(|h| h.phase == Phase::Held).find(same)
    }

    fn fits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holds.is_empty(),
            Mode::Shared => self.holds.iter().all(|h| h.claim.mode == Mode::Shared),
            Mode::Permit(n) => {
                let mut tokens: Vec<u64> = self.holds.iter().map(|h| h.token).collect();
                tokens.sort_unstable();
                tokens.dedup();
                self.holds.iter().all(|h| h.claim.mode == mode) && tokens.len() < n.get() as usize
            }
        }
    }

    fn grant(&mut self, claim: Claim, phase: Phase, until: Micros, cx: &Context<'_>) {
        let (token, block) = match self.joins(&claim) {
            Some(h) => (h.token, h.block),
            None => self.next_tokens(claim.block, cx.now.wall, cx.rules),
        };
        self.holds.push(Hold { claim, token, block, expires: until, granted: cx.now.lease, phase });
    }

    /// The wall's time or one more than ever given out, whichever is higher: rising whatever the
    /// wall does while this state is kept, and rising past a loss of it while the wall is right.
    /// A block is cut rather than let `hi` run ahead of the wall.
    fn next_tokens(&mut self, wish: NonZeroU32, wall: Micros, rules: &Rules) -> (u64, u32) {
        let token = self.hi.saturating_add(1).max(wall.0).min(Token::MAX.get());
        let room = wall.plus(rules.ahead).0.saturating_sub(token).max(1);
        let block = u64::from(wish.get()).min(room);
        self.hi = token + block - 1;
        (token, u32::try_from(block).unwrap_or(1))
    }

    fn acquire(&mut self, claim: &Claim, wait: Option<Duration>, cx: &mut Context<'_>) -> Reply {
        if let Some(tombstone) = self.tombstones.iter().find(|s| s.req == claim.req) {
            return Reply::Tombstoned(tombstone.end);
        }
        if let Some(i) = self.hold_of(&claim.req) {
            return self.again(i, claim, cx);
        }
        if let Some(refusal) = self.refusal(claim) {
            self.leave(&claim.req, cx);
            return Reply::Refused(refusal);
        }
        let nobody_ahead = self.queue.iter().all(|w| w.unreachable);
        let free = cx.now.lease >= self.delay_until && nobody_ahead && self.fits(claim.mode);
        if free || self.joins(claim).is_some() {
            self.queue.leave(&claim.req);
            let until = cx.now.lease.plus(claim.ttl);
            self.grant(claim.clone(), Phase::Held, until, cx);
            return self.granted(self.holds.len() - 1, cx.now.lease);
        }
        let Some(wait) = wait else {
            self.leave(&claim.req, cx);
            return Reply::Busy { ahead: self.waiters(), why: self.left(claim.mode, cx.now.lease) };
        };
        if self.queue.place(&claim.req).is_none() {
            if self.queue.is_empty() {
                cx.effects.contended.extend(self.holds.iter().map(Hold::address));
            }
            self.queue.insert(Waiter {
                claim: claim.clone(),
                since: self.next_since(cx.now.lease),
                deadline: cx.now.lease.plus(wait),
                unreachable: false,
            });
        }
        Reply::Waiting { ahead: self.ahead(&claim.req), why: self.left(claim.mode, cx.now.lease) }
    }

    /// A `since` behind that of every waiter and of every claim that may return to the queue, which is
    /// in the order of `since`.
    fn next_since(&self, now: Micros) -> Micros {
        let claimed = self.holds.iter().filter_map(|h| match h.phase {
            Phase::Claimed { since, .. } => Some(since),
            _ => None,
        });
        let last = self.queue.back().map(|w| w.since).into_iter().chain(claimed).max();
        last.map_or(now, |last| now.max(Micros(last.0.saturating_add(1))))
    }

    /// The same request once more: a replay, or the confirmation of a promotion.
    fn again(&mut self, i: usize, claim: &Claim, cx: &mut Context<'_>) -> Reply {
        let hold = &mut self.holds[i];
        match hold.phase {
            Phase::Held => {}
            Phase::Lingering => return Reply::Tombstoned(End::Released),
            Phase::Revoked => return Reply::Tombstoned(End::Cancelled),
            Phase::Claimed { .. } => {
                hold.phase = Phase::Held;
                hold.granted = cx.now.lease;
                hold.expires = cx.now.lease.plus(claim.ttl);
                // Others of the same owner may enter now that it is held for certain.
                self.promote(cx);
            }
        }
        self.granted(i, cx.now.lease)
    }

    fn refusal(&self, claim: &Claim) -> Option<Refusal> {
        let mut modes =
            self.holds.iter().map(|h| h.claim.mode).chain(self.queue.iter().map(|w| w.claim.mode));
        if let Mode::Permit(n) = claim.mode {
            let differs = |m| matches!(m, Mode::Permit(other) if other != n);
            if let Some(Mode::Permit(other)) = modes.find(|m| differs(*m)) {
                return Some(Refusal::PermitsDiffer(other));
            }
        }
        let mine = |h: &&Hold| h.claim.owner == claim.owner && h.phase == Phase::Held;
        let mine = self.holds.iter().find(mine)?.claim.mode;
        (mine != claim.mode).then_some(Refusal::ModeDiffers(mine))
    }

    /// What a heartbeat finds of a request that is not in the queue any more.
    fn pulse_of_hold(&self, req: &ReqId) -> Option<Pulse> {
        Some(match self.holds[self.hold_of(req)?].phase {
            Phase::Claimed { .. } | Phase::Held => Pulse::Turn,
            Phase::Lingering | Phase::Revoked => Pulse::Unknown,
        })
    }

    fn pulse(&self, req: &ReqId, now: Micros) -> Pulse {
        if let Some(pulse) = self.pulse_of_hold(req) {
            return pulse;
        }
        match self.queue.place(req) {
            Some(place) => Pulse::Queued {
                ahead: count(place),
                left: self.ends(self.queue[place].claim.mode, now),
            },
            None => Pulse::Unknown,
        }
    }

    fn renew(&mut self, req: &ReqId, ttl: Duration, now: Micros) -> Reply {
        let waiters = self.waiters();
        let Some(i) = self.hold_of(req) else { return Reply::Lost(LossReason::Gone) };
        let hold = &mut self.holds[i];
        match hold.phase {
            Phase::Held => {
                hold.expires = hold.expires.max(now.plus(ttl));
                Reply::Renewed { remaining: hold.expires.since(now), waiters }
            }
            Phase::Revoked => Reply::Lost(LossReason::Revoked),
            Phase::Claimed { .. } | Phase::Lingering => Reply::Lost(LossReason::Gone),
        }
    }

    fn release(&mut self, req: &ReqId, cx: &mut Context<'_>) -> Reply {
        let Some(i) = self.hold_of(req) else {
            let released = |s: &Tombstone| s.req == *req && s.end == End::Released;
            if self.tombstones.iter().any(released) {
                return Reply::Released;
            }
            // Too late, but its holder is done with it: an acquire still under way must not bring
            // it back. On record as cancelled, so that a replay does not claim that it was held.
            self.cancel(req, cx);
            return Reply::Lost(LossReason::Gone);
        };
        let hold = &mut self.holds[i];
        let reply = match hold.phase {
            Phase::Lingering => return Reply::Released,
            Phase::Held if hold.min_until(cx.now.lease) > cx.now.lease => {
                let until = hold.min_until(cx.now.lease);
                hold.phase = Phase::Lingering;
                hold.expires = until;
                self.spend(*req, End::Released, until, cx.rules);
                return Reply::Released;
            }
            Phase::Held | Phase::Claimed { .. } => Reply::Released,
            // Its end is on record as a cancel already, and a replay of this must not say more.
            Phase::Revoked => Reply::Lost(LossReason::Revoked),
        };
        self.holds.remove(i);
        self.spend(*req, End::Released, cx.now.lease, cx.rules);
        self.promote(cx);
        reply
    }

    fn cancel(&mut self, req: &ReqId, cx: &mut Context<'_>) -> Reply {
        self.queue.leave(req);
        self.holds.retain(|h| h.claim.req != *req || h.phase == Phase::Lingering);
        self.spend(*req, End::Cancelled, cx.now.lease, cx.rules);
        self.promote(cx);
        Reply::Cancelled
    }

    fn force(&mut self, token: Option<Token>, how: Force, cx: &mut Context<'_>) -> Reply {
        let meant = |h: &Hold| match (token, Token::new(h.token), NonZeroU32::new(h.block)) {
            (None, ..) => true,
            (Some(t), Ok(first), Some(len)) => {
                TokenRange::new(first, len).is_ok_and(|range| range.contains(t))
            }
            _ => false,
        };
        let mut taken = Vec::new();
        for hold in self.holds.iter_mut().filter(|h| meant(h)) {
            cx.effects.revoked.push(hold.address());
            // Nobody believes in a claim or in a hold that was released: those end at once.
            let believed = matches!(hold.phase, Phase::Held | Phase::Revoked);
            match how {
                Force::Revoke if believed => hold.phase = Phase::Revoked,
                _ => hold.expires = cx.now.lease,
            }
            taken.push((hold.claim.req, hold.expires));
        }
        if taken.is_empty() {
            return Reply::NoMatch;
        }
        self.holds.retain(|h| h.expires > cx.now.lease);
        for (req, end) in taken {
            self.spend(req, End::Cancelled, end, cx.rules);
        }
        self.promote(cx);
        Reply::Forced
    }

    fn withdraw(&mut self, req: &ReqId, gone: bool, cx: &mut Context<'_>) -> Reply {
        if let Some(i) = self.hold_of(req)
            && let Phase::Claimed { since, deadline } = self.holds[i].phase
        {
            let claim = self.holds.remove(i).claim;
            self.pass_over(claim, since, deadline, cx.now.lease);
        }
        if gone {
            self.queue.leave(req);
        }
        self.promote(cx);
        Reply::Settled
    }

    /// Takes a request out of the queue, and promotes the waiters it blocked.
    fn leave(&mut self, req: &ReqId, cx: &mut Context<'_>) {
        self.queue.leave(req);
        self.promote(cx);
    }

    /// Puts a promoted waiter back to its place in the queue, passed over until it is heard of.
    fn pass_over(&mut self, claim: Claim, since: Micros, deadline: Micros, now: Micros) {
        if deadline > now {
            self.queue.insert(Waiter { claim, since, deadline, unreachable: true });
        }
    }

    /// Remembers that a request has ended, for a while after `from`. How it ended first stays; but
    /// released and then cancelled it counts as cancelled: a copy of it may be under way, and few
    /// released requests are remembered.
    fn spend(&mut self, req: ReqId, end: End, from: Micros, rules: &Rules) {
        let before = self.tombstones.iter().position(|s| s.req == req);
        let before = before.and_then(|i| self.tombstones.remove(i));
        let until = from.plus(rules.tombstone);
        let (end, until) = before.map_or((end, until), |s| (end.max(s.end), until.max(s.until)));
        let cap = match end {
            End::Released => rules.released_cap,
            End::Cancelled => rules.cancelled_cap,
        };
        let alike = self.tombstones.iter().filter(|s| s.end == end).count();
        let mut surplus = (alike + 1).saturating_sub(cap);
        self.tombstones.retain(|s| {
            let drop = surplus > 0 && s.end == end;
            surplus -= usize::from(drop);
            !drop
        });
        if cap > 0 {
            self.tombstones.push_back(Tombstone { req, end, until });
        }
    }

    fn granted(&self, i: usize, now: Micros) -> Reply {
        let hold = &self.holds[i];
        let floor = self.holds.iter().map(|h| h.token).min().unwrap_or(hold.token);
        let token = |t: u64| Token::new(t).unwrap_or(Token::MAX);
        Reply::Granted {
            token: token(hold.token),
            block: NonZeroU32::new(hold.block).unwrap_or(NonZeroU32::MIN),
            remaining: hold.expires.since(now),
            waiters: self.waiters(),
            floor: token(floor),
        }
    }

    fn hold_of(&self, req: &ReqId) -> Option<usize> {
        self.holds.iter().position(|h| h.claim.req == *req)
    }

    fn waiters(&self) -> u32 {
        count(self.queue.len())
    }

    fn ahead(&self, req: &ReqId) -> u32 {
        count(self.queue.place(req).unwrap_or(self.queue.len()))
    }

    /// The holder in the way, and when time alone could change that.
    fn left(&self, mode: Mode, now: Micros) -> Left {
        Left { holder: self.holder(now), left: self.ends(mode, now) }
    }

    /// When time alone could change something for a mode.
    fn ends(&self, mode: Mode, now: Micros) -> Option<Duration> {
        let ends = self.holds.iter().map(|h| h.expires);
        let end = match mode {
            Mode::Permit(_) => ends.min(),
            Mode::Exclusive | Mode::Shared => ends.max(),
        };
        let end = end.into_iter().chain((self.delay_until > now).then_some(self.delay_until)).max();
        end.map(|e| e.since(now))
    }

    /// The holder to name to others: the longest-standing hold.
    fn holder(&self, now: Micros) -> Option<Holder> {
        self.holds.first().map(|hold| hold.seen_by_others(now))
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Hold {
    fn address(&self) -> (ReqId, String) {
        (self.claim.req, self.claim.via.clone())
    }

    /// A release before this takes effect only then. Of a clock that was set back since the grant
    /// at most `min_hold` from now: it must not keep a lock that nobody wants.
    fn min_until(&self, now: Micros) -> Micros {
        self.granted.min(now).plus(self.claim.min_hold)
    }

    /// This hold as others see it.
    pub(super) fn seen_by_others(&self, now: Micros) -> Holder {
        Holder {
            label: self.claim.label.clone(),
            owner: self.claim.owner.clone(),
            token: Token::new(self.token).unwrap_or(Token::MAX),
            age: now.since(self.granted),
            left: Some(self.expires.since(now)),
        }
    }
}
