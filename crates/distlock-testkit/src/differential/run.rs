//! Moves run on a translation and on the specification side by side.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::backend::{Ask, Due, Key};
use distlock_core::state::{Claim, End, LockState, Op, Reply};
use distlock_core::{FullName, Label, Name, Namespace, Owner, Patience, ReqId, Token};

use super::moves::{LOCKS, Move, Slot};
use super::oracle::{Oracle, Told};
use super::subject::{Knows, Play, Subject};

pub(super) fn lock(i: usize) -> FullName {
    FullName {
        space: Namespace::new("t").expect("a namespace"),
        name: Name::new(LOCKS[i]).expect("a name"),
    }
}

/// A state without what is over; how the two kinds of spent requests are mixed says nothing.
fn what_counts(mut state: LockState, now: u64) -> LockState {
    state.tombstones.retain(|s| s.until.0 > now);
    state.tombstones.make_contiguous().sort_by_key(|s| s.end == End::Cancelled);
    state
}

pub(super) struct Run<'a, S> {
    subject: &'a mut S,
    pub(super) oracle: Oracle,
    pub(super) slots: Vec<Slot>,
    /// The ids each slot has had, newest last.
    pub(super) ids: Vec<Vec<ReqId>>,
    pub(super) now: u64,
    pub(super) next: u128,
}

impl<'a, S: Subject> Run<'a, S> {
    /// An empty store, and nobody has asked yet.
    pub(super) async fn new(subject: &'a mut S, slots: Vec<Slot>, trusted: bool) -> Self {
        let now = subject.clear().await;
        let heard = [S::VIAS[0], S::VIAS[1]];
        let trusted = match S::KNOWS {
            Knows::Always => true,
            Knows::Sometimes => trusted,
            Knows::Afterwards => false,
        };
        let oracle = Oracle::new(LOCKS.len(), trusted, heard, S::rules());
        let mut run = Self { subject, oracle, ids: Vec::new(), slots, now, next: 0 };
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
            owner: Owner::named(format!("owner-{:07}", s.owner)).expect("an owner"),
            mode: s.mode,
            ttl: ms(s.ttl),
            patience: Patience::Forever,
            min_hold: ms(s.min_hold),
            lock_delay: ms(s.lock_delay),
            label: Label::new(format!("slot {slot}")),
            block: NonZeroU32::new(s.block).expect("not none"),
        }
    }

    fn key(&self, slot: usize, back: usize) -> Key {
        Key { lock: lock(self.slots[slot].lock), req: self.id(slot, back) }
    }

    /// The operations of the specification that a move is, and the same for the translation.
    fn plan(&mut self, what: &Move) -> (Play, Vec<(usize, Op)>) {
        let ms = Duration::from_millis;
        match what {
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
                let via = S::VIAS[moved.unwrap_or(self.slots[*slot].via)];
                let wait = wait.map(ms);
                let op = Op::Acquire { claim: Claim::of(&ask, via), wait };
                (Play::Acquire { ask, wait, via }, vec![(self.slots[*slot].lock, op)])
            }
            Move::Heartbeat { slots, wait, via } => {
                let wait = ms(*wait);
                let due = slots.iter().map(|s| (self.key(*s, 0), wait)).collect();
                let op = |s: &usize| Op::Heartbeat { req: self.id(*s, 0), wait };
                let ops = slots.iter().map(|s| (self.slots[*s].lock, op(s))).collect();
                (Play::Heartbeat { due, via: S::VIAS[*via] }, ops)
            }
            Move::Renew { slots, ttl } => {
                let ttl = ms(*ttl);
                let due = slots.iter().map(|s| Due { key: self.key(*s, 0), ttl }).collect();
                let op = |s: &usize| Op::Renew { req: self.id(*s, 0), ttl };
                let ops = slots.iter().map(|s| (self.slots[*s].lock, op(s))).collect();
                (Play::Renew { due }, ops)
            }
            Move::Release { slot, back } => {
                let key = self.key(*slot, *back);
                let op = Op::Release { req: key.req };
                (Play::Release { key }, vec![(self.slots[*slot].lock, op)])
            }
            Move::Cancel { slot, back } => {
                let key = self.key(*slot, *back);
                let op = Op::Cancel { req: key.req };
                (Play::Cancel { key }, vec![(self.slots[*slot].lock, op)])
            }
            Move::Force { lock: at, token, how } => {
                let holds = &self.oracle.states[*at].holds;
                let token = token.map(|i| match holds.get(i) {
                    Some(h) => Token::new(h.token + u64::from(h.block) - 1).expect("a token"),
                    None => Token::MIN,
                });
                let play = Play::Force { lock: lock(*at), token, how: *how };
                (play, vec![(*at, Op::Force { token, how: *how })])
            }
            Move::Settle { lock: at } => {
                // A heartbeat of somebody unknown lets time do its work, and nothing else.
                let (req, wait) = (self.fresh(), ms(1));
                let due = vec![(Key { lock: lock(*at), req }, wait)];
                (Play::Heartbeat { due, via: "" }, vec![(*at, Op::Heartbeat { req, wait })])
            }
        }
    }

    /// Makes one move on both and compares answers and states.
    pub(super) async fn one(&mut self, what: &Move) -> Vec<Reply> {
        let (play, ops) = self.plan(what);
        let via = match &play {
            Play::Acquire { via, .. } | Play::Heartbeat { via, .. } => *via,
            _ => "",
        };
        let trusted = self.oracle.trusted;
        let locks = [lock(0), lock(1)];
        let (got, states) = self.subject.play(self.now, trusted, &play, &locks).await;
        let expect = |(at, op): &(usize, Op)| self.oracle.expect(*at, op, via, self.now);
        let want: Vec<Reply> = ops.iter().map(expect).collect();
        assert_eq!(got, want, "{what:?} at {}", self.now);
        for (at, (real, spec)) in states.into_iter().zip(&self.oracle.states).enumerate() {
            let mut spec = spec.clone();
            if !S::SHOWS_SPENT {
                spec.tombstones.clear(); // seen by what they forbid
            }
            let (real, spec) = (what_counts(real, self.now), what_counts(spec, self.now));
            assert_eq!(real, spec, "lock {at} after {what:?} at {}", self.now);
        }
        got
    }

    /// What was told, in no order.
    pub(super) async fn heard(&mut self) -> Vec<Told> {
        let told = self.subject.heard().await;
        let mut told: Vec<Told> = told
            .into_iter()
            .map(|(kind, key)| {
                let at = usize::from(key.lock == lock(1));
                assert_eq!(key.lock, lock(at));
                (kind, key.req, at)
            })
            .collect();
        told.sort_unstable();
        told
    }
}
