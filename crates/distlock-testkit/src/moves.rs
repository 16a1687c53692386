//! Generated moves: what holds the translations of [`LockState`] to it.
//!
//! A few requests of all kinds ([`Slot`]) meet at two locks and make [`Move`]s, with pauses between
//! them. A store's test plays each on the real thing and on the specification and compares answers
//! and states; [`Cast`] knows which request is meant and what the specification is asked.

mod generate;

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::seam::{Ask, Force};
use distlock_core::state::{Claim, LockState, Op};
use distlock_core::{FullName, Label, Mode, Name, Namespace, Owner, Patience, ReqId, Token};

pub use generate::{moves, slots};

/// The names of the locks.
pub const LOCKS: [&str; 2] = ["a", "b {x}"];
/// Where requests say that they can be told of their turn: two that are listened to, one that is
/// not, and none.
pub const VIAS: [&str; 4] = ["via-1", "via-2", "deaf", ""];

/// A request's properties; its id changes when it is taken up anew.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Slot {
    pub lock: usize,
    pub owner: u8,
    pub mode: Mode,
    pub ttl: u64,
    pub min_hold: u64,
    pub lock_delay: u64,
    pub block: u32,
    pub via: usize,
}

/// One move. Times are milliseconds.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Move {
    /// `fresh` takes the slot up anew, under another id; `moved` listens elsewhere this once.
    Acquire { slot: usize, wait: Option<u64>, fresh: bool, moved: Option<usize> },
    /// In one call.
    Heartbeat { slots: Vec<usize>, wait: u64, via: usize },
    /// In one call.
    Renew { slots: Vec<usize>, ttl: u64 },
    /// `back` speaks of an earlier id of the slot.
    Release { slot: usize, back: usize },
    /// As a release.
    Cancel { slot: usize, back: usize },
    /// With the token of the n-th hold, or of nobody, or without.
    Force { lock: usize, token: Option<usize>, how: Force },
    /// Nothing but what time brings: a heartbeat of somebody unknown.
    Settle { lock: usize },
}

/// One of the locks.
///
/// # Panics
/// When there is no such lock.
#[must_use]
pub fn lock(i: usize) -> FullName {
    FullName {
        space: Namespace::new("t").expect("a namespace"),
        name: Name::new(LOCKS[i]).expect("a name"),
    }
}

/// Who plays: the slots and the ids they have had.
#[derive(Clone, Debug)]
pub struct Cast {
    slots: Vec<Slot>,
    /// Newest last.
    ids: Vec<Vec<ReqId>>,
    next: u128,
}

impl Cast {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new(slots: Vec<Slot>) -> Self {
        let mut cast = Self { ids: Vec::new(), slots, next: 0 };
        for _ in 0..cast.slots.len() {
            let id = cast.new_id();
            cast.ids.push(vec![id]);
        }
        cast
    }

    fn new_id(&mut self) -> ReqId {
        self.next += 1;
        if self.next == 1 {
            // Looks like the field with which the redis store counts the waiters of an owner.
            return ReqId::from_bytes(*b"o0:owner-0000001");
        }
        ReqId::from_bytes(
            self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes(),
        )
    }

    /// The id of a slot, or an earlier one of it.
    #[must_use]
    pub fn id(&self, slot: usize, back: usize) -> ReqId {
        let ids = &self.ids[slot];
        ids[ids.len().saturating_sub(1 + back)]
    }

    /// What a slot asks for.
    ///
    /// # Panics
    /// When the slot wants no token.
    #[must_use]
    pub fn ask(&self, slot: usize) -> Ask {
        let s = &self.slots[slot];
        let ms = Duration::from_millis;
        Ask {
            lock: lock(s.lock),
            req: self.id(slot, 0),
            // One of thirteen letters: with its mark it is as long as a request's id.
            owner: Owner::named(format!("owner-{:07}", s.owner)).expect("a name"),
            mode: s.mode,
            ttl: ms(s.ttl),
            patience: Patience::Forever,
            min_hold: ms(s.min_hold),
            lock_delay: ms(s.lock_delay),
            label: Label::new(format!("slot {slot}")),
            block: NonZeroU32::new(s.block).expect("some tokens"),
        }
    }

    /// Readies a move: a request taken up anew gets its id, if the old one is neither held nor in
    /// line by the specification's states.
    pub fn ready(&mut self, what: &Move, states: &[LockState]) {
        let Move::Acquire { slot, fresh: true, .. } = what else { return };
        let id = self.id(*slot, 0);
        let known = |s: &LockState| {
            s.holds.iter().any(|h| h.claim.req == id) || s.queue.iter().any(|w| w.claim.req == id)
        };
        if !states.iter().any(known) {
            let id = self.new_id();
            self.ids[*slot].push(id);
        }
    }

    /// What a readied move asks of the specification: lock, operation, and where the asker
    /// listens.
    pub fn ops(&mut self, what: &Move, states: &[LockState]) -> Vec<(usize, Op, &'static str)> {
        let ms = Duration::from_millis;
        let at = |slot: usize| self.slots[slot].lock;
        match what {
            Move::Acquire { slot, wait, moved, .. } => {
                let via = VIAS[moved.unwrap_or(self.slots[*slot].via)];
                let claim = Claim::of(&self.ask(*slot), via);
                vec![(at(*slot), Op::Acquire { claim, wait: wait.map(ms) }, via)]
            }
            Move::Heartbeat { slots, wait, via } => {
                let op = |s: &usize| Op::Heartbeat { req: self.id(*s, 0), wait: ms(*wait) };
                slots.iter().map(|s| (at(*s), op(s), VIAS[*via])).collect()
            }
            Move::Renew { slots, ttl } => {
                let op = |s: &usize| Op::Renew { req: self.id(*s, 0), ttl: ms(*ttl) };
                slots.iter().map(|s| (at(*s), op(s), "")).collect()
            }
            Move::Release { slot, back } => {
                vec![(at(*slot), Op::Release { req: self.id(*slot, *back) }, "")]
            }
            Move::Cancel { slot, back } => {
                vec![(at(*slot), Op::Cancel { req: self.id(*slot, *back) }, "")]
            }
            Move::Force { lock, token, how } => {
                let token = token.map(|i| match states[*lock].holds.get(i) {
                    Some(h) => Token::new(h.token + u64::from(h.block) - 1).unwrap_or(Token::MAX),
                    None => Token::MIN,
                });
                vec![(*lock, Op::Force { token, how: *how }, "")]
            }
            Move::Settle { lock } => {
                vec![(*lock, Op::Heartbeat { req: self.new_id(), wait: ms(1) }, "")]
            }
        }
    }
}
