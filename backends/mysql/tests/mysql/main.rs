//! The mysql stores against real servers that fail, lie, restart and fall silent. A second process
//! is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod crash;
mod errors;
mod kit;
mod life;
mod load;
mod replies;
mod rows;
mod settings;

use libtest_mimic::{Arguments, Trial};

/// Tests mostly wait: many more of them run at once than there are cores.
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
        life::TRIALS,
        load::TRIALS,
        replies::TRIALS,
        rows::TRIALS,
        settings::TRIALS,
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
