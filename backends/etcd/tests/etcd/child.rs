//! The other process: it takes and gives back one lock until told to stop.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::{Clock, Locks};
use distlock_testkit::history::Recorder;

use crate::kit::{connect, ms};

const URL: &str = "DISTLOCK_ETCD_TEST_URL";
const HISTORY: &str = "DISTLOCK_ETCD_TEST_HISTORY";

/// A child process that does not outlive its test.
pub(crate) struct Child {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(url: &str, history: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(URL, url)
            .env(HISTORY, history)
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

    /// Tells it to stop, and waits until it has ended well.
    pub(crate) fn stop(mut self) {
        drop(self.process.stdin.take());
        while !self.line().is_empty() {}
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let (Ok(url), Ok(history)) = (std::env::var(URL), std::env::var(HISTORY)) else { return false };
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    distlock_core::engine::thread("parent", move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        told.store(true, Ordering::Release);
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = connect(&url).await.unwrap();
        contend(&locks, Path::new(&history), || stop.load(Ordering::Acquire)).await;
        locks.close().await;
    });
    true
}

/// Takes and gives back one lock, and writes down what happens; a line for each grant.
pub(crate) async fn contend(locks: &Locks, history: &Path, stop: impl Fn() -> bool) {
    let mut recorder = Recorder::create(history).unwrap();
    while !stop() {
        let lock = locks.lock("storm").ttl(ms(4000));
        match recorder.acquire_lock(lock, "storm").await {
            Ok(guard) => {
                Clock::system().sleep(ms(5)).await;
                // Lost, unanswered or released: the history says which.
                let _ = recorder.release(guard).await;
                let mut out = std::io::stdout().lock();
                writeln!(out, "grant").unwrap();
                out.flush().unwrap();
            }
            Err(e) => assert!(e.is_transient(), "{e:?}"),
        }
    }
    recorder.end().unwrap();
}
