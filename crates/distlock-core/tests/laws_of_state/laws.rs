//! What must hold after every single step, whatever the step was: the judge of the generated
//! histories and of the network model alike.

use std::collections::BTreeSet;

use distlock_core::backend::Force;
use distlock_core::state::{Hold, LockState, Micros, Now, Op, Phase, Reply, Rules};
use distlock_core::{Mode, ReqId};

/// The laws, by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Law {
    /// Exclusive means one owner; readers are with readers, permits with permits, n at most.
    OneHolder,
    /// Every grant that is no re-entry has a token above all before it.
    TokensRise,
    /// A request that holds is answered with its very grant and what is left of it.
    SameGrant,
    /// The same operation at the same time has the same answer.
    SameAnswer,
    /// A request that was released, cancelled or taken away neither holds nor waits again.
    EndedStaysEnded,
    /// A hold ends by its own request, by its expiry or by force, and by nothing else.
    OnlyItsOwnEnds,
    /// Nobody gets in before somebody who can be reached and came earlier.
    NoOvertaking,
    /// No step leaves somebody waiting who could be let in.
    NothingLeftUndone,
    /// No step leaves a hold or waiter behind whose time is over.
    NothingDeadStays,
}

/// What the judge remembers of the past.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Memory {
    /// The highest token granted.
    pub(crate) top: u64,
    /// Requests that must never come back.
    pub(crate) ended: BTreeSet<ReqId>,
}

/// One step, from the outside.
pub(crate) struct Seen<'a> {
    pub(crate) before: &'a LockState,
    pub(crate) op: &'a Op,
    pub(crate) reply: &'a Reply,
    pub(crate) after: &'a LockState,
    pub(crate) now: Now,
    pub(crate) rules: &'a Rules,
}

impl Memory {
    /// Judges one step.
    pub(crate) fn judge(&mut self, seen: &Seen<'_>) -> Result<(), Law> {
        let fine = |ok: bool, law: Law| if ok { Ok(()) } else { Err(law) };
        self.note_ends(seen);
        fine(compatible(seen.after), Law::OneHolder)?;
        fine(self.tokens_rise(seen), Law::TokensRise)?;
        fine(same_grant(seen), Law::SameGrant)?;
        fine(self.ended_stays_ended(seen.after), Law::EndedStaysEnded)?;
        fine(only_its_own_ends(seen), Law::OnlyItsOwnEnds)?;
        fine(no_overtaking(seen), Law::NoOvertaking)?;
        fine(nothing_dead(seen.after, seen.now.lease), Law::NothingDeadStays)?;
        fine(nothing_left_undone(seen), Law::NothingLeftUndone)?;
        fine(same_answer(seen), Law::SameAnswer)
    }

    fn note_ends(&mut self, seen: &Seen<'_>) {
        match seen.op {
            Op::Release { req } | Op::Cancel { req } => {
                self.ended.insert(*req);
            }
            Op::Force { how, .. } if *seen.reply == Reply::Forced => {
                let stays = |h: &Hold| {
                    let after = seen.after.holds.iter().find(|a| a.claim.req == h.claim.req);
                    after.is_some_and(|a| *how == Force::Now || a.phase != Phase::Revoked)
                };
                let taken = live(seen.before, seen.now.lease).filter(|h| !stays(h));
                self.ended.extend(taken.map(|h| h.claim.req));
            }
            _ => {}
        }
    }

    fn tokens_rise(&mut self, seen: &Seen<'_>) -> bool {
        for hold in fresh(seen) {
            if hold.token <= self.top {
                return false;
            }
            self.top = hold.token + u64::from(hold.block) - 1;
        }
        self.top <= seen.after.hi
    }

    fn ended_stays_ended(&self, after: &LockState) -> bool {
        let over = |h: &Hold| matches!(h.phase, Phase::Lingering | Phase::Revoked);
        after.holds.iter().all(|h| over(h) || !self.ended.contains(&h.claim.req))
            && after.queue.iter().all(|w| !self.ended.contains(&w.claim.req))
    }
}

fn live(state: &LockState, now: Micros) -> impl Iterator<Item = &Hold> {
    state.holds.iter().filter(move |h| h.expires > now)
}

fn same(a: &Hold, b: &Hold) -> bool {
    a.claim.req == b.claim.req && a.token == b.token
}

/// The holds that this step brought, re-entries left out.
fn fresh<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = &'a Hold> {
    let old = |h: &Hold| live(seen.before, seen.now.lease).any(|b| same(b, h));
    let joins = |a: &Hold, b: &Hold| {
        (&a.claim.owner, a.claim.mode, a.token) == (&b.claim.owner, b.claim.mode, b.token)
    };
    let holds = seen.after.holds.iter().enumerate();
    let fresh = holds.filter(move |(i, h)| {
        let again = live(seen.before, seen.now.lease).chain(&seen.after.holds[..*i]);
        !old(h) && !again.into_iter().any(|o| joins(o, h))
    });
    fresh.map(|(_, h)| h)
}

