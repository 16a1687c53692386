//! The tables against the specification: generated sequences of moves, short and long ways mixed,
//! run on a real server and on [`LockState`], must give the same answers and leave the same state.
//!
//! Time is held: a session's `timestamp` is what its statements take for now.

#![allow(clippy::unwrap_used)]

use distlock_core::seam::Key;
use distlock_core::state::{End, LockState, Micros, Now, Op, Reply};
use distlock_core::url::StoreUrl;
use distlock_core::{FullName, Mode, ReqId};
use distlock_sql::Opens;
use distlock_testkit::moves::{Cast, LOCKS, Move, Slot, lock, moves, slots};
use distlock_testkit::servers::{Mariadb, Server};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sqlx::MySqlConnection;
use tokio::runtime::Builder;

use crate::door::Door;
use crate::fast::{self, Fast};
use crate::ledger::{Ledger, hear_from};
use crate::line::Line;
use crate::open::Target;
use crate::record::{COLUMNS, Record, rules};
use crate::sql::{at, run};
use crate::sweep::sweep;

const CASES: u32 = 250;
const STEPS: usize = 60;
/// Where the clock is held when a sequence begins.
const START: u64 = 1_750_000_000_000_000;

struct Scene {
    _server: Server,
    conn: MySqlConnection,
    ledger: Ledger,
    fast: Fast,
}

impl Scene {
    async fn new() -> Self {
        let server = Mariadb::new().start().await.expect("`cargo xtask setup`");
        let target = Target::of(StoreUrl::parse(&Mariadb::url(&server)).unwrap()).unwrap();
        target.greet().await.unwrap();
        let conn = Door::new(target.to, None).open().await.unwrap();
        let fast = Fast::new(&target.tables);
        let (session, collisions) = ("0".repeat(32), Default::default());
        let ledger = Ledger { tables: target.tables, session, collisions };
        Self { _server: server, conn, ledger, fast }
    }

    async fn sql(&mut self, sql: String) -> Vec<crate::sql::Given> {
        run(&mut self.conn, sql).await.unwrap()
    }

    async fn empty(&mut self) {
        let t = &self.ledger.tables;
        let sql = format!("DELETE FROM {}; DELETE FROM {}", t.lock, t.wait);
        self.sql(sql).await;
    }

    async fn at(&mut self, now: u64) {
        self.sql(format!("SET timestamp={}.{:06}", now / 1_000_000, now % 1_000_000)).await;
    }

    async fn play(&mut self, lock: &FullName, ops: &[Op], via: &str) -> Vec<Reply> {
        self.ledger.play(&mut self.conn, lock, ops, via).await.unwrap().replies
    }

    /// The whole state of a lock.
    async fn state(&mut self, lock: &FullName) -> (LockState, u64) {
        let (t, at) = (&self.ledger.tables, at(lock));
        let sql = format!(
            "SELECT {COLUMNS} FROM {} WHERE {at}; \
             SELECT req, since, deadline, deaf, claim FROM {} WHERE {at}",
            t.lock, t.wait
        );
        let given = self.sql(sql).await;
        let record = given[0].rows.first().map(|r| Record::read(r).unwrap());
        let Record { mut state, waiters } = record.unwrap_or_else(Record::none);
        let line = Line::of(&given[1].rows, &[], 0, true).unwrap();
        state.queue = line.read.into_values().collect();
        (state, waiters)
    }
}

fn step(state: &mut LockState, op: &Op, via: &str, now: u64) -> Reply {
    hear_from(state, op, via);
    state.step(op, Now { lease: Micros(now), wall: Micros(now) }, &rules()).reply
}

/// What counts of a state: not what is over, nor how the two kinds of spent requests are mixed.
fn seen(mut state: LockState, now: u64) -> LockState {
    state.spent.retain(|s| s.until.0 > now);
    state.spent.make_contiguous().sort_by_key(|s| s.end == End::Cancelled);
    state
}

struct Run<'a> {
    scene: &'a mut Scene,
    cast: Cast,
    states: Vec<LockState>,
    now: u64,
    /// Where waiters said last that they can be reached, if they all said the same.
    steady: bool,
}

