//! One part of a run: a command, its log, its seconds, and what its test runner counted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use distlock_core::Clock;

/// How a part went.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) ok: bool,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) took: Duration,
    pub(crate) log: PathBuf,
    /// The tests that failed, by name.
    pub(crate) red: Vec<String>,
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Where logs and scratch files go.
pub(crate) fn scratch() -> io::Result<PathBuf> {
    let dir = root().join("target").join("xtask");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A cargo command in the workspace.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end in front of whoever called, and says what failed.
pub(crate) fn follow(mut command: Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} ended with {status}")),
        Err(e) => Err(format!("cannot run {what}: {e}")),
    }
}

/// Runs a part to its end, with its output in a log file.
pub(crate) fn run(name: &str, mut command: Command) -> Outcome {
    let clock = Clock::system();
    let started = clock.now();
    let file = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let log = scratch().unwrap_or_default().join(format!("{file}.log"));
    // A backtrace buries what a test said under the frames of its runtime.
    command.env("RUST_BACKTRACE", "0");
    let status = File::create(&log).and_then(|out| {
        let err = out.try_clone()?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).status()
    });
    let took = clock.now().since(started);
    let text = fs::read(&log).map(|t| String::from_utf8_lossy(&t).into_owned()).unwrap_or_default();
    let (passed, failed) = counted(&text);
    let ok = match status {
        Ok(status) => status.success(),
        Err(e) => {
            let _ = fs::write(&log, format!("cannot start {command:?}: {e}\n"));
            false
        }
    };
    Outcome { name: name.to_owned(), ok, passed, failed, took, log, red: red(&text) }
}

/// The names of the tests that failed, as their runner printed them.
fn red(text: &str) -> Vec<String> {
    let failed = |line: &str| {
        // The lab names its runs so.
        if let Some(run) = line.strip_prefix("unexpected: ") {
            return Some(run.to_owned());
        }
        let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
        Some(name.trim_end_matches([' ', '.']).to_owned())
    };
    text.lines().filter_map(failed).collect()
}

/// What of an output tells why it failed: not what went well.
fn worth_reading(text: &str) -> Vec<&str> {
    let dull = |line: &str| {
        let test = line.starts_with("test ") && line.ends_with(" ok");
        test || line.starts_with('[')
            && line.split("] ").nth(1).is_some_and(|l| l.starts_with("ok "))
    };
    text.lines().filter(|line| !dull(line) && !line.trim().is_empty()).collect()
}

/// Adds up the closing lines of the test runners in an output.
fn counted(text: &str) -> (u64, u64) {
    let closing = text.lines().filter(|l| l.trim_start().starts_with("test result:"));
    closing.fold((0, 0), |(passed, failed), line| {
        let of = |what: &str| {
            let words: Vec<&str> = line.split([' ', ';', '.']).filter(|w| !w.is_empty()).collect();
            words.windows(2).find(|w| w[1] == what).and_then(|w| w[0].parse().ok()).unwrap_or(0)
        };
        (passed + of("passed"), failed + of("failed"))
    })
}

impl Outcome {
    /// Prints one line about it, and the end of its log when it failed.
    pub(crate) fn print(self) -> Self {
        let mark = if self.ok { "ok    " } else { "FAILED" };
        let count = match (self.passed, self.failed) {
            (0, 0) => String::new(),
            (p, 0) => format!("{p} passed"),
            (p, f) => format!("{p} passed, {f} failed"),
        };
        println!("{mark} {:<28} {:>7.1} s  {count}", self.name, self.took.as_secs_f64());
        if !self.ok {
            let text = fs::read(&self.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines = worth_reading(&text);
            for line in &lines[lines.len().saturating_sub(80)..] {
                println!("    | {line}");
            }
            println!("    the whole output: {}", self.log.display());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let text = "x\ntest result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; finished\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored\n";
        assert_eq!(counted(text), (15, 2));
        assert_eq!(counted("nothing"), (0, 0));
    }

    #[test]
    fn what_failed_is_named_and_what_went_well_is_left_out() {
        let text = "running 3 tests\ntest a::b ... ok\ntest c::d      ... FAILED\n\nit broke\n\
                    test e ... ok\ntest result: FAILED. 2 passed; 1 failed\n";
        assert_eq!(red(text), ["c::d"]);
        let left = worth_reading(text);
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.contains(&"it broke") && !left.contains(&"test e ... ok"));
    }

    #[test]
    fn so_are_the_runs_of_the_lab() {
        let text = "[1/3] ok         redis  pause  1.2 s\n[2/3] UNEXPECTED etcd  pause  1.0 s\n\
                    unexpected: pause at etcd (round 0, seed 5): it broke\nlab: 3 stories";
        assert_eq!(red(text), ["pause at etcd (round 0, seed 5): it broke"]);
        assert_eq!(worth_reading(text).len(), 3);
    }
}
