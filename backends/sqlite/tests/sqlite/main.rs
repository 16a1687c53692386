//! The sqlite store on its own, as a lease store. A second process is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod differential;
mod file;
mod hostile;
mod kit;
mod life;
mod load;
mod tokens;
mod wake;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if child::role() {
        return;
    }
    let args = Arguments::from_args();
    let mut trials = Vec::new();
    for part in [
        differential::TRIALS,
        file::TRIALS,
        hostile::TRIALS,
        life::TRIALS,
        load::TRIALS,
        tokens::TRIALS,
        wake::TRIALS,
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
