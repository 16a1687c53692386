//! Generated sequences, run on both.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::quorum::{
    Bid, Commit, Generation, Heal, NodeDue, NodeOp, NodeReply, NodeRules, NodeState, Position,
    Round, Vote,
};
use distlock_core::state::Now;
use distlock_core::{
    Ask, Effects, Error, Event, FullName, Key, Label, Micros, Mode, Name, Namespace, Owner,
    Patience, ReqId, Token, Wake,
};
use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};
use redis::Value;
use tokio::runtime::Builder;

use super::super::{open, replies, script_calls};
use super::moves::{
    LOCKS, Move, Number, Quoted, SLOTS, Slot, Stands, VIAS, Which, millis, slot, some_move,
};
use super::scene::{HEARD, Scene};
use crate::connection::Call;
use crate::quarantine::Agreed;

const CASES: u32 = 400;
const STEPS: usize = 60;

/// One message: kind, request, lock (which a turn does not tell).
type Told = (u8, ReqId);

fn lock(i: usize) -> FullName {
    FullName { space: Namespace::new("t").unwrap(), name: Name::new(LOCKS[i]).unwrap() }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Run<'a> {
    scene: &'a mut Scene,
    states: Vec<NodeState>,
    told: Vec<Told>,
    rules: NodeRules,
    slots: Vec<Slot>,
    /// The ids each slot has had, newest last, and the last round and ticket of each.
    ids: Vec<Vec<ReqId>>,
    rounds: Vec<u64>,
    tickets: Vec<u64>,
    tie: u64,
    now: u64,
    next: u128,
}

