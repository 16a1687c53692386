//! The PostgreSQL stores against real servers that fail, lie, restart and fall silent. A second
//! process is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod crash;
mod errors;
mod in_transaction;
mod kit;
mod replies;
mod sessions;
mod settings;
mod tables;
mod wake;
mod walltime;

use libtest_mimic::{Arguments, Trial};

/// Tests mostly wait: more of them run at once than there are cores.
const AT_ONCE: usize = 6;

fn main() {
    if child::role() {
        return;
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let mut trials = Vec::new();
    for part in [
        crash::TRIALS,
        errors::TRIALS,
        in_transaction::TRIALS,
        replies::TRIALS,
        sessions::TRIALS,
        settings::TRIALS,
        tables::TRIALS,
        wake::TRIALS,
        walltime::TRIALS,
    ] {
        trials.extend(part.iter().map(|(name, test)| {
            Trial::test(*name, move || {
                test();
                Ok(())
            })
        }));
    }
    libtest_mimic::run(&args, trials).exit();
}
