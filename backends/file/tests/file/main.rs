//! The file store against the real kernel: other processes are this binary, started again.
#![allow(clippy::disallowed_methods)] // tests watch the machine's clock and start threads
#![allow(clippy::unwrap_used, unreachable_pub)]

mod agent;
mod basics;
mod cancel;
mod crash;
mod dir;
mod hostile;
mod load;
mod order;
mod owner;
mod time;
mod tokens;
mod util;

fn main() {
    agent::maybe_run();
    let mut args = libtest_mimic::Arguments::from_args();
    // Two cores: more at a time only measure each other.
    args.test_threads.get_or_insert(2);
    let trials = [
        basics::trials(),
        cancel::trials(),
        crash::trials(),
        dir::trials(),
        hostile::trials(),
        load::trials(),
        order::trials(),
        owner::trials(),
        time::trials(),
        tokens::trials(),
    ];
    libtest_mimic::run(&args, trials.into_iter().flatten().collect()).exit();
}
