//! The other process: this binary again, doing what its standard input says.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use distlock_core::Patience;
use distlock_core::session::SessionStore;
use rustix::process::{Pid, Signal, kill_process};

use crate::util::{RELEASED, ask, attempt, open, run, with};

const DIR: &str = "DISTLOCK_FILE_AGENT";

/// In a process that was started as an agent: be one, and never return.
pub fn maybe_run() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let mut store = None;
    let mut held = None;
    let mut lines = std::io::stdin().lines();
    while let Some(line) = lines.next() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let store = store.get_or_insert_with(|| open(dir));
        let answer = run(async {
            match words[..] {
                ["open"] => "opened".to_owned(),
                ["lock", name] => {
                    let (conn, token) = with(store, &ask(name, Patience::Forever)).await.unwrap();
                    held = Some(conn);
                    format!("held {token}")
                }
                ["lock", name, min_hold, lock_delay] => {
                    let mut ask = ask(name, Patience::Forever);
                    ask.min_hold = Duration::from_millis(min_hold.parse().unwrap());
                    ask.lock_delay = Duration::from_millis(lock_delay.parse().unwrap());
                    let (conn, token) = with(store, &ask).await.unwrap();
                    held = Some(conn);
                    format!("held {token}")
                }
                ["once", name] => {
                    let (conn, token) = with(store, &ask(name, Patience::Forever)).await.unwrap();
                    assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
                    format!("held {token}")
                }
                ["try", name] => match attempt(store, name).await {
                    Ok((conn, token)) => {
                        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
                        format!("held {token}")
                    }
                    Err(status) => format!("busy {status}"),
                },
                ["begin", name] => {
                    // Asks, and drops the request when the next line comes.
                    let want = ask(name, Patience::Forever);
                    let mut waiting = Box::pin(store.lock(&want, &|_| ()));
                    assert!(crate::util::polls(1, waiting.as_mut()).await.is_none());
                    assert_eq!(lines.next().unwrap().unwrap(), "cancel");
                    drop(waiting);
                    // What comes after it is answered after it.
                    assert!(attempt(store, "another").await.is_ok());
                    "cancelled".to_owned()
                }
                ["exhaust"] => crate::hostile::exhaust(store).await,
                ["unlock"] => {
                    assert_eq!(store.unlock(held.take().unwrap()).await.unwrap(), RELEASED);
                    "free".to_owned()
                }
                ["count", name, times, file] => crate::load::count(store, name, times, file).await,
                ["crowd", name, n] => crate::load::crowd(store, name, n.parse().unwrap()).await,
                ["ping", name, times] => crate::load::ping(store, name, times).await,
                _ => panic!("what is {line:?}"),
            }
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}").unwrap();
        out.flush().unwrap();
    }
    std::process::exit(0);
}

/// An agent. Dropping it kills it.
pub struct Agent {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<std::process::ChildStdout>,
}

impl Agent {
    pub fn new(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { to: child.stdin.take(), from, child }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// A command and its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// The token of a grant that was asked for.
    pub fn token(&mut self) -> u64 {
        let line = self.hear();
        line.strip_prefix("held ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order.
    pub fn finish(&mut self) {
        self.to = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
