//! `cargo xtask bench`: locks beside the raw store calls that any lock needs, in one run.
//!
//! A figure alone says more about the machine than about the lock; a ratio to the same store's raw
//! calls, issued from the same task on the same runtime in the same run, does not.

mod crowd;
mod growth;
mod peer;
mod peers;
mod place;
mod raw;
mod report;
mod scale;
mod scenes;

use std::process::ExitCode;

use clap::Parser;
use distlock::Error;

use place::STORES;
use report::Row;

/// Measures locks beside the raw store calls that any lock needs.
#[derive(Parser)]
struct Args {
    /// The store to measure (a wrong one lists them); all when left out
    store: Option<String>,
    /// Rows as JSON on stdout
    #[arg(long)]
    json: bool,
    /// Fewer rounds: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Cost of an operation as waiters, holds and names become many
    #[arg(long)]
    growth: bool,
    /// With --growth: the documentation folder whose record, page and plot are written anew
    #[arg(long, requires = "growth")]
    docs: Option<std::path::PathBuf>,
    /// With --growth: measure this alone; the record keeps its other figures
    #[arg(long, requires = "growth")]
    of: Option<growth::Subject>,
    /// Ours beside other libraries' locks
    #[arg(long, conflicts_with_all = ["growth", "json"], requires_all = ["repository", "command"])]
    peers: bool,
    /// With --peers: the working tree, with bench/peers, docs and target in it
    #[arg(long)]
    repository: Option<std::path::PathBuf>,
    /// With --peers: the command distlock
    #[arg(long)]
    command: Option<std::path::PathBuf>,
    /// One process of a contender among peers (internal)
    #[arg(long, hide = true, num_args = 7)]
    contender: Vec<String>,
    /// One process of a crowd (internal)
    #[arg(long, hide = true, num_args = 4)]
    member: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("bench: no runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&args)) {
        Ok(rows) => {
            report::print(&rows, args.json);
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("bench: {e}");
            if let Some(hint) = e.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<Vec<Row>, Error> {
    if let [url, start, end, out] = &args.member[..] {
        crowd::member(url, start, end, out).await?;
        return Ok(Vec::new());
    }
    if !args.contender.is_empty() {
        peers::member(&args.contender).await?;
        return Ok(Vec::new());
    }
    if let (true, Some(root), Some(command)) = (args.peers, &args.repository, &args.command) {
        // Package managers refuse relative paths.
        let root = std::path::absolute(root).map_err(|e| {
            Error::new(distlock::Kind::Usage, "the repository has no path").because(e)
        })?;
        let folders = peers::Folders {
            sources: root.join("bench").join("peers"),
            builds: root.join("target").join("peers"),
            command: command.clone(),
            docs: root.join("docs"),
        };
        let measure = peers::run(args.store.as_deref(), args.quick, &folders);
        // Dropping the future ends servers and contenders, and removes their data.
        tokio::select! {
            done = measure => done?,
            _ = tokio::signal::ctrl_c() => {
                return Err(Error::new(distlock::Kind::Store, "interrupted"));
            }
        }
        return Ok(Vec::new());
    }
    let all: &[&str] = if args.growth { &growth::STORES } else { &STORES };
    let chosen = match &args.store {
        None => all.to_vec(),
        Some(one) => vec![one.as_str()],
    };
    if args.growth {
        growth::run(&chosen, args.of, args.quick, args.docs.as_deref()).await?;
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for store in chosen {
        eprintln!("measuring {store}…");
        rows.extend(scenes::all(store, args.quick).await?);
    }
    Ok(rows)
}
