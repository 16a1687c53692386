//! The other process: what it does is said in its environment.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

use distlock_core::Clock;

use crate::kit::{connect, ms};

const ROLE: &str = "DISTLOCK_POSTGRES_TEST_ROLE";
const URL: &str = "DISTLOCK_POSTGRES_TEST_URL";
/// How often a process of the role `count` has its turn.
const TURNS: usize = 30;

/// A child process that does not outlive its test.
pub(crate) struct Child {
    process: Process,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(role: &str, url: &str) -> Self {
        Self::start_with(role, url, &[])
    }

    pub(crate) fn start_with(role: &str, url: &str, env: &[(&str, OsString)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(URL, url)
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let input = process.stdin.take().unwrap();
        Self { process, input, lines }
    }

    /// The next line it prints; empty when it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Tells it something.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match role.as_str() {
        "grab" => runtime.block_on(grab(&url)),
        "count" => {
            // An orphan must not outlive its test.
            distlock_core::engine::thread("parent", || {
                let _ = std::io::stdin().read_line(&mut String::new());
                std::process::exit(0);
            })
            .unwrap();
            runtime.block_on(count(&url));
        }
        other => panic!("no role is called {other}"),
    }
    true
}

/// Says that a lock is busy, waits for it, says its token, and gives it back when told.
async fn grab(url: &str) {
    let locks = connect(url).await.unwrap();
    let lock = locks.lock("a").ttl(ms(60_000));
    say(match lock.clone().try_acquire().await.unwrap() {
        Ok(_) => "free",
        Err(_) => "busy",
    });
    let guard = lock.acquire().await.unwrap();
    say(guard.token());
    let _ = std::io::stdin().read_line(&mut String::new());
    let _ = guard.release().await.unwrap();
    say("released");
}

/// Has its turns at one lock, whatever the server does meanwhile, and says each token.
async fn count(url: &str) {
    let locks = connect(url).await.unwrap();
    let mut turns = 0;
    while turns < TURNS {
        match locks.lock("turns").ttl(ms(4000)).acquire().await {
            Ok(guard) => {
                say(guard.token());
                turns += 1;
                let _ = guard.release().await;
            }
            Err(e) => {
                assert!(e.is_transient(), "{e:?}");
                Clock::system().sleep(ms(50)).await;
            }
        }
    }
    say("done");
}
