//! Generated sequences.

use distlock_testkit::moves::{moves, slots};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Builder;

use super::run::Run;
use super::scene::Scene;

const CASES: u32 = 700;
const STEPS: usize = 60;

#[test]
fn the_scripts_answer_as_the_specification_does() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let scene = std::cell::RefCell::new(runtime.block_on(Scene::new()));
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_time: 10_000,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(
        &(
            slots(),
            proptest::bool::weighted(0.8),
            prop_oneof![Just(1), Just(10), Just(100), Just(1_000_000)],
            moves(STEPS),
        ),
        |(slots, trusted, haste, steps)| {
            let mut scene = scene.borrow_mut();
            runtime.block_on(async {
                let mut run = Run::new(&mut scene, slots, trusted).await;
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
