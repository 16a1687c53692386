//! The ZooKeeper store against real servers that fail, fall silent, restart and lose each other. A
//! second process is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod crowd;
mod ensemble;
mod errors;
mod handover;
mod interop;
mod kit;
mod replies;
mod sessions;

use libtest_mimic::{Arguments, Trial};

/// Tests mostly wait: more of them run at once than there are cores. Servers that start are work.
const AT_ONCE: usize = 4;

fn main() {
    if child::role() {
        return;
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let mut trials = Vec::new();
    for part in [
        crowd::TRIALS,
        ensemble::TRIALS,
        errors::TRIALS,
        handover::TRIALS,
        interop::TRIALS,
        replies::TRIALS,
        sessions::TRIALS,
    ] {
        trials.extend(part.iter().map(|(name, test)| {
            Trial::test(*name, move || {
                test();
                Ok(())
            })
        }));
    }
    let ended = libtest_mimic::run(&args, trials);
    // What a static holds is not dropped, and the server would outlive the tests.
    kit::stop();
    ended.exit();
}
