//! A directory, a store in it, and processes that end with the test.
// Waiting for an event of another process is looking again and again.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use distlock::backend::Clock;
use distlock_testkit::Stopwatch;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything here takes on the slowest machine; only a failure waits it out.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    dir: TempDir,
    url: String,
}

impl Scene {
    pub(crate) fn sqlite() -> Self {
        Self::new(|dir| format!("sqlite:{}", dir.join("locks.db").display()))
    }

    pub(crate) fn file() -> Self {
        Self::new(|dir| format!("file:{}", dir.join("locks").display()))
    }

    pub(crate) fn memory() -> Self {
        Self::new(|_| "memory:".to_owned())
    }

    fn new(url: impl Fn(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = url(dir.path());
        Self { dir, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `distlock` with these arguments, in the scene's directory, on its store.
    pub(crate) fn distlock<S: AsRef<str>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        self.set(&mut command);
        command.args(args.iter().map(AsRef::as_ref));
        command
    }

    /// A shell line in which `distlock` is the one under test.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        self.set(&mut command);
        command.args(["-c", line]);
        command
    }

    fn set(&self, command: &mut Command) {
        let bin = Path::new(env!("CARGO_BIN_EXE_distlock")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("DISTLOCK_URL", &self.url)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("XDG_STATE_HOME", self.path("state"))
            .env_remove("DISTLOCK_URL_FILE")
            .env_remove("DISTLOCK_NAMESPACE")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
    }

    pub(crate) fn run<S: AsRef<str>>(&self, args: &[S]) -> Done {
        self.distlock(args).output().unwrap().into()
    }

    /// Starts it in the background; what it says on stderr goes to a file of this name.
    pub(crate) fn start<S: AsRef<str>>(&self, log: &str, args: &[S]) -> Running {
        let mut command = self.distlock(args);
        command.stderr(File::create(self.path(log)).unwrap());
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Starts a holder and waits until its command runs. The script finds its pid in `pid`.
    pub(crate) fn hold(&self, args: &[&str], script: &str) -> Running {
        let script = format!("echo $$ > pid.new; mv pid.new pid; {script}");
        let mut all = vec!["run"];
        all.extend(args);
        all.extend(["lock", "--", "sh", "-c", &script]);
        let holder = self.start("holder.log", &all);
        self.appears("pid");
        holder
    }

    /// Waits until a file is there, and gives what is in it.
    pub(crate) fn appears(&self, name: &str) -> String {
        until(&format!("{name} appears"), || self.path(name).exists());
        self.read(name).trim().to_owned()
    }

    /// Waits until a file holds a text.
    pub(crate) fn says(&self, name: &str, text: &str) {
        let what = || format!("{name} says {text:?}; it says {:?}", self.read(name));
        wait(what, || self.read(name).contains(text));
    }

    pub(crate) fn pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.appears(name).parse().unwrap()).unwrap()
    }

    /// What `show --json` says of a lock.
    pub(crate) fn show(&self, name: &str) -> serde_json::Value {
        let shown = self.run(&["show", name, "--json"]);
        serde_json::from_str(&shown.out).unwrap_or_else(|e| panic!("{e}: {shown:?}"))
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn waiting(&self, name: &str, n: usize) {
        until(&format!("{n} wait for {name}"), || {
            self.show(name)["waiters"].as_array().is_some_and(|w| w.len() == n)
        });
    }
}

/// A process of a test. Killed when dropped; its guardian then ends what it ran.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn code(&mut self) -> i32 {
        let mut status: Option<ExitStatus> = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code().unwrap_or(-1)
    }
}

impl Deref for Running {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Whether a process is there and not only waiting to be collected.
pub(crate) fn alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(stat.rsplit(')').next().map(str::trim_start), None | Some(""))
        && !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X'])
}

/// Waits for something to become true.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    wait(|| what.to_owned(), &mut so);
}

fn wait(what: impl Fn() -> String, mut so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let end = clock.now().plus(PATIENCE);
    while !so() {
        assert!(clock.now() < end, "waited in vain until {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long something takes, not counting the time in which this process could not run.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let watch = Stopwatch::start();
    let value = work();
    (watch.took(), value)
}

/// How long something takes as a rule: the median of three, since a machine may stand still for one.
pub(crate) fn usually(mut once: impl FnMut() -> Duration) -> Duration {
    let mut took = [once(), once(), once()];
    took.sort();
    took[1]
}

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(child)
    }
}
