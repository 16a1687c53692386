//! The redis stores against real servers that fail, lie, restart and fall silent. A second process
//! is this binary started again.

#![allow(clippy::unwrap_used)]

mod agreed;
mod connection;
mod cost;
mod crash;
mod errors;
mod forgetful;
mod full;
mod interop;
mod kit;
mod private;
mod quarantine;
mod replies;
mod rewriting;
mod walltime;

use std::process::ExitCode;

use distlock_testkit::{Connect, as_child, trials};

/// Tests mostly wait: many more of them run at once than there are cores.
const AT_ONCE: usize = 12;

fn main() -> ExitCode {
    let connect: Connect = |url| {
        let url = url.to_owned();
        Box::pin(async move { kit::connect(&url).await })
    };
    if let Some(code) = as_child(connect) {
        return code;
    }
    let ended = trials(
        Some(AT_ONCE),
        &[
            agreed::TRIALS,
            connection::TRIALS,
            cost::TRIALS,
            crash::TRIALS,
            errors::TRIALS,
            full::TRIALS,
            interop::TRIALS,
            private::TRIALS,
            quarantine::TRIALS,
            replies::TRIALS,
            walltime::TRIALS,
        ],
    );
    ended.exit_code()
}
