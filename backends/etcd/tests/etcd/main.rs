//! What is particular to etcd: lost answers, members that fail, other clients of the same keys.

#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod child;
mod cluster;
mod errors;
mod handover;
mod interop;
mod kit;
mod moves;
mod replies;
mod waiting;

use libtest_mimic::{Arguments, Trial};

/// Tests mostly wait; a cluster is three servers.
const AT_ONCE: usize = 6;

fn main() {
    if child::role() {
        return;
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let parts = [
        cluster::TRIALS,
        errors::TRIALS,
        handover::TRIALS,
        interop::TRIALS,
        moves::TRIALS,
        replies::TRIALS,
        waiting::TRIALS,
    ];
    let trial = |(name, test): &kit::Named| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    let trials = parts.into_iter().flatten().map(trial).collect();
    libtest_mimic::run(&args, trials).exit();
}
