//! Generated histories: several owners, all modes, any operation at any time, a wall that steps.

use std::time::Duration;

use distlock_core::backend::Force;
use distlock_core::state::{Claim, End, LockState, Micros, Now, Op, Reply, Rules};
use distlock_core::{FullName, Mode, Name, Namespace, ReqId, Token};
use proptest::prelude::*;

use crate::desk::{claim, ms, nz, req, s};
use crate::laws::{Memory, Seen, not_stuck};

/// Requests of one history.
const REQUESTS: u8 = 7;

/// One line of a history, as a failing case prints it.
#[derive(Clone, Copy, Debug)]
enum Line {
    Pass(Duration),
    StepWall(i64),
    Ask(u8),
    Attempt(u8),
    Beat(u8),
    Renew(u8),
    Release(u8),
    Cancel(u8),
    /// With the token of the n-th hold, if there is one.
    Force(Option<usize>, Force),
    Withdraw(u8, bool),
    Settle,
}

/// What one request asks for, whenever it asks.
#[derive(Clone, Copy, Debug)]
struct Wish {
    owner: char,
    mode: Mode,
    ttl: Duration,
    min_hold: Duration,
    lock_delay: Duration,
    block: u32,
}

impl Wish {
    fn claim(self, n: u8) -> Claim {
        let Wish { owner, mode, ttl, min_hold, lock_delay, block } = self;
        let block = nz(block);
        Claim { mode, ttl, min_hold, lock_delay, block, ..claim(n, &owner.to_string()) }
    }
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        2 => Just(Mode::Permit(nz(2))),
        1 => Just(Mode::Permit(nz(3))),
    ];
    let now_and_then = |d| prop_oneof![3 => Just(Duration::ZERO), 1 => Just(d)];
    let owner = prop::char::range('a', 'd');
    let wish = (owner, mode, 1u64..5, now_and_then(s(3)), now_and_then(s(2)), 1u32..4);
    let wish = wish.prop_map(|(owner, mode, ttl, min_hold, lock_delay, block)| Wish {
        owner,
        mode,
        ttl: s(ttl),
        min_hold,
        lock_delay,
        block,
    });
    prop::collection::vec(wish, usize::from(REQUESTS))
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let n = || 0..REQUESTS;
    let how = prop_oneof![2 => Just(Force::Revoke), 1 => Just(Force::Now)];
    let line = prop_oneof![
        8 => prop_oneof![Just(0), 1u64..1000, 1000u64..3000].prop_map(|t| Line::Pass(ms(t))),
        1 => (-100i64..100).prop_map(Line::StepWall),
        12 => n().prop_map(Line::Ask),
        3 => n().prop_map(Line::Attempt),
        3 => n().prop_map(Line::Beat),
        3 => n().prop_map(Line::Renew),
        4 => n().prop_map(Line::Release),
        2 => n().prop_map(Line::Cancel),
        1 => (prop::option::of(0usize..3), how).prop_map(|(t, how)| Line::Force(t, how)),
        2 => (n(), any::<bool>()).prop_map(|(n, gone)| Line::Withdraw(n, gone)),
        2 => Just(Line::Settle),
    ];
    prop::collection::vec(line, 1..60)
}

/// A lock and its clock while a history is told.
struct Tale {
    wishes: Vec<Wish>,
    state: LockState,
    now: Now,
    rules: Rules,
}

impl Tale {
    fn new(wishes: Vec<Wish>, rules: Rules) -> Self {
        let start = Micros(1_000_000_000);
        let now = Now { lease: start, wall: start };
        Self { wishes, state: LockState::default(), now, rules }
    }

    /// The operation of a line; none when only time passes.
    fn op(&mut self, line: Line) -> Option<Op> {
        let ask = |n: u8| self.wishes[usize::from(n)].claim(n);
        Some(match line {
            Line::Pass(d) => {
                self.now = Now { lease: self.now.lease.plus(d), wall: self.now.wall.plus(d) };
                return None;
            }
            Line::StepWall(seconds) => {
                self.now.wall.0 = self.now.wall.0.saturating_add_signed(seconds * 1_000_000);
                return None;
            }
            Line::Ask(n) => Op::Acquire { claim: ask(n), wait: Some(s(2)) },
            Line::Attempt(n) => Op::Acquire { claim: ask(n), wait: None },
            Line::Beat(n) => Op::Heartbeat { req: req(n), wait: s(2) },
            Line::Renew(n) => Op::Renew { req: req(n), ttl: ask(n).ttl },
            Line::Release(n) => Op::Release { req: req(n) },
            Line::Cancel(n) => Op::Cancel { req: req(n) },
            Line::Force(nth, how) => {
                let nth = nth.and_then(|nth| self.state.holds.get(nth));
                Op::Force { token: nth.and_then(|h| Token::new(h.token).ok()), how }
            }
            Line::Withdraw(n, gone) => Op::Withdraw { req: req(n), gone },
            Line::Settle => Op::Settle,
        })
    }
}

