//! `cargo xtask`: the project's chores.

mod bench;
mod lab;
mod models;
mod mutants;
mod mutations;
mod part;
mod setup;
mod size;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests need and the machine lacks (apt, as root or through sudo)
    Setup,
    /// Run everything: format, lints, docs, tests, examples; one summary with seconds per part
    Test {
        /// Only the tests whose name contains this; skips the other parts
        filter: Option<String>,
    },
    /// Run the model checkers alone, with their state counts
    Models {
        /// Those too that take minutes and some gigabytes each
        #[arg(long)]
        full: bool,
    },
    /// Break the code on purpose, one mutation at a time, and see the named test go red
    Mutants {
        /// Only the mutations whose name contains this
        filter: Option<String>,
    },
    /// Lines of product code per crate, without comments and tests: total, median and longest file
    Size {
        /// A commit to count instead of the working tree
        #[arg(long, value_name = "REV")]
        at: Option<String>,
    },
    /// Tell every failure story on real servers, and hurt them at random; `--help` after `--` for more
    #[command(disable_help_flag = true)]
    Lab {
        /// --store S, --story N, --rounds R, --seed X, --quick, --json FILE
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure locks beside the raw store calls that any lock needs, in one run, as ratios
    Bench {
        /// memory, sqlite, sqlite-normal, file; all when left out
        store: Option<String>,
        /// Machine-readable output on stdout
        #[arg(long)]
        json: bool,
        /// Fewer rounds: a look, not a measurement
        #[arg(long)]
        quick: bool,
        /// Cost of an operation as waiters, holds and names become many; writes docs/growth.md
        #[arg(long)]
        growth: bool,
        /// Ours beside other libraries' locks, in several languages; writes docs/benchmarks.md.
        /// STORE is redis, postgres, etcd, zookeeper or command
        #[arg(long, conflicts_with_all = ["growth", "json"])]
        peers: bool,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().chore {
        Chore::Setup => setup::run(),
        Chore::Test { filter } => test::run(filter.as_deref()),
        Chore::Models { full } => models::run(full),
        Chore::Mutants { filter } => mutants::run(filter.as_deref()),
        Chore::Size { at } => size::run(at.as_deref()),
        Chore::Lab { args } => lab::run(&args),
        Chore::Bench { store, json, quick, growth, peers } => {
            bench::run(store.as_deref(), &bench::Options { json, quick, growth, peers })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
