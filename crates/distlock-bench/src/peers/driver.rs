//! Runs one contender in one scene: starts its processes, lets them go together, and reads what each
//! measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Error, Kind};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::contender::{Contender, Language};
use super::fail;
use super::protocol::{Measured, Ready};
use super::record::{Lengths, Tally};
use super::scene::Scene;
use super::toolchain::Program;
use super::usage::{peak_memory, processor};

/// How long a process may take besides warming up and its run.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a process may take to end when its input has.
const ENDING: Duration = Duration::from_secs(5);

/// One turn of a contender.
pub(crate) struct Turn<'a> {
    pub(crate) store: &'a str,
    pub(crate) server: SocketAddr,
    pub(crate) contender: &'a Contender,
    pub(crate) program: &'a Program,
    pub(crate) scene: Scene,
    pub(crate) lengths: Lengths,
    /// What the names of its locks begin with: no two contenders meet.
    pub(crate) prefix: &'a str,
    /// Where the processes' standard error goes.
    pub(crate) log: &'a Path,
}

struct Member {
    child: Child,
    pid: u32,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Turn<'_> {
    /// What was measured, and which library that was.
    pub(crate) async fn run(&self) -> Result<(Tally, String), Error> {
        let clock = Clock::system();
        let mut members = Vec::new();
        for number in 0..self.scene.processes() {
            members.push(self.start(number)?);
        }
        let warm = Duration::from_millis(self.lengths.warm_ms) + PATIENCE;
        let mut version = String::new();
        for member in &mut members {
            let line = self.line(&clock, member, warm).await?;
            let ready: Ready = self.read(&line)?;
            version = ready.ready;
        }
        let pids: Vec<u32> = members.iter().map(|member| member.pid).collect();
        // Everything below this process that is no contender is the server.
        let used = || {
            let me = std::process::id();
            let (all, clients) = (processor(&[me]), processor(&pids));
            (all - clients, clients)
        };
        let before = used();
        for member in &mut members {
            let go = member.input.write_all(b"go\n").await;
            go.map_err(|e| fail("a contender ended early", e))?;
        }
        let mut tally = Tally::default();
        let run = Duration::from_millis(self.lengths.run_ms) + PATIENCE;
        for member in &mut members {
            let line = self.line(&clock, member, run).await?;
            let measured: Measured = self.read(&line)?;
            // Some take longer: their last task had to wait. The processes ran side by side.
            tally.seconds = tally.seconds.max(measured.seconds);
            tally.wait.merge(&measured.wait);
            tally.cycle.merge(&measured.cycle);
            tally.grants.push(measured.grants);
        }
        let after = used();
        (tally.server_cpu, tally.client_cpu) = (after.0 - before.0, after.1 - before.1);
        tally.memory = pids.iter().map(|pid| peak_memory(*pid)).sum();
        for member in members {
            let Member { mut child, input, .. } = member;
            drop(input);
            // One that does not end by itself is killed as it is dropped.
            let _ = clock.timeout(ENDING, child.wait()).await;
        }
        Ok((tally, version))
    }

    fn start(&self, number: usize) -> Result<Member, Error> {
        let (contender, scene) = (self.contender, self.scene);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log);
        let mut command = Command::new(&self.program.command);
        command.args(&self.program.args);
        // The program of this benchmark plays several stores.
        command.arg(match contender.language {
            Language::Rust => format!("{}:{}", self.store, contender.role()),
            _ => contender.peer.to_owned(),
        });
        command.arg(self.server.to_string());
        command.args([scene.tasks().to_string(), scene.names().to_string()]);
        command.args([self.lengths.warm_ms.to_string(), self.lengths.run_ms.to_string()]);
        command.arg(self.prefix).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(log.map_err(|e| fail("no log for a contender", e))?).kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.map_err(|e| fail("cannot start a contender", e))?;
        let ended = || Error::new(Kind::Store, format!("process {number} ended early"));
        let pid = child.id().ok_or_else(ended)?;
        let input = child.stdin.take().ok_or_else(ended)?;
        let output = child.stdout.take().ok_or_else(ended)?;
        Ok(Member { child, pid, input, output: BufReader::new(output).lines() })
    }

    async fn line(
        &self,
        clock: &Clock,
        from: &mut Member,
        within: Duration,
    ) -> Result<String, Error> {
        let trouble = |what: &str| {
            let log = std::fs::read_to_string(self.log).unwrap_or_default();
            let said = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            Error::new(Kind::Store, format!("{} {what}; it said: {said}", self.contender.peer))
        };
        match clock.timeout(within, from.output.next_line()).await {
            Some(Ok(Some(line))) => Ok(line),
            Some(Ok(None)) => Err(trouble("ended early")),
            Some(Err(e)) => Err(trouble("cannot be read").because(e)),
            None => Err(trouble("took too long")),
        }
    }

    fn read<T: serde::de::DeserializeOwned>(&self, line: &str) -> Result<T, Error> {
        serde_json::from_str(line).map_err(|e| {
            let what = format!("{} does not keep to the protocol", self.contender.peer);
            Error::new(Kind::Store, what).because(e)
        })
    }
}
