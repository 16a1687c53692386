//! `cargo xtask lab`: every failure story in the textbooks, on real servers, with a verdict.

mod args;
mod checkers;
mod client;
mod dice;
mod docs;
mod evidence;
mod files;
mod lab;
mod place;
mod progress;
mod random;
mod role;
mod run;
mod scene;
mod stores;
mod stories;

use std::process::ExitCode;

use args::Args;
use clap::Parser;
use distlock::Error;
use distlock::backend::engine;
use distlock_lab::record::{self, Record, Run, Verdict};
use distlock_testkit::as_child_of;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let connect = |url: &str| -> distlock::backend::Fut<'static, _> {
        Box::pin(place::connect(url.to_owned()))
    };
    // Its clients are this program again.
    if let Some(code) = as_child_of(connect, &[(role::NAME, role::play)]) {
        return code;
    }
    match call(&Args::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("lab: {e}");
            if let Some(hint) = e.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn call(args: &Args) -> Result<ExitCode, Error> {
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    if !args.merge.is_empty() {
        return merge(args);
    }
    let seed = args.seed.unwrap_or_else(|| u64::from(distlock::ReqId::random().as_bytes()[0]) + 1);
    let stop = CancellationToken::new();
    on_interrupt(stop.clone());
    let mut record = Record {
        seed,
        started: lab::timestamp(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        stores: stores::ALL.iter().map(|s| s.name.to_owned()).collect(),
        stories: stories::ALL.iter().map(|s| s.record()).collect(),
        ..Record::default()
    };
    // What an earlier call with the same seed did is kept, unless it is done again.
    let earlier = match args.record_path(seed) {
        Some(path) if path.exists() => Some(files::read(&path)?).filter(|e| e.seed == seed),
        _ => None,
    };
    eprintln!("seed {seed}");
    let done = earlier.as_ref().filter(|_| args.resume).map(|e| e.runs.as_slice());
    let jobs = lab::jobs(args, seed, done.unwrap_or_default())?;
    // After each store, so that a long call that is ended hard leaves what it did.
    let save = |runs: &[Run]| {
        let now = Record { runs: runs.to_vec(), ..record.clone() };
        if let Err(e) = files::write(args, seed, earlier.clone(), now) {
            eprintln!("lab: {e}");
        }
    };
    record.runs = lab::run(jobs, args, seed, &stop, &save);
    let (all, page) = files::write(args, seed, earlier, record.clone())?;
    let code = summary(if args.resume { &all } else { &record });
    if let Some(page) = page {
        eprintln!("lab: the page is {}", page.display());
    }
    Ok(if stop.is_cancelled() { ExitCode::from(130) } else { code })
}

/// Several records as one, without running anything.
fn merge(args: &Args) -> Result<ExitCode, Error> {
    let mut all = Record::default();
    for path in &args.merge {
        all = distlock_lab::report::merge(all, files::read(path)?);
    }
    files::write(args, all.seed, None, all.clone())?;
    Ok(summary(&all))
}

/// The first INT or TERM ends the lab in order: servers, clients and files go. The second at once.
fn on_interrupt(stop: CancellationToken) {
    engine::spawn(async move {
        let Ok(mut term) = signal(SignalKind::terminate()) else { return };
        loop {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            }
            if stop.is_cancelled() {
                std::process::exit(130);
            }
            eprintln!("\nlab: ending what runs; once more to end at once");
            stop.cancel();
        }
    });
}

/// One line, and the exit code.
fn summary(record: &Record) -> ExitCode {
    let odd = record.runs.iter().filter(|r| r.verdict == Verdict::Unexpected);
    let odd: Vec<_> = odd
        .map(|r| {
            format!("{} at {} (round {}, seed {}): {}", r.story, r.store, r.round, r.seed, r.said)
        })
        .collect();
    let of = |kind| record.runs.iter().filter(|r| r.kind == kind).count();
    let grants: u64 = record.runs.iter().map(|r| u64::from(r.grants)).sum();
    for odd in &odd {
        println!("unexpected: {odd}");
    }
    for run in record.runs.iter().filter(|r| r.said.starts_with(lab::TOLD_AGAIN)) {
        println!("{} round {}: {}", run.store, run.round, run.said);
    }
    println!(
        "lab: {} stories, {} controls, {} random rounds, {grants} grants, seed {}: {}",
        of(record::Kind::Story),
        of(record::Kind::Control),
        of(record::Kind::Random),
        record.seed,
        if odd.is_empty() { "as expected".to_owned() } else { format!("{} unexpected", odd.len()) }
    );
    if odd.is_empty() && !record.runs.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list() {
    println!("{}\n{}", docs::stories(), docs::checkers());
    let stores: Vec<_> = stores::ALL.iter().map(|s| s.name).collect();
    println!("stores: {}", stores.join(", "));
}
