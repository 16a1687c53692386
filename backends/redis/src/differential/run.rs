//! Moves run on the server and on the specification side by side.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::seam::{Ask, Force};
use distlock_core::state::{Claim, LockState, Op, Reply};
use distlock_core::{Error, FullName, Label, Mode, Name, Namespace, Owner, Patience, ReqId, Token};
use redis::Value;

use super::oracle::{Oracle, Told};
use super::scene::{HEARD, Scene};
use crate::call::Call;
use crate::keys::Keys;
use crate::moves::{self, Counted, Kind, Message};

pub(super) const LOCKS: [&str; 2] = ["a", "b {x}"];
/// Two that are listened to, one that is not, and none.
pub(super) const VIAS: [&str; 4] = ["via-1", "via-2", "deaf", ""];

/// A request's properties; its id changes when it is taken up anew.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) lock: usize,
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) ttl: u64,
    pub(super) min_hold: u64,
    pub(super) lock_delay: u64,
    pub(super) block: u32,
    pub(super) via: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Move {
    /// `fresh` takes the slot up anew, under another id; `moved` listens elsewhere this once.
    Acquire {
        slot: usize,
        wait: Option<u64>,
        fresh: bool,
        moved: Option<usize>,
    },
    Heartbeat {
        slots: Vec<usize>,
        wait: u64,
        via: usize,
    },
    Renew {
        slots: Vec<usize>,
        ttl: u64,
    },
    /// `back` speaks of an earlier id of the slot.
    Release {
        slot: usize,
        back: usize,
    },
    Cancel {
        slot: usize,
        back: usize,
    },
    /// With the token of the n-th hold, or of nobody, or without.
    Force {
        lock: usize,
        token: Option<usize>,
        how: Force,
    },
    Settle {
        lock: usize,
    },
}

pub(super) fn lock(i: usize) -> FullName {
    FullName { space: Namespace::new("t").unwrap(), name: Name::new(LOCKS[i]).unwrap() }
}

pub(super) struct Run<'a> {
    pub(super) scene: &'a mut Scene,
    pub(super) oracle: Oracle,
    pub(super) slots: Vec<Slot>,
    /// The ids each slot has had, newest last.
    pub(super) ids: Vec<Vec<ReqId>>,
    pub(super) now: u64,
    pub(super) next: u128,
}

impl<'a> Run<'a> {
    /// An empty server, and nobody has asked yet.
    pub(super) async fn new(scene: &'a mut Scene, slots: Vec<Slot>, trusted: bool) -> Self {
        scene.run(redis::cmd("FLUSHALL")).await;
        let time: (u64, u64) = redis::cmd("TIME").query_async(&mut scene.link).await.unwrap();
        let oracle = Oracle::new(LOCKS.len(), trusted);
        let now = time.0 * 1_000_000 + time.1;
        let mut run = Self { scene, oracle, ids: Vec::new(), slots, now, next: 0 };
        for _ in 0..run.slots.len() {
            let id = run.fresh();
            run.ids.push(vec![id]);
        }
        run
    }

    fn fresh(&mut self) -> ReqId {
        self.next += 1;
        if self.next == 1 {
            // Looks like the field that counts the waiters of an owner.
            return ReqId::from_bytes(*b"o0:owner-0000001");
        }
        ReqId::from_bytes(
            self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes(),
        )
    }

    pub(super) fn id(&self, slot: usize, back: usize) -> ReqId {
        let ids = &self.ids[slot];
        ids[ids.len().saturating_sub(1 + back)]
    }

    fn ask(&self, slot: usize) -> Ask {
        let s = &self.slots[slot];
        let ms = Duration::from_millis;
        Ask {
            lock: lock(s.lock),
            req: self.id(slot, 0),
            // One of thirteen letters: its count's field is as long as a request.
            owner: Owner::named(format!("owner-{:07}", s.owner)).unwrap(),
            mode: s.mode,
            ttl: ms(s.ttl),
            patience: Patience::Forever,
            min_hold: ms(s.min_hold),
            lock_delay: ms(s.lock_delay),
            label: Label::new(format!("slot {slot}")),
            block: NonZeroU32::new(s.block).unwrap(),
        }
    }

    fn keys(&self, slot: usize) -> Keys {
        Keys::of(&lock(self.slots[slot].lock))
    }

    async fn real<T>(
        &mut self,
        call: Call,
        read: impl Fn(&Value) -> Result<T, Error>,
    ) -> (T, Vec<LockState>) {
        let (value, states) = self.scene.step(self.now, call, &[lock(0), lock(1)]).await;
        (read(&value).unwrap(), states)
    }

