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
mod lines;
mod replies;
mod sessions;

use distlock_testkit::trials;

/// Tests mostly wait: more of them run at once than there are cores. Servers that start are work.
const AT_ONCE: usize = 4;

fn main() {
    if child::role() {
        return;
    }
    let ended = trials(
        Some(AT_ONCE),
        &[
            crowd::TRIALS,
            ensemble::TRIALS,
            errors::TRIALS,
            handover::TRIALS,
            interop::TRIALS,
            lines::TRIALS,
            replies::TRIALS,
            sessions::TRIALS,
        ],
    );
    // What a static holds is not dropped, and the server would outlive the tests.
    kit::stop();
    ended.exit();
}
