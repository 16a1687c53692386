//! The specification, with the two things a translation does in one call that it does in several:
//! taking back a promotion that nobody hears, and hearing from where a waiter is reachable now.

use std::collections::VecDeque;
use std::time::Duration;

use distlock_core::ReqId;
use distlock_core::state::{Effects, LockState, Micros, Now, Op, Phase, Reply, Rules};

/// One message: kind, request, lock.
pub(super) type Told = (u8, ReqId, usize);

pub(super) struct Oracle {
    pub(super) states: Vec<LockState>,
    pub(super) told: Vec<Told>,
    pub(super) trusted: bool,
    /// Where somebody listens.
    heard: [&'static str; 2],
    rules: Rules,
}

impl Oracle {
    pub(super) fn new(locks: usize, trusted: bool, heard: [&'static str; 2], rules: Rules) -> Self {
        let states = vec![LockState::default(); locks];
        Self { states, told: Vec::new(), trusted, heard, rules }
    }

    fn step(&mut self, lock: usize, op: &Op, own: Option<ReqId>, now: u64) -> Reply {
        let at = Now { lease: Micros(now), wall: Micros(now) };
        let step = self.states[lock].step(op, at, &self.rules);
        let mut news = VecDeque::from([step.effects]);
        while let Some(Effects { turns, contended, revoked }) = news.pop_front() {
            for (kind, addresses) in [(b'c', contended), (b'x', revoked)] {
                let listens = |via: &String| self.heard.contains(&via.as_str());
                let heard = addresses.into_iter().filter(|(_, via)| listens(via));
                self.told.extend(heard.map(|(req, _)| (kind, req, lock)));
            }
            for (req, via) in turns {
                if Some(req) == own || via.is_empty() {
                    continue; // the answer tells it, or nothing can
                }
                if self.heard.contains(&via.as_str()) {
                    self.told.push((b't', req, lock));
                } else if self.trusted {
                    let back = Op::Withdraw { req, gone: false };
                    news.push_back(self.states[lock].step(&back, at, &self.rules).effects);
                }
            }
        }
        step.reply
    }

    /// What a translation must answer to an operation of a client that listens at `via`.
    pub(super) fn expect(&mut self, lock: usize, op: &Op, via: &str, now: u64) -> Reply {
        let own = match op {
            Op::Acquire { claim, .. } => Some(claim.req),
            Op::Heartbeat { req, .. } => Some(*req),
            _ => None,
        };
        let heard = match op {
            Op::Acquire { claim, wait: Some(wait) } => Some((claim.req, *wait)),
            Op::Heartbeat { req, wait } => Some((*req, *wait)),
            _ => None,
        };
        // Time, hearing and promotions come first, and nobody who did not hear is in the way.
        match heard {
            Some((req, wait)) => self.hear(lock, req, wait, via, now),
            None => drop(self.step(lock, &Op::Settle, own, now)),
        }
        let at = Now { lease: Micros(now), wall: Micros(now) };
        let dry = self.states[lock].clone().step(op, at, &self.rules).reply;
        if let (Reply::Busy { .. } | Reply::Refused(_), Some(req)) = (dry, own) {
            // It leaves the line, which may promote others, before it is told where it stands.
            self.step(lock, &Op::Withdraw { req, gone: true }, own, now);
        }
        let mut reply = self.step(lock, op, own, now);
        if let Reply::Granted { waiters, .. } = &mut reply {
            // Those who did not hear that it is their turn wait on.
            *waiters = u32::try_from(self.states[lock].queue.len()).expect("a short line");
        }
        reply
    }

    fn hear(&mut self, lock: usize, req: ReqId, wait: Duration, via: &str, now: u64) {
        let state = &mut self.states[lock];
        let claimed = |p: &Phase| matches!(p, Phase::Claimed { .. });
        let queued = state.queue.iter_mut().map(|w| &mut w.claim);
        let promoted = state.holds.iter_mut().filter(|h| claimed(&h.phase)).map(|h| &mut h.claim);
        if let Some(claim) = queued.chain(promoted).find(|c| c.req == req) {
            claim.via = via.to_owned();
        }
        self.step(lock, &Op::Heartbeat { req, wait }, Some(req), now);
    }
}
