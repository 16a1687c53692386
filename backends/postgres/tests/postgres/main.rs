//! The PostgreSQL stores against real servers that fail, lie, restart and fall silent. A second
//! process is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod crash;
mod durable;
mod errors;
mod forced;
mod in_transaction;
mod kit;
mod late;
mod replies;
mod sessions;
mod settings;
mod short;
mod tables;
mod takeover;
mod wake;
mod walltime;

use distlock_testkit::trials;

/// Tests mostly wait: more of them run at once than there are cores.
const AT_ONCE: usize = 6;

fn main() {
    if child::role() {
        return;
    }
    trials(
        Some(AT_ONCE),
        &[
            crash::TRIALS,
            durable::TRIALS,
            errors::TRIALS,
            forced::TRIALS,
            in_transaction::TRIALS,
            late::TRIALS,
            replies::TRIALS,
            sessions::TRIALS,
            settings::TRIALS,
            short::TRIALS,
            tables::TRIALS,
            takeover::TRIALS,
            wake::TRIALS,
            walltime::TRIALS,
        ],
    )
    .exit();
}