    /// Makes one move on both and compares answers and states.
    pub(super) async fn one(&mut self, what: &Move) -> Vec<Reply> {
        let counted = &if self.oracle.trusted { Counted::All } else { Counted::None };
        let ms = Duration::from_millis;
        let (got, want, states): (Vec<Reply>, Vec<Reply>, _) = match what {
            Move::Acquire { slot, wait, fresh, moved } => {
                let id = self.id(*slot, 0);
                let known = |s: &LockState| {
                    s.holds.iter().any(|h| h.claim.req == id)
                        || s.queue.iter().any(|w| w.claim.req == id)
                };
                if *fresh && !self.oracle.states.iter().any(known) {
                    let id = self.fresh();
                    self.ids[*slot].push(id);
                }
                let ask = self.ask(*slot);
                let via = VIAS[moved.unwrap_or(self.slots[*slot].via)];
                let wait = wait.map(ms);
                let call = moves::acquire(&self.keys(*slot), &ask, wait, via, counted);
                let (got, states) = self.real(call, |v| moves::acquired(v, ask.ttl)).await;
                let op = Op::Acquire { claim: Claim::of(&ask, via), wait };
                let want = self.oracle.expect(self.slots[*slot].lock, &op, via, self.now);
                (vec![got], vec![want], states)
            }
            Move::Heartbeat { slots, wait, via } => {
                let due: Vec<_> =
                    slots.iter().map(|s| (self.keys(*s), self.id(*s, 0), ms(*wait))).collect();
                let call = moves::heartbeat(&due, VIAS[*via], counted);
                let (got, states) = self.real(call, |v| moves::pulses(v, due.len())).await;
                let want = slots.iter().map(|s| {
                    let op = Op::Heartbeat { req: self.id(*s, 0), wait: ms(*wait) };
                    let lock = self.slots[*s].lock;
                    (lock, op)
                });
                let ops: Vec<_> = want.collect();
                let want = ops
                    .iter()
                    .map(|(lock, op)| self.oracle.expect(*lock, op, VIAS[*via], self.now))
                    .collect();
                (got, want, states)
            }
            Move::Renew { slots, ttl } => {
                let due: Vec<_> =
                    slots.iter().map(|s| (self.keys(*s), self.id(*s, 0), ms(*ttl))).collect();
                let (got, states) =
                    self.real(moves::renew(&due, counted), |v| moves::renewals(v, due.len())).await;
                // Those of the usual case are answered first.
                let ops: Vec<_> = slots
                    .iter()
                    .map(|s| {
                        let op = Op::Renew { req: self.id(*s, 0), ttl: ms(*ttl) };
                        (self.slots[*s].lock, op)
                    })
                    .collect();
                let want = ops
                    .iter()
                    .map(|(lock, op)| self.oracle.expect(*lock, op, "", self.now))
                    .collect();
                (got, want, states)
            }
            Move::Release { slot, back } => {
                let req = self.id(*slot, *back);
                let call = moves::release(&self.keys(*slot), &req, counted);
                let (got, states) = self.real(call, moves::released).await;
                let lock = self.slots[*slot].lock;
                let want = self.oracle.expect(lock, &Op::Release { req }, "", self.now);
                (vec![got], vec![want], states)
            }
            Move::Cancel { slot, back } => {
                let req = self.id(*slot, *back);
                let call = moves::cancel(&self.keys(*slot), &req, counted);
                let (got, states) = self.real(call, moves::cancelled).await;
                let lock = self.slots[*slot].lock;
                let want = self.oracle.expect(lock, &Op::Cancel { req }, "", self.now);
                (vec![got], vec![want], states)
            }
            Move::Force { lock: at, token, how } => {
                let holds = &self.oracle.states[*at].holds;
                let token = token.map(|i| match holds.get(i) {
                    Some(h) => Token::new(h.token + u64::from(h.block) - 1).unwrap(),
                    None => Token::MIN,
                });
                let call = moves::force(&Keys::of(&lock(*at)), token, *how, counted);
                let (got, states) = self.real(call, moves::forced).await;
                let op = Op::Force { token, how: *how };
                (vec![got], vec![self.oracle.expect(*at, &op, "", self.now)], states)
            }
            Move::Settle { lock: at } => {
                // A heartbeat of somebody unknown lets time do its work, and nothing else.
                let due = [(Keys::of(&lock(*at)), self.fresh(), ms(1))];
                let call = moves::heartbeat(&due, "", counted);
                let (got, states) = self.real(call, |v| moves::pulses(v, 1)).await;
                let op = Op::Heartbeat { req: due[0].1, wait: ms(1) };
                (got, vec![self.oracle.expect(*at, &op, "", self.now)], states)
            }
        };
        assert_eq!(got, want, "{what:?} at {}", self.now);
        for (at, (real, spec)) in states.into_iter().zip(&self.oracle.states).enumerate() {
            let mut spec = spec.clone();
            spec.spent.clear(); // seen by what they forbid
            assert_eq!(real, spec, "lock {at} after {what:?} at {}", self.now);
        }
        got
    }

    /// What was published, in no order.
    pub(super) async fn heard(&mut self) -> Vec<Told> {
        for channel in HEARD {
            let mut end = redis::cmd("PUBLISH");
            end.arg(channel).arg("end");
            self.scene.run(end).await;
        }
        let (mut told, mut ends) = (Vec::new(), 0);
        while ends < HEARD.len() {
            let payload = self.scene.ears.next();
            match Message::parse(&payload) {
                Some(Message { kind, key }) => {
                    let at = usize::from(key.lock == lock(1));
                    assert_eq!(key.lock, lock(at));
                    let kind = match kind {
                        Kind::Turn => b't',
                        Kind::Contended => b'c',
                        Kind::Revoked => b'x',
                    };
                    told.push((kind, key.req, at));
                }
                None => ends += 1,
            }
        }
        told.sort_unstable();
        told
    }
}