impl Run<'_> {
    async fn one(&mut self, what: &Move) {
        self.cast.ready(what, &self.states);
        let ops = self.cast.ops(what, &self.states);
        self.scene.at(self.now).await;
        let want: Vec<Reply> = ops
            .iter()
            .map(|(at, op, via)| step(&mut self.states[*at], op, via, self.now))
            .collect();
        let got = self.real(&ops).await;
        assert_eq!(got, want, "{what:?} at {}", self.now);
        for (i, spec) in self.states.iter().enumerate() {
            let (state, waiters) = self.scene.state(&lock(i)).await;
            assert_eq!(waiters, state.queue.len() as u64, "counted after {what:?}");
            let (real, spec) = (seen(state, self.now), seen(spec.clone(), self.now));
            assert_eq!(real, spec, "lock {i} after {what:?} at {}", self.now);
        }
    }

    /// The short way first, where the store would take it.
    async fn real(&mut self, ops: &[(usize, Op, &str)]) -> Vec<Reply> {
        let mut replies = Vec::new();
        if matches!(ops[0].1, Op::Heartbeat { .. }) {
            return self.beat(ops).await;
        }
        for (i, op, via) in ops {
            let (name, scene) = (lock(*i), &mut *self.scene);
            let quick = match op {
                Op::Acquire { claim, .. } if fast::fits(claim) => {
                    scene.fast.acquire(&mut scene.conn, &name, claim).await.unwrap()
                }
                Op::Release { req } => {
                    let key = Key { lock: name.clone(), req: *req };
                    let freed = scene.fast.release(&mut scene.conn, &key).await.unwrap();
                    freed.then_some(Reply::Released)
                }
                Op::Renew { req, ttl } => {
                    let due = [(name.clone(), *req, *ttl)];
                    scene.fast.renew(&mut scene.conn, &due).await.unwrap().remove(0)
                }
                _ => None,
            };
            replies.push(match quick {
                Some(reply) => reply,
                None => scene.play(&name, std::slice::from_ref(op), via).await.remove(0),
            });
        }
        replies
    }

    async fn beat(&mut self, ops: &[(usize, Op, &str)]) -> Vec<Reply> {
        let mut replies: Vec<Option<Reply>> = vec![None; ops.len()];
        for i in 0..LOCKS.len() {
            let mine: Vec<usize> = (0..ops.len()).filter(|n| ops[*n].0 == i).collect();
            if mine.is_empty() {
                continue;
            }
            let beats: Vec<_> = mine
                .iter()
                .map(|n| match &ops[*n].1 {
                    Op::Heartbeat { req, wait } => (*req, *wait),
                    op => panic!("{op:?}"),
                })
                .collect();
            let scene = &mut *self.scene;
            let quick = if self.steady {
                scene.ledger.beat(&mut scene.conn, &lock(i), &beats).await.ok().unwrap()
            } else {
                None
            };
            let got = match quick {
                Some(pulses) => pulses.into_iter().map(Reply::Pulse).collect(),
                None => {
                    let same: Vec<Op> = mine.iter().map(|n| ops[*n].1.clone()).collect();
                    scene.play(&lock(i), &same, ops[mine[0]].2).await
                }
            };
            mine.into_iter().zip(got).for_each(|(n, reply)| replies[n] = Some(reply));
        }
        replies.into_iter().flatten().collect()
    }
}

/// All at one address: then a heartbeat may take the short way.
fn at_one_place(mut slots: Vec<Slot>, moves: &mut [(Move, u64)]) -> Vec<Slot> {
    slots.iter_mut().for_each(|s| s.via = 0);
    for (what, _) in moves {
        match what {
            Move::Acquire { moved, .. } => *moved = None,
            Move::Heartbeat { via, .. } => *via = 0,
            _ => {}
        }
    }
    slots
}

#[test]
fn the_tables_answer_as_the_specification_does() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let scene = std::cell::RefCell::new(runtime.block_on(Scene::new()));
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let haste = prop_oneof![Just(1), Just(10), Just(100), Just(1_000_000)];
    let result = TestRunner::new(config).run(
        &(slots(), any::<bool>(), haste, moves(STEPS)),
        |(slots, steady, haste, mut steps)| {
            let slots = if steady { at_one_place(slots, &mut steps) } else { slots };
            let mut scene = scene.borrow_mut();
            runtime.block_on(async {
                scene.empty().await;
                let (cast, states) = (Cast::new(slots), vec![LockState::default(); LOCKS.len()]);
                let mut run = Run { scene: &mut scene, cast, states, now: START, steady };
                for (what, pause) in &steps {
                    run.now += pause * 1_000 / haste;
                    run.one(what).await;
                }
            });
            Ok(())
        },
    );
    if let Err(e) = result {
        panic!("{e}");
    }
}

