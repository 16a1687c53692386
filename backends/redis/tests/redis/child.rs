//! The other process: what it does is said in its environment.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::time::Duration;

use distlock_core::seam::Force;
use distlock_core::{Clock, Locks, ReqId};

use crate::kit::{connect, ms};

const ROLE: &str = "DISTLOCK_REDIS_TEST_ROLE";
const URL: &str = "DISTLOCK_REDIS_TEST_URL";

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

    /// SIGKILL, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
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
    assert_eq!(role, "churn");
    // An orphan must not outlive its test.
    distlock_core::engine::thread("parent", || {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(churn(&url));
    true
}

/// Everything one can do with locks, on a few names, several at a time, for ever; a line for each.
async fn churn(url: &str) {
    let locks = connect(url).await.unwrap();
    let lanes = (0..6).map(|lane| {
        let locks = locks.clone();
        async move {
            loop {
                let bytes = *ReqId::random().as_bytes();
                one(&locks, &bytes).await;
                say(lane);
            }
        }
    });
    futures_util::future::join_all(lanes).await;
}

/// One of everything, as the dice say. Errors are of no interest: the server is killed under it.
async fn one(locks: &Locks, dice: &[u8; 16]) {
    let name = format!("c{}", dice[0] % 3);
    let mut lock = locks.lock(&name).ttl(ms(150 + u64::from(dice[1])));
    let plain = locks.capability().store.contains("plain");
    if !plain {
        lock = match dice[2] % 4 {
            0 => lock.shared(),
            1 => locks.lock(format!("p{}", dice[0] % 2)).permits(NonZeroU32::new(3).unwrap()),
            _ => lock,
        };
        if dice[3].is_multiple_of(4) {
            lock = lock.lock_delay(ms(20));
        }
    }
    if dice[4].is_multiple_of(4) {
        lock = lock.min_hold(ms(30));
    }
    let patience = Duration::from_millis(u64::from(dice[5] % 40));
    let asking = async {
        match dice[6] % 3 {
            0 => lock.try_acquire().await.ok().and_then(Result::ok),
            1 => lock.try_acquire_for(patience).await.ok().and_then(Result::ok),
            _ => lock.acquire().await.ok(),
        }
    };
    // Dropped midway, now and then.
    let bound = if dice[7].is_multiple_of(3) { patience } else { ms(400) };
    let Some(Some(guard)) = Clock::system().timeout(bound, asking).await else { return };
    // Long enough to be renewed, now and then.
    let hold = if dice[8].is_multiple_of(5) { ms(200) } else { ms(u64::from(dice[9] % 5)) };
    Clock::system().sleep(hold).await;
    match dice[10] % 6 {
        0 => drop(locks.force(&name, None, Force::Revoke).await),
        1 => drop(locks.force(&name, None, Force::Now).await),
        2 => drop(guard.detach()),
        3 => drop(guard),
        _ => drop(guard.release().await),
    }
}
