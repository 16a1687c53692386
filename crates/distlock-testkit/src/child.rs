//! The second process of a law: this test program, started again in a role.
//!
//! Parent and child talk in lines: the child's standard output and input. A child whose input ends
//! exits at once without giving anything back, so that no orphan outlives its law.

use std::process::Stdio;

use distlock_core::Clock;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::roles::ROLE;
use crate::wait::{PATIENCE, soon};

/// A second process of a test: this program, started again. Dropping it kills it.
pub struct Child {
    process: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    what: String,
}

impl Child {
    /// Starts this program again in a role, with `key=value` arguments. Its `main` is
    /// [`run`](crate::run) or asks [`as_child`](crate::as_child) first.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(role: &str, args: &[(&str, &str)]) -> Self {
        Self::start_with(role, args, &[])
    }

    /// The same, with variables set in its environment.
    pub(crate) fn start_with(role: &str, args: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().expect("this program's path");
        let mut process = Command::new(program)
            .env(ROLE, role)
            .envs(env.iter().copied())
            .args(args.iter().map(|(key, value)| format!("{key}={value}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program starts again");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let input = process.stdin.take().expect("its input");
        let what = format!("child {role} ({})", process.id().unwrap_or(0));
        Self { process, lines, input, what }
    }

    /// Its process id.
    ///
    /// # Panics
    /// After it was waited for.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id().expect("it has not been waited for")
    }

    /// The next line that starts with a word; lines that start with another are passed over.
    /// Returns what follows the word.
    ///
    /// # Panics
    /// When it ends or says nothing of the kind for long.
    ///
    /// # Cancel safety
    /// What was passed over is gone.
    pub async fn hear(&mut self, word: &str) -> String {
        self.hear_for(PATIENCE, word).await
    }

    /// Like [`Child::hear`], with another patience.
    ///
    /// # Panics
    /// When it ends or says nothing of the kind for so long.
    ///
    /// # Cancel safety
    /// What was passed over is gone.
    pub async fn hear_for(&mut self, patience: std::time::Duration, word: &str) -> String {
        let mut passed = Vec::new();
        let clock = Clock::system();
        let heard = clock.timeout(patience, async {
            loop {
                let line = self.lines.next_line().await.expect("the child's output is text")?;
                match line.strip_prefix(word) {
                    Some(rest) => return Some(rest.trim().to_owned()),
                    None => passed.push(line),
                }
            }
        });
        match heard.await {
            Some(Some(rest)) => rest,
            Some(None) => panic!("{} ended without saying {word:?}; said {passed:?}", self.what),
            None => panic!("{} did not say {word:?} in {patience:?}; said {passed:?}", self.what),
        }
    }

    /// Tells it a line.
    ///
    /// # Panics
    /// When it has ended.
    ///
    /// # Cancel safety
    /// It may have been told.
    pub async fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.input.write_all(line.as_bytes()).await.expect("the child listens");
        self.input.flush().await.expect("the child listens");
    }

    /// Asks a question and hears the answer that starts with the same word.
    pub(crate) async fn ask(&mut self, question: &str) -> String {
        self.say(question).await;
        self.hear(question).await
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).expect("a child that lives");
        kill_process(pid, signal).expect("a signal to a child");
    }

    /// SIGKILL, and waits until it is dead.
    ///
    /// # Panics
    /// When it was dead already.
    ///
    /// # Cancel safety
    /// It is being killed.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        soon("a killed child ends", self.process.wait()).await.expect("its status");
    }

    /// SIGSTOP: it stands still but its locks are not given back.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// When it has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end, which must be a success.
    ///
    /// # Panics
    /// When it is none, or does not come.
    ///
    /// # Cancel safety
    /// It is killed.
    pub async fn ended_well(mut self) {
        let status = soon("a child ends", self.process.wait()).await.expect("its status");
        assert!(status.success(), "{}: {status}", self.what);
    }
}
