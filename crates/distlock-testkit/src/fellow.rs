//! The second process of a store's own tests: this test program, started again.
//!
//! What it is to do is said in its environment, and the two talk in lines. Its `main` asks
//! [`part`] first. For the laws' second processes see [`Child`](crate::Child).

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::engine;

pub use crate::roles::say;

const ROLE: &str = "DISTLOCK_FELLOW_ROLE";
const PLACE: &str = "DISTLOCK_FELLOW_PLACE";

/// Another process of a test. It does not outlive it: dropping it kills it.
pub struct Fellow {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Fellow {
    /// Starts this program again in a role at a place: a URL, or a path.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(role: &str, place: impl AsRef<OsStr>) -> Self {
        Self::start_with(role, place, &[])
    }

    /// The same, with these variables in its environment.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_with(role: &str, place: impl AsRef<OsStr>, env: &[(&str, OsString)]) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program's path"))
            .env(ROLE, role)
            .env(PLACE, place)
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let lines = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, lines }
    }

    /// The next line it prints; empty when it has ended.
    ///
    /// # Panics
    /// When it is not text.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// Tells it something.
    ///
    /// # Panics
    /// When it listens no more.
    pub fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("it listens");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Has it end; what it still prints until then.
    pub fn rest(&mut self) -> Vec<String> {
        drop(self.process.stdin.take());
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line.is_empty() => return lines,
                line => lines.push(line),
            }
        }
    }

    /// Has it end, which must be well.
    ///
    /// # Panics
    /// When it is not.
    pub fn end(mut self) {
        self.rest();
        let status = self.process.wait().expect("its status");
        assert!(status.success(), "{status}");
    }

    /// SIGKILL, and gone when this returns.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        self.process.kill().expect("a kill");
        self.process.wait().expect("its status");
    }
}

impl Drop for Fellow {
    /// Takes effect at once.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The role and the place this process was started with, if it is a fellow.
#[must_use]
pub fn part() -> Option<(String, OsString)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PLACE)?))
}

/// Waits for a line of whoever started this process; empty once they are gone.
#[allow(clippy::must_use_candidate)] // to wait for a word may be all that is wanted
pub fn hear() -> String {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    line.trim().to_owned()
}

/// Becomes true as soon as whoever started this process says something, or is gone: an orphan must
/// not outlive its test.
///
/// # Panics
/// When there is no thread to listen.
#[must_use]
pub fn told() -> Arc<AtomicBool> {
    let told = Arc::<AtomicBool>::default();
    let tell = told.clone();
    let listen = move || {
        hear();
        tell.store(true, Ordering::Release);
    };
    engine::thread("parent", listen).expect("a thread");
    told
}

/// Ends this process as soon as whoever started it says something, or is gone.
///
/// # Panics
/// When there is no thread to listen.
pub fn end_when_told() {
    let listen = || {
        hear();
        std::process::exit(0);
    };
    engine::thread("parent", listen).expect("a thread");
}
