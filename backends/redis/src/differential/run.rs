//! Moves run on the server and on the specification side by side.

use std::time::Duration;

use distlock_core::state::{LockState, Op, Reply};
use distlock_core::{Error, ReqId};
use distlock_testkit::moves::{Cast, LOCKS, Move, Slot, lock};
use redis::Value;

use super::oracle::{Oracle, Told};
use super::scene::{HEARD, Scene};
use crate::call::Call;
use crate::keys::Keys;
use crate::moves::{self, Counted, Kind, Message};

pub(super) struct Run<'a> {
    pub(super) scene: &'a mut Scene,
    pub(super) oracle: Oracle,
    cast: Cast,
    pub(super) now: u64,
}

impl<'a> Run<'a> {
    /// An empty server, and nobody has asked yet.
    pub(super) async fn new(scene: &'a mut Scene, slots: Vec<Slot>, trusted: bool) -> Self {
        scene.run(redis::cmd("FLUSHALL")).await;
        let time: (u64, u64) = redis::cmd("TIME").query_async(&mut scene.link).await.unwrap();
        let oracle = Oracle::new(LOCKS.len(), trusted);
        let now = time.0 * 1_000_000 + time.1;
        Self { scene, oracle, cast: Cast::new(slots), now }
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
        self.cast.ready(what, &self.oracle.states);
        let ops = self.cast.ops(what, &self.oracle.states);
        let (at, first, via) = &ops[0];
        let keys = Keys::of(&lock(*at));
        let many = |each: fn(&Op) -> (ReqId, Duration)| -> Vec<(Keys, ReqId, Duration)> {
            let one = |(at, op, _): &(usize, Op, &str)| {
                let (req, time) = each(op);
                (Keys::of(&lock(*at)), req, time)
            };
            ops.iter().map(one).collect()
        };
        let (got, states): (Vec<Reply>, _) = match first {
            Op::Acquire { wait, .. } => {
                let Move::Acquire { slot, .. } = what else { panic!("{what:?}") };
                let ask = self.cast.ask(*slot);
                let call = moves::acquire(&keys, &ask, *wait, via, counted);
                let (got, states) = self.real(call, |v| moves::acquired(v, ask.ttl)).await;
                (vec![got], states)
            }
            Op::Heartbeat { .. } => {
                let due = many(|op| match op {
                    Op::Heartbeat { req, wait } => (*req, *wait),
                    op => panic!("{op:?}"),
                });
                let call = moves::heartbeat(&due, via, counted);
                self.real(call, |v| moves::pulses(v, due.len())).await
            }
            Op::Renew { .. } => {
                let due = many(|op| match op {
                    Op::Renew { req, ttl } => (*req, *ttl),
                    op => panic!("{op:?}"),
                });
                self.real(moves::renew(&due, counted), |v| moves::renewals(v, due.len())).await
            }
            Op::Release { req } => {
                let call = moves::release(&keys, req, counted);
                let (got, states) = self.real(call, moves::released).await;
                (vec![got], states)
            }
            Op::Cancel { req } => {
                let call = moves::cancel(&keys, req, counted);
                let (got, states) = self.real(call, moves::cancelled).await;
                (vec![got], states)
            }
            Op::Force { token, how } => {
                let call = moves::force(&keys, *token, *how, counted);
                let (got, states) = self.real(call, moves::forced).await;
                (vec![got], states)
            }
            op => panic!("no move asks for {op:?}"),
        };
        let now = self.now;
        let expect = |(at, op, via): &(usize, Op, &str)| self.oracle.expect(*at, op, via, now);
        let want: Vec<Reply> = ops.iter().map(expect).collect();
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
