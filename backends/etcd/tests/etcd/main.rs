//! What is particular to etcd: lost answers, members that fail, other clients of the same keys.

#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod child;
mod cluster;
mod crowds;
mod errors;
mod handover;
mod interop;
mod kit;
mod logins;
mod moves;
mod replies;
mod seats;
mod silence;
mod steps;
mod together;
mod waiting;

use distlock_testkit::trials;

/// Tests mostly wait; a cluster is three servers.
const AT_ONCE: usize = 6;

fn main() {
    if child::role() {
        return;
    }
    trials(
        Some(AT_ONCE),
        &[
            cluster::TRIALS,
            crowds::TRIALS,
            errors::TRIALS,
            handover::TRIALS,
            interop::TRIALS,
            logins::TRIALS,
            moves::TRIALS,
            replies::TRIALS,
            seats::TRIALS,
            silence::TRIALS,
            together::TRIALS,
            waiting::TRIALS,
        ],
    )
    .exit();
}
