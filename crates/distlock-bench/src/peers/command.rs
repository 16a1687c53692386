//! The command: `distlock run x -- true` beside `flock x true` and `etcdctl lock x true`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Error, Kind};
use distlock_testkit::servers::{self, Postgres, Redis, Server};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::member::url;
use super::page::short;
use super::record::Machine;
use super::{COMMAND, FOLDER, fail, splice, write};
use crate::report::quantile;

/// How long a command may take: one that hangs ends the measurement.
const PATIENCE: Duration = Duration::from_secs(20);

/// One command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    command: String,
    /// What keeps the lock.
    on: String,
    /// Milliseconds from the start of the process to its end.
    p50: f64,
    p95: f64,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Commands {
    machine: Machine,
    /// How often each was run.
    rounds: usize,
    lines: Vec<Line>,
}

/// A command and where its lock is.
struct Contender {
    shown: &'static str,
    on: &'static str,
    args: Vec<String>,
    times: Vec<Duration>,
}

impl Contender {
    fn new(shown: &'static str, on: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { shown, on, args, times: Vec::new() }
    }

    async fn run(&mut self, clock: &Clock) -> Result<(), Error> {
        let mut command = Command::new(&self.args[0]);
        command.args(&self.args[1..]).env("ETCDCTL_API", "3").env_remove("DISTLOCK_URL");
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let start = clock.now();
        let mut child = command.spawn().map_err(|e| fail("cannot start a command", e))?;
        let status = clock.timeout(PATIENCE, child.wait()).await;
        self.times.push(clock.now().since(start));
        match status {
            Some(Ok(status)) if status.success() => Ok(()),
            Some(Ok(status)) => {
                let what = format!("{} on {} ended with {status}", self.shown, self.on);
                Err(Error::new(Kind::Store, what))
            }
            Some(Err(e)) => Err(fail("a command was not waited for", e)),
            None => Err(Error::new(Kind::Store, format!("{} took too long", self.shown))),
        }
    }
}

/// Runs each command some times, in turns.
pub(super) async fn measure(distlock: &Path, quick: bool) -> Result<Commands, Error> {
    let rounds = if quick { 10 } else { 60 };
    let dir = tempfile::tempdir().map_err(|e| fail("no place for locks", e))?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let distlock = distlock.display().to_string();
    let redis = Redis::new().start().await?;
    let postgres = Postgres::new().durable().start().await?;
    let etcd = Server::start(servers::etcd()?).await?;
    let endpoint = format!("--endpoints=http://{}", etcd.addr());
    let ours = |on: &'static str, url: &str| {
        let args = [distlock.as_str(), "--url", url, "run", "x", "--", "true"];
        Contender::new("distlock run x -- true", on, &args)
    };
    let mut all = vec![
        Contender::new("true", "nothing", &["true"]),
        Contender::new("flock x true", "a file", &["flock", &path("flock"), "true"]),
        ours("a file (`file:`)", &format!("file:{}", path("locks"))),
        ours("SQLite, the default", &format!("sqlite:{}", path("locks.db"))),
        ours("Redis", &url("redis", redis.addr())),
        ours("PostgreSQL", &url("postgres", postgres.addr())),
        Contender::new("etcdctl lock x true", "etcd", &["etcdctl", &endpoint, "lock", "x", "true"]),
        ours("etcd", &url("etcd", etcd.addr())),
    ];
    let clock = Clock::system();
    for round in 0..=rounds {
        for contender in &mut all {
            contender.run(&clock).await?;
            // The first makes files and tables.
            if round == 0 {
                contender.times.clear();
            }
        }
    }
    let millis = |times: &mut Vec<Duration>, q| (quantile(times, q) / 10.0).round() / 100.0;
    let line = |mut contender: Contender| Line {
        p50: millis(&mut contender.times, 0.5),
        p95: millis(&mut contender.times, 0.95),
        command: contender.shown.to_owned(),
        on: contender.on.to_owned(),
    };
    let lines = all.into_iter().map(line).collect();
    Ok(Commands { machine: Machine::here(), rounds, lines })
}

pub(super) fn table(record: &Commands) -> String {
    let mut text = format!(
        "| milliseconds, of {} runs each on {} cores | lock on | p50 | p95 |\n|---|---|--:|--:|\n",
        record.rounds, record.machine.cores
    );
    for line in &record.lines {
        let (p50, p95) = (short(line.p50), short(line.p95));
        text.push_str(&format!("| `{}` | {} | {p50} | {p95} |\n", line.command, line.on));
    }
    text
}

pub(super) fn save(record: &Commands, docs: &Path) -> Result<(), Error> {
    let folder = docs.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|e| fail("cannot make docs/bench/peers", e))?;
    let text = serde_json::to_string_pretty(record).map_err(|e| fail("cannot write it", e))?;
    write(&folder.join("command.json"), text + "\n")?;
    splice(docs, COMMAND, &table(record))
}

#[cfg(test)]
pub(super) fn read(docs: &Path) -> Result<Commands, Error> {
    let file = docs.join(FOLDER).join("command.json");
    let text = std::fs::read(file).map_err(|e| fail("cannot read a record", e))?;
    serde_json::from_slice(&text).map_err(|e| fail("cannot read a record", e))
}
