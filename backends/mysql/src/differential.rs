//! The tables against the specification, short and long ways mixed, in held time.

#![allow(clippy::unwrap_used)]

mod growth;
mod scene;
mod sweeps;
mod turns;

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{Claim, Now};
use distlock_core::{FullName, Label, LockState, Micros, Mode, Name, Op, Owner, ReqId};
use distlock_testkit::differential;
use scene::{START, Scene};

use crate::record::rules;

#[test]
fn the_tables_answer_as_the_specification_does() {
    differential::answers_as_the_specification(Scene::new, 200);
}

#[test]
fn long_lines_answer_as_the_specification_does() {
    differential::answers_as_the_specification(Scene::with_long_lines, 200);
}

// Nobody is passed over for being deaf: a row cannot tell who listens.
distlock_testkit::differential_examples!(Scene);

fn name() -> FullName {
    FullName { space: Default::default(), name: Name::new("a").unwrap() }
}

fn claim(n: u128, mode: Mode) -> Claim {
    Claim {
        req: ReqId::from_bytes(n.to_be_bytes()),
        owner: Owner::named(format!("owner {n}")).unwrap(),
        mode,
        ttl: Duration::from_secs(600),
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new(format!("claim {n}")),
        block: NonZeroU32::MIN,
        via: String::new(),
    }
}

/// A queue longer than what is read of it: places and numbers are those of the whole, a reader lets
/// all readers in, and those who do not hear hide nobody.
#[tokio::test]
async fn a_long_line_is_the_same_line() {
    let mut scene = Scene::new().await;
    let name = name();
    let mut now = START;
    let mut spec = LockState::default();
    let long = Duration::from_secs(300);
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
        let at = Now { lease: Micros(now), wall: Micros(now) };
        let want = spec.step(&op, at, &rules()).reply;
        assert_eq!(scene.play(&name, std::slice::from_ref(&op), "").await, [want], "{op:?}");
        let state = scene.state(&name).await;
        assert_eq!(
            (state.holds, state.queue),
            (spec.holds.clone(), spec.queue.clone()),
            "after {op:?}"
        );
    }
}
