//! Generated sequences.

use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Builder;

use super::moves::{millis, slots, some_move};
use super::run::Run;
use super::subject::Subject;

const STEPS: usize = 60;

/// Generated sequences of moves give the same answers on a translation as on the specification,
/// leave the same states and tell the same clients.
///
/// # Panics
/// When they do not, with the shortest sequence that shows it.
pub fn answers_as_the_specification<S: Subject>(make: impl AsyncFnOnce() -> S, cases: u32) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Some drivers' connections must be dropped within a runtime.
    let _inside = runtime.enter();
    let subject = RefCell::new(runtime.block_on(make()));
    let config =
        Config { cases, failure_persistence: None, max_shrink_time: 10_000, ..Config::default() };
    let steps = vec((some_move(), millis()), 1..STEPS);
    let haste = prop_oneof![Just(1), Just(10), Just(100), Just(1_000_000)];
    let result = TestRunner::new(config).run(
        &(slots(), proptest::bool::weighted(0.8), haste, steps),
        |(slots, trusted, haste, steps)| {
            let mut subject = subject.borrow_mut();
            runtime.block_on(async {
                let mut run = Run::new(&mut *subject, slots, trusted).await;
                for (what, pause) in &steps {
                    run.now += pause * 1_000 / haste;
                    run.one(what).await;
                }
                let heard = run.heard().await;
                run.oracle.told.sort_unstable();
                assert_eq!(heard, run.oracle.told, "messages");
            });
            Ok(())
        },
    );
    if let Err(e) = result {
        panic!("{e}");
    }
}