impl Run<'_> {
    fn fresh(&mut self) -> ReqId {
        self.next += 1;
        let spread = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        ReqId::from_bytes(spread.to_be_bytes())
    }

    fn id(&self, slot: usize, back: usize) -> ReqId {
        let ids = &self.ids[slot];
        ids[ids.len().saturating_sub(1 + back)]
    }

    fn key(&self, slot: usize, back: usize) -> Key {
        Key { lock: lock(self.slots[slot].lock), req: self.id(slot, back) }
    }

    fn ask(&self, slot: usize) -> Arc<Ask> {
        let s = &self.slots[slot];
        Arc::new(Ask {
            lock: lock(s.lock),
            req: self.id(slot, 0),
            owner: Owner::named(format!("owner-{slot}")).unwrap(),
            mode: Mode::Exclusive,
            ttl: ms(s.ttl),
            patience: Patience::Forever,
            min_hold: ms(s.min_hold),
            lock_delay: Duration::ZERO,
            label: Label::new(format!("slot {slot}")),
            block: NonZeroU32::MIN,
        })
    }

    fn round(&mut self, slot: usize, which: Which) -> Round {
        match which {
            Which::Last => {}
            Which::Next => self.rounds[slot] += 1,
            Which::Before => return Round(self.rounds[slot].saturating_sub(1)),
        }
        Round(self.rounds[slot])
    }

    fn token(&self, at: usize, number: Number) -> Token {
        let n = match number {
            Number::Clock(ms) => self.now.saturating_add_signed(ms * 1_000),
            Number::Highest(by) => self.states[at].hi.saturating_add_signed(by),
        };
        Token::new(n.max(1)).unwrap()
    }

    fn place(&mut self, slot: usize, stands: Option<Stands>) -> Option<Position> {
        let Stands { ticket, tie, wait, backed } = stands?;
        if let Some(by) = ticket {
            self.tickets[slot] = self.now.saturating_add_signed(by * 1_000);
        }
        let ticket = if tie { self.tie } else { self.tickets[slot] };
        Some(Position { ticket, wait: ms(wait), backed })
    }

    fn quoted(&self, at: usize, quoted: Quoted) -> Option<Generation> {
        match quoted {
            Quoted::Right => Some(Generation(self.states[at].generation)),
            Quoted::Wrong => Some(Generation(self.states[at].generation.saturating_sub(1))),
            Quoted::Nothing => None,
        }
    }

    /// What the specification says.
    fn spec(&mut self, at: usize, op: &NodeOp) -> NodeReply {
        let now = Micros(self.now);
        let step = self.states[at].step(op, Now { lease: now, wall: now }, &self.rules);
        let Effects { turns, contended, revoked } = step.effects;
        for (kind, addresses) in [(b't', turns), (b'c', contended), (b'x', revoked)] {
            let heard = addresses.into_iter().filter(|(_, via)| HEARD.contains(&via.as_str()));
            self.told.extend(heard.map(|(req, _)| (kind, req)));
        }
        match step.reply {
            NodeReply::Vote(Vote::NotYet { left, .. }) => {
                NodeReply::Vote(Vote::NotYet { left, why: String::new() })
            }
            other => other,
        }
    }

    async fn compare(
        &mut self,
        what: &Move,
        call: Call,
        ops: Vec<(usize, NodeOp)>,
        read: impl Fn(&Value) -> Result<Vec<NodeReply>, Error>,
    ) {
        let (value, states) = self.scene.step(self.now, call, &[lock(0), lock(1)]).await;
        let got = read(&value).unwrap_or_else(|e| panic!("{what:?}: {e:?}"));
        let want: Vec<_> = ops.iter().map(|(at, op)| self.spec(*at, op)).collect();
        assert_eq!(got, want, "{what:?} at {}", self.now);
        for (at, (real, spec)) in states.into_iter().zip(&self.states).enumerate() {
            // The record is not touched before somebody asks: what has ended may still be in it.
            let (mut real, mut spec) = (real, spec.clone());
            for state in [&mut real, &mut spec] {
                state.hold.take_if(|h| h.expires.0 <= self.now);
                state.line.retain(|w| w.deadline.0 > self.now);
                state.tombstones.clear(); // seen by what they forbid
            }
            assert_eq!(real, spec, "lock {at} after {what:?} at {}", self.now);
        }
    }

    async fn one(&mut self, what: &Move) {
        let closed = self.rules.opens.since(Micros(self.now));
        match what {
            Move::Propose { slot, fresh, round, token, stands } => {
                let (slot, at) = (*slot, self.slots[*slot].lock);
                if *fresh {
                    let id = self.fresh();
                    self.ids[slot].push(id);
                }
                let (round, place) = (self.round(slot, *round), self.place(slot, *stands));
                let bid = Bid { ask: self.ask(slot), round, token: self.token(at, *token), place };
                let via = VIAS[self.slots[slot].via];
                let call = script_calls::propose(&bid, via, closed, &Agreed::NONE);
                let ops = vec![(at, NodeOp::Propose(bid, via.to_owned()))];
                let now = Micros(self.now);
                let read = move |v: &Value| {
                    let (vote, told) = replies::vote(v, "")?;
                    assert_eq!(told, now, "the node's time");
                    Ok(vec![NodeReply::Vote(vote)])
                };
                self.compare(what, call, ops, read).await;
            }
            Move::Heal { slots, round, token } => {
                let via = VIAS[self.slots[slots[0]].via];
                let mut heals = Vec::new();
                for slot in slots {
                    let token = self.token(self.slots[*slot].lock, *token);
                    heals.push(Heal {
                        ask: self.ask(*slot),
                        round: self.round(*slot, *round),
                        token,
                    });
                }
                let call = script_calls::heal(&heals, via, closed, &Agreed::NONE);
                let at = slots.iter().map(|s| self.slots[*s].lock);
                let ops: Vec<_> =
                    at.zip(heals).map(|(at, h)| (at, NodeOp::Heal(h, via.to_owned()))).collect();
                let count = ops.len();
                let read = move |v: &Value| {
                    let votes = replies::votes(v, count, "")?;
                    Ok(votes.into_iter().map(NodeReply::Vote).collect())
                };
                self.compare(what, call, ops, read).await;
            }
            Move::Commit { slot, quoted, round, token } => {
                let at = self.slots[*slot].lock;
                let commit = Commit {
                    key: self.key(*slot, 0),
                    round: self.round(*slot, *round),
                    generation: self.quoted(at, *quoted).unwrap_or(Generation(1)),
                    token: self.token(at, *token),
                };
                let call = script_calls::commit(&commit);
                let read = |v: &Value| Ok(vec![NodeReply::Committed(replies::committed(v)?)]);
                self.compare(what, call, vec![(at, NodeOp::Commit(commit))], read).await;
            }
            Move::Renew { slots, quoted, ttl } => {
                let due = |slot: &usize| NodeDue {
                    key: self.key(*slot, 0),
                    generation: self.quoted(self.slots[*slot].lock, *quoted),
                    ttl: ms(*ttl),
                };
                let due: Vec<_> = slots.iter().map(due).collect();
                let call = script_calls::renew(&due, &Agreed::NONE);
                let at = slots.iter().map(|s| self.slots[*s].lock);
                let ops: Vec<_> = at.zip(due).map(|(at, d)| (at, NodeOp::Renew(d))).collect();
                let count = ops.len();
                self.compare(what, call, ops, move |v| replies::renewals(v, count)).await;
            }
            Move::Release { slot, back } => {
                let key = self.key(*slot, *back);
                let ops = vec![(self.slots[*slot].lock, NodeOp::Release(key.req))];
                let read = |v: &Value| Ok(vec![NodeReply::Released(replies::released(v)?)]);
                self.compare(what, script_calls::release(&key), ops, read).await;
            }
            Move::Cancel { slot, back, all, round } => {
                let key = self.key(*slot, *back);
                let upto = if *all { Round::ALL } else { self.round(*slot, *round) };
                let ops = vec![(self.slots[*slot].lock, NodeOp::Cancel(key.req, upto))];
                let read = |v: &Value| replies::cancelled(v).map(|()| vec![NodeReply::Cancelled]);
                self.compare(what, script_calls::cancel(&key, upto), ops, read).await;
            }
            Move::Force { lock: at, token, how } => {
                let held = self.states[*at].hold.as_ref().and_then(|h| h.token);
                let token = match token {
                    Quoted::Right => held,
                    Quoted::Wrong => Some(Token::MIN),
                    Quoted::Nothing => None,
                };
                let call = script_calls::force(&lock(*at), token, *how);
                let ops = vec![(*at, NodeOp::Force(token, *how))];
                let read = |v: &Value| Ok(vec![NodeReply::Forced(replies::forced(v)?)]);
                self.compare(what, call, ops, read).await;
            }
        }
    }
}

