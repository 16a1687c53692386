//! The sqlite store on its own, as a lease store. A second process is this binary started again.

#![allow(clippy::unwrap_used)]

mod child;
mod differential;
mod file;
mod hostile;
mod kit;
mod life;
mod load;
mod owner;
mod queue;
mod tokens;
mod tombs;
mod wake;

use distlock_testkit::trials;

fn main() {
    if child::role() {
        return;
    }
    trials(
        None,
        &[
            differential::TRIALS,
            file::TRIALS,
            hostile::TRIALS,
            life::TRIALS,
            load::TRIALS,
            owner::TRIALS,
            queue::TRIALS,
            tokens::TRIALS,
            tombs::TRIALS,
            wake::TRIALS,
        ],
    )
    .exit();
}
