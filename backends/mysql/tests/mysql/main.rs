//! The mysql stores against real servers that fail, lie, restart and fall silent. A second process
//! is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod crash;
mod errors;
mod kit;
mod late;
mod life;
mod load;
mod replies;
mod rows;
mod settings;
mod tables;
mod takeover;

use distlock_testkit::trials;

/// Tests mostly wait: many more of them run at once than there are cores.
const AT_ONCE: usize = 6;

fn main() {
    if child::role() {
        return;
    }
    trials(
        Some(AT_ONCE),
        &[
            crash::TRIALS,
            errors::TRIALS,
            late::TRIALS,
            life::TRIALS,
            load::TRIALS,
            replies::TRIALS,
            rows::TRIALS,
            settings::TRIALS,
            tables::TRIALS,
            takeover::TRIALS,
        ],
    )
    .exit();
}
