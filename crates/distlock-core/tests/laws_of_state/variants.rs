//! The step as it is, and the step with one bug each: small wrappers around the real one, which
//! the models must tell from it.

use distlock_core::state::{LockState, Now, Op, Phase, Rules, Step};

/// Which step a model runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Variant {
    /// The product's own.
    Real,
    /// A cancel leaves no tombstone.
    NoTombstone,
    /// A release leaves no memory.
    ReleaseForgotten,
    /// A newcomer does not look at the line.
    Barging,
    /// A renewal brings back a hold that has expired, if nobody took it.
    RenewResurrects,
    /// A release ends whatever hold is there.
    ReleaseUnchecked,
    /// A lock that is free forgets its highest token.
    TokenForgotten,
    /// Waiters that fell silent stay in line.
    DeadWaitersStay,
}

impl Variant {
    /// One step of this variant.
    pub(crate) fn step(self, state: &mut LockState, op: &Op, now: Now, rules: &Rules) -> Step {
        let mut rules = *rules;
        let silent = state.queue.iter().filter(|w| w.deadline <= now.lease).cloned();
        let silent: Vec<_> = silent.collect();
        match (self, op) {
            (Variant::NoTombstone, _) => rules.cancelled_cap = 0,
            (Variant::ReleaseForgotten, _) => rules.released_cap = 0,
            (Variant::RenewResurrects, Op::Renew { req, ttl }) => {
                let mut holds = state.holds.iter_mut().filter(|h| h.claim.req == *req);
                if let Some(hold) = holds.find(|h| h.phase == Phase::Held) {
                    hold.expires = hold.expires.max(now.lease.plus(*ttl));
                }
            }
            (Variant::ReleaseUnchecked, Op::Release { .. }) => {
                if let Some(hold) = state.holds.iter().find(|h| h.expires > now.lease) {
                    let op = Op::Release { req: hold.claim.req };
                    return state.step(&op, now, &rules);
                }
            }
            (Variant::Barging, Op::Acquire { claim, .. })
                if state.queue.iter().all(|w| w.claim.req != claim.req) =>
            {
                let line = std::mem::take(&mut state.queue);
                let step = state.step(op, now, &rules);
                let newcomer = std::mem::replace(&mut state.queue, line);
                state.queue.extend(newcomer);
                return step;
            }
            _ => {}
        }
        let step = state.step(op, now, &rules);
        if self == Variant::TokenForgotten && state.holds.is_empty() && state.queue.is_empty() {
            state.hi = 0;
        }
        if self == Variant::DeadWaitersStay {
            state.queue.extend(silent);
        }
        step
    }
}
