//! `distlock`: locks for the shell.
//!
//! | where | what |
//! |---|---|
//! | `args` | the one definition: parsing, help, man page, completions |
//! | `verbs` | one file a verb: arguments and a printer in, an exit status out |
//! | `printer`, `exit`, `duration` | how things are said and read |
//! | `guardian`, `group`, `descriptors` | the process that ends the command when this one cannot |
//! | `child`, `signals`, `terminal` | the command under the lock, and what reaches it |
//! | `store`, `wait` | from arguments to a client, and to a lock |

use std::process::ExitCode;

use clap::Parser;

mod args;
mod child;
mod descriptors;
mod exit;
mod group;
mod guardian;
mod printer;
mod signals;
mod store;
mod terminal;
mod verbs;
mod view;
mod wait;

use args::{Args, Everywhere};
use exit::{Done, Failure, Outcome, Status};
use printer::Printer;
use signals::Signals;

fn main() -> ExitCode {
    if guardian::is_me() {
        return guardian::watch();
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => return unparsed(&e),
    };
    let printer = Printer::new(&args.everywhere);
    let status = verbs::dispatch(args, printer).unwrap_or_else(|f| printer.failure(&f));
    status.into()
}

/// Help and version are answers; anything else is wrong usage, said as all errors are.
fn unparsed(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        let _ = e.print();
        return Status::OK.into();
    }
    let text = e.render().to_string();
    eprint!("{}", text.replacen("error: ", "distlock: ", 1));
    // The usage line of `run`, and no command set apart: what flock(1) has taught people.
    if text.contains("-- <CMD>") && !std::env::args_os().any(|word| word == "--") {
        eprintln!("hint: the command comes after --, as in `distlock run NAME -- CMD`");
    }
    Status::USAGE.into()
}
