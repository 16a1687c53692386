//! Generated operations on the store and on the bare specification give the same answers, tell
//! the same waiters and leave the same picture.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::backend::{Ask, Due, Event, Force, Forced, Key};
use distlock_core::info::Query;
use distlock_core::lease::{LeaseStore, Wake};
use distlock_core::state::{Claim, Effects, LockState, Micros, Now, Op, Reply, Rules};
use distlock_core::{Clock, LossReason, Mode, Owner, ReqId, Token};
use distlock_sqlite::Sqlite;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::kit::{Dir, Moves, Named, SOON, ask, lock, open, run, sink};

pub(crate) const TRIALS: &[Named] = &[
    ("differential", short_queues),
    ("differential_of_a_long_queue", long_queue),
    ("a_heartbeat_call_hears_of_all_before_anybody_is_passed_over", one_heartbeat_call),
];

const NAMES: [&str; 2] = ["a", "a/b"];

#[derive(Clone, Debug)]
enum Do {
    Acquire { name: usize, req: usize, wait: Option<u64>, tail: u64 },
    Heartbeat { name: usize, reqs: Vec<usize>, wait: u64 },
    Renew { name: usize, reqs: Vec<usize>, ttl: u64 },
    Release { name: usize, req: usize },
    Cancel { name: usize, req: usize },
    Force { name: usize, token: Option<i64>, now: bool },
    Pass(u64),
    StepWall(i64),
}

fn doing(requests: usize) -> impl Strategy<Value = Do> {
    let name = 0..NAMES.len();
    let req = 0..requests;
    let reqs = prop::collection::vec(0..requests, 1..4);
    let millis = 1u64..12_000;
    prop_oneof![
        8 => (name.clone(), req.clone(), prop::option::weighted(0.7, millis.clone()), 0u64..3_000)
            .prop_map(|(name, req, wait, tail)| Do::Acquire { name, req, wait, tail }),
        2 => (name.clone(), reqs.clone(), millis.clone())
            .prop_map(|(name, reqs, wait)| Do::Heartbeat { name, reqs, wait }),
        2 => (name.clone(), reqs, millis.clone())
            .prop_map(|(name, reqs, ttl)| Do::Renew { name, reqs, ttl }),
        4 => (name.clone(), req.clone()).prop_map(|(name, req)| Do::Release { name, req }),
        2 => (name.clone(), req).prop_map(|(name, req)| Do::Cancel { name, req }),
        1 => (name, prop::option::of(-1i64..2), any::<bool>())
            .prop_map(|(name, token, now)| Do::Force { name, token, now }),
        4 => millis.prop_map(Do::Pass),
        1 => (-100i64..100).prop_map(Do::StepWall),
    ]
}

/// The specification, told the same.
struct Oracle {
    states: HashMap<usize, LockState>,
    clock: Clock,
    heard: Vec<Wake>,
}

impl Oracle {
    fn now(&self) -> Now {
        Now { lease: Micros(self.clock.now().as_micros()), wall: Micros(self.clock.wall_micros()) }
    }

    fn step(&mut self, name: usize, op: Op) -> Reply {
        let now = self.now();
        let step = self.states.entry(name).or_default().step(&op, now, &rules());
        self.hear(name, step.effects);
        step.reply
    }

    /// The heartbeats of one call: all are heard of at one moment, before anybody is promoted.
    fn beat(&mut self, name: usize, beats: &[(ReqId, Duration)]) -> Vec<Reply> {
        let now = self.now();
        let (pulses, effects) = self.states.entry(name).or_default().beat(beats, now, &rules());
        self.hear(name, effects);
        pulses.into_iter().map(Reply::Pulse).collect()
    }

    fn hear(&mut self, name: usize, effects: Effects) {
        let Effects { turns, contended, revoked } = effects;
        let key = |req| Key { lock: lock(NAMES[name]), req };
        let contended = contended.into_iter().map(|(r, _)| Wake::Event(Event::Contended(key(r))));
        let revoked =
            revoked.into_iter().map(|(r, _)| Wake::Event(Event::Lost(key(r), LossReason::Revoked)));
        self.heard.extend(turns.into_iter().map(|(r, _)| Wake::Turn(r)));
        self.heard.extend(contended.chain(revoked));
    }
}

fn rules() -> Rules {
    Rules { released_cap: 8, ..Rules::default() }
}