fn told(bytes: &[u8]) -> Told {
    match open::reads(bytes).expect("one of ours") {
        Wake::Confirm(req) => (b't', req),
        Wake::Event(Event::Contended(key)) => (b'c', key.req),
        Wake::Event(Event::Lost(key, _)) => (b'x', key.req),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_scripts_answer_as_the_specification_does() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let scene = std::cell::RefCell::new(runtime.block_on(Scene::new()));
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let steps = vec((some_move(), millis()), 1..STEPS);
    // Open at once mostly, else after a few seconds.
    let opens = proptest::option::weighted(0.2, 100..5_000u64);
    let result = TestRunner::new(config).run(&(vec(slot(), SLOTS), opens, steps), |case| {
        let (slots, opens, steps) = case;
        let mut scene = scene.borrow_mut();
        runtime.block_on(async {
            scene.run(redis::cmd("FLUSHALL")).await;
            let time: (u64, u64) = redis::cmd("TIME").query_async(&mut scene.link).await.unwrap();
            let now = time.0 * 1_000_000 + time.1;
            let opens = Micros(opens.map_or(0, |ms| now + ms * 1_000));
            let mut run = Run {
                scene: &mut scene,
                states: vec![NodeState::default(); LOCKS.len()],
                told: Vec::new(),
                rules: NodeRules { opens, ..NodeRules::default() },
                slots,
                ids: Vec::new(),
                rounds: vec![1; SLOTS],
                tickets: vec![now; SLOTS],
                tie: now,
                now,
                next: 0,
            };
            for _ in 0..SLOTS {
                let id = run.fresh();
                run.ids.push(vec![id]);
            }
            for (what, pause) in &steps {
                run.now += pause * 1_000;
                run.one(what).await;
            }
            let mut told: Vec<Told> = run.scene.heard().await.iter().map(|m| told(m)).collect();
            told.sort_unstable();
            run.told.sort_unstable();
            assert_eq!(told, run.told, "messages");
        });
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}
