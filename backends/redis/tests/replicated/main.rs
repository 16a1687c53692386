//! The redis stores on several servers: what happens when one of them fails, is cut off or gives
//! a part of its locks to another.

mod cluster;
mod failover;
mod kit;
mod moving;
mod node_down;
mod s26;
mod sentinel;
mod wait;

use libtest_mimic::{Arguments, Failed, Trial};

/// Servers take cores while they start and elect; the tests mostly wait.
const AT_ONCE: usize = 5;

fn main() {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let mut trials = Vec::new();
    for part in [
        s26::TRIALS,
        failover::TRIALS,
        node_down::TRIALS,
        moving::TRIALS,
        sentinel::TRIALS,
        wait::TRIALS,
        cluster::TRIALS,
    ] {
        trials.extend(part.iter().map(|(name, test)| {
            Trial::test(*name, move || test().map_err(|e| Failed::from(format!("{e:?}"))))
        }));
    }
    libtest_mimic::run(&args, trials).exit();
}