/// Whether all holds go together.
pub(crate) fn compatible(state: &LockState) -> bool {
    let Some(first) = state.holds.first() else { return true };
    let alike = state.holds.iter().all(|h| h.claim.mode == first.claim.mode);
    let tokens: BTreeSet<u64> = state.holds.iter().map(|h| h.token).collect();
    alike
        && match first.claim.mode {
            Mode::Exclusive => {
                tokens.len() == 1 && state.holds.iter().all(|h| h.claim.owner == first.claim.owner)
            }
            Mode::Shared => true,
            Mode::Permit(n) => tokens.len() <= n.get() as usize,
        }
}

fn same_grant(seen: &Seen<'_>) -> bool {
    let Op::Acquire { claim, .. } = seen.op else { return true };
    let mut held = live(seen.before, seen.now.lease).filter(|h| h.phase == Phase::Held);
    held.find(|h| h.claim.req == claim.req).is_none_or(|h| match seen.reply {
        Reply::Granted { token, remaining, .. } => {
            token.get() == h.token && *remaining == h.expires.since(seen.now.lease)
        }
        _ => false,
    })
}

fn only_its_own_ends(seen: &Seen<'_>) -> bool {
    let by_itself = |h: &Hold| match seen.op {
        Op::Release { req } | Op::Cancel { req } => *req == h.claim.req,
        Op::Withdraw { req, .. } => *req == h.claim.req && matches!(h.phase, Phase::Claimed { .. }),
        Op::Force { .. } => true,
        _ => false,
    };
    let kept = |h: &Hold| seen.after.holds.iter().any(|a| same(a, h) && a.expires >= h.expires);
    live(seen.before, seen.now.lease).all(|h| kept(h) || by_itself(h))
}

fn no_overtaking(seen: &Seen<'_>) -> bool {
    // Whoever fell silent for too long has lost its place, and comes back as a newcomer.
    let now = seen.now.lease;
    let waiting = seen.before.queue.iter().filter(|w| w.deadline > now);
    let waiting = waiting.map(|w| (w.claim.req, w.since));
    let claimed = seen.before.holds.iter().filter_map(|h| match h.phase {
        Phase::Claimed { since, deadline } if deadline.max(h.expires) > now => {
            Some((h.claim.req, since))
        }
        _ => None,
    });
    let places: Vec<(ReqId, Micros)> = waiting.chain(claimed).collect();
    let place = |req: ReqId| places.iter().find(|(r, _)| *r == req).map(|(_, since)| *since);
    let far = Micros(u64::MAX);
    fresh(seen).all(|h| {
        let mine = place(h.claim.req).unwrap_or(far);
        let mut left = seen.after.queue.iter().filter(|w| !w.unreachable);
        !left.any(|w| place(w.claim.req).is_some_and(|since| since < mine))
    })
}

fn nothing_dead(after: &LockState, now: Micros) -> bool {
    after.holds.iter().all(|h| h.expires > now) && after.queue.iter().all(|w| w.deadline > now)
}

fn nothing_left_undone(seen: &Seen<'_>) -> bool {
    let mut settled = seen.after.clone();
    settled.step(&Op::Settle, seen.now, seen.rules);
    settled == *seen.after
}

/// Force is the one exception: without a token it means whoever holds the lock by then.
fn same_answer(seen: &Seen<'_>) -> bool {
    let reply = seen.after.clone().step(seen.op, seen.now, seen.rules).reply;
    match (seen.op, seen.reply, &reply) {
        (Op::Force { .. }, ..) => true,
        // Why it was lost may be forgotten with the hold; that it was lost may not.
        (_, Reply::Lost(_), Reply::Lost(_)) => true,
        (_, first, second) => first == second,
    }
}

/// "Free and somebody alive waits" must have a step that grants: that waiter's own question.
pub(crate) fn not_stuck(state: &LockState, now: Now, rules: &Rules) -> bool {
    let mut settled = state.clone();
    settled.step(&Op::Settle, now, rules);
    if !settled.holds.is_empty() || settled.delay_until > now.lease {
        return true;
    }
    settled.queue.iter().all(|w| {
        let ask = Op::Acquire { claim: w.claim.clone(), wait: Some(w.claim.ttl) };
        w.unreachable
            && matches!(settled.clone().step(&ask, now, rules).reply, Reply::Granted { .. })
    })
}
