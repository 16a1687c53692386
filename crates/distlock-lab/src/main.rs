//! `cargo xtask lab`: every failure story in the textbooks, on real servers, with a verdict.

mod args;
mod checkers;
mod client;
mod dice;
mod docs;
mod evidence;
mod lab;
mod place;
mod progress;
mod random;
mod role;
mod run;
mod scene;
mod stores;
mod stories;
mod teeth;

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use args::Args;
use clap::Parser;
use distlock::{Error, Kind, engine};
use distlock_lab::record::{self, Record, Run, Verdict};
use distlock_testkit::as_child_of;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let connect = |url: &str| -> distlock::seam::Fut<'static, _> {
        let url = url.to_owned();
        Box::pin(async move { distlock::connect(url).await })
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
    eprintln!("seed {seed}");
    if args.teeth || !args.bug.is_empty() {
        record.teeth = teeth::run(args, seed, &stop)?;
    } else {
        record.runs = lab::run(lab::jobs(args)?, args, seed, &stop);
    }
    if let Some(path) = &args.json {
        write(&record, path)?;
    }
    let code = match record.teeth.is_empty() {
        true => summary(&record),
        false => bitten(&record),
    };
    Ok(if stop.is_cancelled() { ExitCode::from(130) } else { code })
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

fn write(record: &Record, path: &Path) -> Result<(), Error> {
    let trouble = |e| Error::new(Kind::Store, "the record cannot be written").because(e);
    let mut all = record.clone();
    // What an earlier call with the same seed did is kept, unless it was done again.
    let earlier = std::fs::read(path).ok();
    let earlier: Option<Record> = earlier.and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(mut earlier) = earlier.filter(|e| e.seed == record.seed) {
        let key = |r: &Run| (r.store.clone(), r.story.clone(), r.kind as u8, r.round, r.seed);
        let again: HashSet<_> = record.runs.iter().map(key).collect();
        earlier.runs.retain(|r| !again.contains(&key(r)));
        all.runs.splice(0..0, earlier.runs);
        all.started = earlier.started;
        if all.teeth.is_empty() {
            all.teeth = earlier.teeth;
        }
    }
    let text = serde_json::to_vec(&all).map_err(|e| trouble(e.into()))?;
    std::fs::write(path, text).map_err(trouble)
}

/// One line, and the exit code.
fn summary(record: &Record) -> ExitCode {
    let odd = record.runs.iter().filter(|r| r.verdict == Verdict::Unexpected);
    let odd: Vec<_> =
        odd.map(|r| format!("{} at {} (seed {})", r.story, r.store, r.seed)).collect();
    let of = |kind| record.runs.iter().filter(|r| r.kind == kind).count();
    let grants: u64 = record.runs.iter().map(|r| u64::from(r.grants)).sum();
    for odd in &odd {
        println!("unexpected: {odd}");
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

/// One line about the seeded bugs, and the exit code.
fn bitten(record: &Record) -> ExitCode {
    let escaped = record.teeth.iter().filter(|t| t.caught_by.is_none());
    let escaped: Vec<_> = escaped.map(|t| t.bug.as_str()).collect();
    let caught = record.teeth.len() - escaped.len();
    println!(
        "lab: {caught} of {} seeded bugs caught, seed {}{}{}",
        record.teeth.len(),
        record.seed,
        if escaped.is_empty() { "" } else { "; escaped: " },
        escaped.join(", ")
    );
    if escaped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list() {
    println!("{}\n{}\n{}", docs::stories(), docs::checkers(), docs::bugs());
    let stores: Vec<_> = stores::ALL.iter().map(|s| s.name).collect();
    println!("stores: {}", stores.join(", "));
}
