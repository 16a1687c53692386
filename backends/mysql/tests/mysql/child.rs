//! The other process: what it does is said in its environment.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdout, Command, Stdio};

use distlock_core::Clock;

use crate::kit::{connect, ms};

const ROLE: &str = "DISTLOCK_MYSQL_TEST_ROLE";
const URL: &str = "DISTLOCK_MYSQL_TEST_URL";

/// A child process that does not outlive its test.
pub(crate) struct Child {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(role: &str, url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// The next line it prints; empty when it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Tells it to end; what it still prints, to the end.
    pub(crate) fn rest(mut self) -> Vec<String> {
        drop(self.process.stdin.take());
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line.is_empty() => return lines,
                line => lines.push(line),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let (Ok(role), Ok(url)) = (std::env::var(ROLE), std::env::var(URL)) else { return false };
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let end = over.clone();
    // An orphan must not outlive its test.
    distlock_core::engine::thread("parent", move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = connect(&url).await.unwrap();
        if role == "wait" {
            let _ = locks.lock("a").ttl(ms(60_000)).acquire().await;
            return;
        }
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            // Errors are of no interest: the server is killed under it.
            let Ok(Ok(guard)) = locks.lock("hot").ttl(ms(4000)).try_acquire_for(ms(8000)).await
            else {
                Clock::system().sleep(ms(20)).await;
                continue;
            };
            // Both are on the machine's one wall clock: when it was held for certain.
            let from = Clock::system().wall_micros();
            Clock::system().sleep(ms(1)).await;
            let valid = guard.check().is_ok();
            let to = Clock::system().wall_micros();
            if valid {
                say(format!("{} {from} {to}", guard.token()));
            }
            let _ = guard.release().await;
        }
    });
    true
}
