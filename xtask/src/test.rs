//! Everything, with one summary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use distlock_core::{Clock, engine};

use crate::part::{Outcome, cargo, root, run as part, scratch};
use crate::setup;

/// How many test binaries run side by side: one a core of a small machine. More would save little,
/// since most of their time they wait, and cost the tests that watch real leases their peace.
const SIDE_BY_SIDE: usize = 2;

pub(crate) fn run(filter: Option<&str>) -> Result<(), String> {
    let clock = Clock::system();
    let started = clock.now();
    setup::run()?;
    let mut done = Vec::new();
    if filter.is_none() {
        done.push(part("format", cargo(&["fmt", "--all", "--check"])).print());
        done.push(part("lints", cargo(&CLIPPY)).print());
        let mut docs = cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
        docs.env("RUSTDOCFLAGS", "-D warnings");
        done.push(part("docs", docs).print());
    }
    let build = cargo(&["test", "--workspace", "--all-features", "--no-run"]);
    done.push(part("build", build).print());
    let mut built = built()?;
    done.extend(tests(std::mem::take(&mut built.tests), filter)?);
    if filter.is_none() {
        done.push(part("the quick lab", quick_lab(&built)?).print());
        let docs = cargo(&["test", "--workspace", "--all-features", "--doc"]);
        done.push(part("doc tests", docs).print());
        for example in EXAMPLES {
            done.push(part(&format!("example {example}"), run_example(example, &built)?).print());
        }
        done.push(first_command()?.print());
    }
    summary(&done, clock.now().since(started).as_secs_f64())
}

const CLIPPY: [&str; 7] =
    ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];

/// The examples, each run on a default store of its own.
const EXAMPLES: [&str; 8] =
    ["hello", "timed_wait", "lost_lock", "nightly", "stock", "reentrant", "hand_over", "redis"];

/// An example as the build left it: to have cargo run it would build everything once more, with
/// the features of that package alone.
fn run_example(name: &str, built: &Built) -> Result<Command, String> {
    let exe = built.examples.get(name).ok_or_else(|| format!("there is no example {name}"))?;
    let mut command = Command::new(exe);
    command.current_dir(root());
    command.env("XDG_STATE_HOME", fresh(&format!("example-{name}"))?).env_remove("DISTLOCK_URL");
    Ok(command)
}

/// The README's first command does what the README says.
fn first_command() -> Result<Outcome, String> {
    let said = "only one of me at a time";
    let mut command = cargo(&["run", "--quiet", "--", "run", "hello", "--", "echo", said]);
    command.env("XDG_STATE_HOME", fresh("first-command")?).env_remove("DISTLOCK_URL");
    let mut outcome = part("the first command", command);
    let text = std::fs::read_to_string(&outcome.log).unwrap_or_default();
    outcome.ok &= text.lines().any(|line| line == said);
    Ok(outcome)
}

fn fresh(name: &str) -> Result<PathBuf, String> {
    let dir = scratch().map_err(|e| e.to_string())?.join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    Ok(dir)
}

/// What the build of all tests left.
struct Built {
    /// `(name, executable, package directory)`.
    tests: Vec<(String, PathBuf, PathBuf)>,
    examples: HashMap<String, PathBuf>,
    /// The fault lab.
    lab: Option<PathBuf>,
}

fn built() -> Result<Built, String> {
    let mut list =
        cargo(&["test", "--workspace", "--all-features", "--no-run", "--message-format", "json"]);
    let output =
        list.stderr(Stdio::null()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let mut found = Built { tests: Vec::new(), examples: HashMap::new(), lab: None };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (exe, manifest) = (message["executable"].as_str(), message["manifest_path"].as_str());
        let (Some(exe), Some(manifest)) = (exe, manifest) else { continue };
        let dir = Path::new(manifest).parent().map(Path::to_owned).unwrap_or_default();
        let package = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        if message["profile"]["test"].as_bool() == Some(true) {
            let name = if kind == "test" { format!("{package}: {target}") } else { package };
            found.tests.push((name, PathBuf::from(exe), dir));
        } else if kind == "example" {
            found.examples.insert(target, PathBuf::from(exe));
        } else if target == "distlock-lab" {
            found.lab = Some(PathBuf::from(exe));
        }
    }
    if found.tests.is_empty() {
        return Err("the build gave no test binary; see the part \"build\" above".to_owned());
    }
    Ok(found)
}

/// Every failure story where it matters most, and some random rounds a store. Always with one seed:
/// what is red today is red tomorrow.
fn quick_lab(built: &Built) -> Result<Command, String> {
    let lab = built.lab.as_ref().ok_or("the build gave no lab; see the part \"build\" above")?;
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(lab).args(["--quick", "--seed", "1", "--out"]);
    command.arg(root().join("target").join("lab")).current_dir(root());
    Ok(command)
}

/// Runs the test binaries side by side, the longest first: those with the laws in them.
fn tests(
    mut all: Vec<(String, PathBuf, PathBuf)>,
    filter: Option<&str>,
) -> Result<Vec<Outcome>, String> {
    all.sort_by_key(|(name, ..)| !name.contains(": "));
    all.reverse();
    let queue = std::sync::Arc::new(Mutex::new(all));
    let results = std::sync::Arc::new(Mutex::new(Vec::new()));
    let filter = filter.map(str::to_owned);
    let workers: Vec<_> = (0..SIDE_BY_SIDE)
        .map(|_| {
            let (queue, results, filter) = (queue.clone(), results.clone(), filter.clone());
            engine::thread("tests", move || {
                loop {
                    let Some((name, exe, dir)) = queue.lock().ok().and_then(|mut q| q.pop()) else {
                        return;
                    };
                    // Whoever started us may ignore signals (nohup, a job in the background), and what
                    // is ignored is inherited; the tests of signals need them as usual.
                    let mut command = Command::new("env");
                    command.arg("--default-signal").arg(exe).args(&filter).current_dir(dir);
                    let outcome = part(&name, command);
                    if let Ok(mut results) = results.lock() {
                        results.push(outcome.print());
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        let worker = worker.map_err(|e| format!("cannot start a thread: {e}"))?;
        worker.join().map_err(|_| "a test worker panicked".to_owned())?;
    }
    let mut results = results.lock().map_err(|_| "a test worker panicked".to_owned())?;
    Ok(std::mem::take(&mut *results))
}

/// The closing lines: what failed, and how many tests passed and failed.
fn summary(done: &[Outcome], seconds: f64) -> Result<(), String> {
    let broken: Vec<&str> = done.iter().filter(|o| !o.ok).map(|o| o.name.as_str()).collect();
    let passed: u64 = done.iter().map(|o| o.passed).sum();
    let failed: u64 = done.iter().map(|o| o.failed).sum();
    println!();
    println!("{} parts in {seconds:.0} s, from {}", done.len(), root().display());
    if !broken.is_empty() {
        println!("not ok: {}", broken.join(", "));
    }
    for outcome in done {
        for test in &outcome.red {
            println!("    {}: {test}", outcome.name);
        }
    }
    // A part that is not a test runner and failed is a failure, too.
    let others = done.iter().filter(|o| !o.ok && o.failed == 0).count() as u64;
    println!("{passed} passed, {} failed", failed + others);
    if broken.is_empty() && passed > 0 { Ok(()) } else { Err("not everything passed".to_owned()) }
}