async fn one(store: &Sqlite, oracle: &mut Oracle, asks: &[Ask], what: &Do) {
    let key = |name: usize, req: usize| Key { lock: lock(NAMES[name]), req: asks[req].req };
    match what {
        Do::Pass(ms) => store.info().clock.advance(Duration::from_millis(*ms)),
        Do::StepWall(s) => store.info().clock.step_wall(*s),
        Do::Acquire { name, req, wait, tail } => {
            let tail = Duration::from_millis(*tail);
            let (min_hold, lock_delay) =
                if req % 2 == 0 { (tail, Duration::ZERO) } else { (Duration::ZERO, tail) };
            let ask = Ask { lock: lock(NAMES[*name]), min_hold, lock_delay, ..asks[*req].clone() };
            let wait = wait.map(Duration::from_millis);
            let spec = oracle.step(*name, Op::Acquire { claim: Claim::of(&ask, "here"), wait });
            assert_eq!(store.acquire(&ask, wait).await.unwrap(), spec);
        }
        Do::Heartbeat { name, reqs, wait } => {
            let wait = Duration::from_millis(*wait);
            let beats: Vec<_> = reqs.iter().map(|r| (key(*name, *r), wait)).collect();
            let ours = store.heartbeat(&beats).await.unwrap();
            let spec = match &reqs[..] {
                [r] => vec![oracle.step(*name, Op::Heartbeat { req: asks[*r].req, wait })],
                all => {
                    let beats: Vec<_> = all.iter().map(|r| (asks[*r].req, wait)).collect();
                    oracle.beat(*name, &beats)
                }
            };
            assert_eq!(ours, spec);
        }
        Do::Renew { name, reqs, ttl } => {
            let ttl = Duration::from_millis(*ttl);
            let due: Vec<_> = reqs.iter().map(|r| Due { key: key(*name, *r), ttl }).collect();
            for (ours, r) in store.renew(&due).await.into_iter().zip(reqs) {
                let spec = oracle.step(*name, Op::Renew { req: asks[*r].req, ttl });
                assert_eq!(ours.unwrap(), spec);
            }
        }
        Do::Release { name, req } => {
            let ours = store.release(&key(*name, *req)).await.unwrap();
            let spec = oracle.step(*name, Op::Release { req: asks[*req].req });
            assert_eq!(ours, spec);
        }
        Do::Cancel { name, req } => {
            let ours = store.cancel(&key(*name, *req)).await.unwrap();
            assert_eq!(ours, oracle.step(*name, Op::Cancel { req: asks[*req].req }));
        }
        Do::Force { name, token, now } => {
            let held = oracle.states.get(name).and_then(|s| s.holds.first()).map_or(5, |h| h.token);
            let token = token.map(|off| Token::new(held.saturating_add_signed(off)).unwrap());
            let how = if *now { Force::Now } else { Force::Revoke };
            let ours = store.force(&lock(NAMES[*name]), token, how).await.unwrap();
            let spec = oracle.step(*name, Op::Force { token, how });
            assert_eq!(ours == Forced::Done, spec == Reply::Forced, "{spec:?}");
        }
    }
}

fn short_queues() {
    differential(48, 8, &[]);
}

/// Queues that a store keeps in memory and reads by difference; some waiters leave in crowds.
fn long_queue() {
    let crowd: Vec<Do> = (0..80)
        .map(|req| Do::Acquire {
            name: 0,
            req,
            wait: Some(if req % 2 == 0 { 8_000 } else { 600_000 }),
            tail: 0,
        })
        .collect();
    differential(32, 84, &crowd);
}

/// A promotion ends at the very moment of a call that brings the word of its waiter, behind that of
/// another: it is promoted again. One heartbeat after the other would have passed it over.
fn one_heartbeat_call() {
    let wait = |req| Some(if req % 2 == 0 { 8_000 } else { 600_000 });
    let mut all: Vec<Do> =
        (0..8).map(|req| Do::Acquire { name: 0, req, wait: wait(req), tail: 0 }).collect();
    all.extend([Do::Pass(10_000), Do::Release { name: 0, req: 4 }, Do::Pass(1000)]);
    all.push(Do::Heartbeat { name: 0, reqs: vec![4, 3], wait: 1 });
    play(8, &all);
}

fn differential(cases: u32, requests: usize, first: &[Do]) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sequences = prop::collection::vec(doing(requests), 1..60);
    let result = TestRunner::new(config).run(&sequences, |sequence| {
        play(requests, &[first, &sequence].concat());
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

/// Plays a sequence on the store and on the specification.
fn play(requests: usize, sequence: &[Do]) {
    run(async {
        let dir = Dir::new();
        let clock = Clock::held();
        // Handles on one file take turns: what one wrote the others must see. One comes seldom.
        let stores = [open(&dir, &clock).await, open(&dir, &clock).await, open(&dir, &clock).await];
        let wakes = stores.each_ref().map(sink);
        let mut oracle = Oracle { states: HashMap::new(), clock, heard: Vec::new() };
        let owners = [Owner::new(), Owner::new(), Owner::new()];
        let two = NonZeroU32::new(2).unwrap();
        let asks: Vec<Ask> = (0..requests)
            .map(|i| Ask {
                req: ReqId::random(),
                // The first requests are re-entries of one owner; modes mix.
                owner: if i < 3 { owners[0].clone() } else { Owner::new() },
                mode: [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Permit(two)][i % 4],
                ..ask("a")
            })
            .collect();
        for (i, what) in sequence.iter().enumerate() {
            let store = match i {
                i if i % 13 == 5 => &stores[2],
                i => &stores[usize::from(i % 3 == 0)],
            };
            one(store, &mut oracle, &asks, what).await;
        }
        for (i, name) in NAMES.iter().enumerate() {
            let seen = stores[i].inspect(&Query::Name(lock(name))).await.unwrap();
            let now = Micros(oracle.clock.now().as_micros());
            let spec = oracle.states.get(&i).and_then(|s| s.view(&lock(name), now));
            assert_eq!(seen, spec.into_iter().collect::<Vec<_>>());
        }
        // Those for the other handle come through its socket, in their own time.
        let mut heard: Vec<Wake> = Vec::new();
        let real = Clock::system();
        let start = real.now();
        while heard.len() < oracle.heard.len() {
            heard.extend(wakes.iter().flat_map(|w| w.try_iter()));
            tokio::task::yield_now().await;
            assert!(real.now().since(start) < SOON, "not all were told");
        }
        for store in &stores {
            store.close().await;
        }
        heard.extend(wakes.iter().flat_map(|w| w.try_iter()));
        let sorted = |wakes: &[Wake]| {
            let mut wakes: Vec<_> = wakes.iter().map(|w| format!("{w:?}")).collect();
            wakes.sort();
            wakes
        };
        assert_eq!(sorted(&heard), sorted(&oracle.heard));
    });
}