fn claim(n: u128, mode: Mode) -> distlock_core::state::Claim {
    let slot = Slot {
        lock: 0,
        owner: 0,
        mode,
        ttl: 600_000,
        min_hold: 0,
        lock_delay: 0,
        block: 1,
        via: 3,
    };
    let mut claim = distlock_core::state::Claim::of(&Cast::new(vec![slot]).ask(0), "");
    claim.req = ReqId::from_bytes(n.to_be_bytes());
    claim.owner = distlock_core::Owner::named(format!("owner {n}")).unwrap();
    claim
}

/// A line longer than what is read of it: places and numbers are those of the whole, a reader lets
/// all readers in, and those who do not hear hide nobody.
#[tokio::test]
async fn a_long_line_is_the_same_line() {
    let mut scene = Scene::new().await;
    let name = lock(0);
    let mut now = START;
    let mut spec = LockState::default();
    let long = std::time::Duration::from_secs(300);
    let wait = Some(long);
    let mut ops = Vec::new();
    for n in 1..=60u128 {
        // A writer holds, thirty readers wait, and more writers behind them.
        let mode = if (2..=31).contains(&n) { Mode::Shared } else { Mode::Exclusive };
        ops.push(Op::Acquire { claim: claim(n, mode), wait });
    }
    // Asked again from the middle; the head is not heard and passed over, twice over.
    ops.push(Op::Acquire { claim: claim(40, Mode::Exclusive), wait });
    ops.push(Op::Heartbeat { req: claim(50, Mode::Exclusive).req, wait: long });
    ops.push(Op::Cancel { req: claim(45, Mode::Exclusive).req });
    ops.push(Op::Acquire { claim: claim(99, Mode::Exclusive), wait: None });
    ops.push(Op::Release { req: claim(1, Mode::Exclusive).req });
    for n in 2..=20u128 {
        ops.push(Op::Withdraw { req: claim(n, Mode::Shared).req, gone: false });
    }
    ops.push(Op::Acquire { claim: claim(10, Mode::Shared), wait });
    for n in 2..=60u128 {
        ops.push(Op::Acquire { claim: claim(n, Mode::Exclusive), wait });
        ops.push(Op::Release { req: claim(n, Mode::Exclusive).req });
    }
    for op in ops {
        now += 1_000;
        scene.at(now).await;
        let want = step(&mut spec, &op, "", now);
        assert_eq!(scene.play(&name, std::slice::from_ref(&op), "").await, [want], "{op:?}");
        let (state, _) = scene.state(&name).await;
        assert_eq!(seen(state, now), seen(spec.clone(), now), "after {op:?}");
    }
}

/// A row that was swept comes back above its tokens, though the clock went back.
#[tokio::test]
async fn what_was_swept_comes_back_above_its_tokens() {
    let mut scene = Scene::new().await;
    let name = lock(0);
    let take = |n| Op::Acquire { claim: claim(n, Mode::Exclusive), wait: None };
    let token = |replies: Vec<Reply>| match replies[..] {
        [Reply::Granted { token, .. }] => token,
        ref other => panic!("{other:?}"),
    };
    scene.at(START).await;
    let first = token(scene.play(&name, &[take(1)], "").await);
    scene.play(&name, &[Op::Release { req: claim(1, Mode::Exclusive).req }], "").await;
    let hour = std::time::Duration::from_secs(3600);
    let tables = scene.ledger.tables.clone();
    scene.at(START + 3_000_000_000).await;
    sweep(&mut scene.conn, &tables, hour).await.unwrap();
    assert_eq!(scene.state(&name).await.0.hi, first.get(), "not an hour yet");
    scene.at(START + 3_700_000_000).await;
    sweep(&mut scene.conn, &tables, hour).await.unwrap();
    assert_eq!(scene.state(&name).await.0, LockState::default(), "gone");
    scene.at(START - 3_600_000_000).await;
    let again = token(scene.play(&name, &[take(2)], "").await);
    assert!(again > first, "{again:?} after {first:?}");
    // What is held, waited for or was used lately stays.
    scene.at(START - 3_600_000_000 + 599_000_000).await;
    sweep(&mut scene.conn, &tables, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(scene.state(&name).await.0.holds.len(), 1);
}