fn name() -> FullName {
    let space = Namespace::new("").expect("the default one");
    FullName { space, name: Name::new("n").expect("a valid name") }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_law_holds_after_every_step(wishes in wishes(), lines in lines()) {
        let rules = Rules { tombstone: s(1_000_000), ..Rules::default() };
        let mut tale = Tale::new(wishes, rules);
        let mut memory = Memory::default();
        for line in lines {
            let Some(op) = tale.op(line) else { continue };
            let before = tale.state.clone();
            let reply = tale.state.step(&op, tale.now, &rules).reply;
            let (after, now) = (&tale.state, tale.now);
            let seen = Seen { before: &before, op: &op, reply: &reply, after, now, rules: &rules };
            let verdict = memory.judge(&seen);
            prop_assert!(verdict.is_ok(), "{verdict:?} at {line:?} → {reply:?}\nbefore {before:#?}\nafter {after:#?}");
            prop_assert!(not_stuck(after, now, &rules), "stuck after {line:?}: {after:#?}");
        }
    }

    #[test]
    fn a_state_survives_storage_and_a_view_shows_no_dead(wishes in wishes(), lines in lines()) {
        let mut tale = Tale::new(wishes, Rules::default());
        for line in lines {
            if let Some(op) = tale.op(line) {
                tale.state.step(&op, tale.now, &tale.rules);
            }
            let text = serde_json::to_string(&tale.state).expect("a state is data");
            prop_assert_eq!(&serde_json::from_str::<LockState>(&text).expect("and comes back"), &tale.state);
            let now = tale.now.lease;
            let mut settled = tale.state.clone();
            settled.step(&Op::Settle, tale.now, &tale.rules);
            if tale.state.is_idle(now) {
                let hi = tale.state.hi;
                let delay_until = settled.delay_until;
                prop_assert_eq!(&settled, &LockState { hi, delay_until, ..LockState::default() });
                prop_assert!(delay_until <= now);
            }
            let Some(info) = tale.state.view(&name(), now) else {
                prop_assert!(settled.holds.is_empty() && settled.queue.is_empty());
                continue;
            };
            prop_assert!(info.holds.iter().all(|h| h.holder.left > Some(Duration::ZERO)));
            for waiter in &info.waiters {
                let known = settled.queue.iter().any(|w| w.claim.req == waiter.req)
                    || settled.holds.iter().any(|h| h.claim.req == waiter.req);
                prop_assert!(known, "{:?} is shown and not there", waiter.req);
            }
        }
    }

    #[test]
    fn to_hear_of_many_is_to_hear_of_each(wishes in wishes(), lines in lines()) {
        let mut tale = Tale::new(wishes, Rules::default());
        let all: Vec<_> = (0..REQUESTS).map(|n| (req(n), s(2))).collect();
        for line in lines {
            if let Some(op) = tale.op(line) {
                tale.state.step(&op, tale.now, &tale.rules);
            }
            let each = |state: &mut LockState, (req, wait): &(ReqId, Duration)| {
                let step = state.step(&Op::Heartbeat { req: *req, wait: *wait }, tale.now, &tale.rules);
                (step.reply, step.effects)
            };
            let one = &all[0];
            let (mut alone, mut batch) = (tale.state.clone(), tale.state.clone());
            let (pulses, effects) = batch.beat(std::slice::from_ref(one), tale.now, &tale.rules);
            prop_assert_eq!(each(&mut alone, one), (Reply::Pulse(pulses[0]), effects));
            prop_assert_eq!(&alone, &batch);
            // Who was passed over and is heard of may be promoted before another is: who is heard of
            // first matters only then.
            let mut settled = tale.state.clone();
            settled.step(&Op::Settle, tale.now, &tale.rules);
            if settled.queue.iter().any(|w| w.unreachable) {
                continue;
            }
            let (mut alone, mut batch) = (settled.clone(), settled);
            let (pulses, _) = batch.beat(&all, tale.now, &tale.rules);
            let replies: Vec<_> = all.iter().map(|one| each(&mut alone, one).0).collect();
            prop_assert_eq!(replies, pulses.into_iter().map(Reply::Pulse).collect::<Vec<_>>());
            prop_assert_eq!(alone, batch);
        }
    }

    #[test]
    fn an_index_of_the_queue_changes_nothing(wishes in wishes(), lines in lines()) {
        let mut tale = Tale::new(wishes, Rules::default());
        let mut indexed = LockState::default();
        for line in lines {
            let Some(op) = tale.op(line) else { continue };
            indexed.queue.index();
            let one = tale.state.step(&op, tale.now, &tale.rules);
            prop_assert_eq!(&one, &indexed.step(&op, tale.now, &tale.rules), "at {:?}", line);
            prop_assert_eq!(&tale.state, &indexed, "after {:?}", line);
        }
    }

    #[test]
    fn memory_of_the_spent_is_bounded(wishes in wishes(), lines in lines(), caps in (0usize..4, 0usize..4)) {
        let rules = Rules { cancelled_cap: caps.0, released_cap: caps.1, ..Rules::default() };
        let mut tale = Tale::new(wishes, rules);
        for line in lines {
            let Some(op) = tale.op(line) else { continue };
            tale.state.step(&op, tale.now, &rules);
            let count = |end| tale.state.tombstones.iter().filter(|s| s.end == end).count();
            prop_assert!(count(End::Cancelled) <= caps.0 && count(End::Released) <= caps.1);
            prop_assert!(tale.state.tombstones.iter().all(|s| s.until > tale.now.lease));
        }
    }
}
