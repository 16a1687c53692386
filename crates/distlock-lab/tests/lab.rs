//! The lab itself, as one calls it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use distlock::Clock;
use distlock_lab::record::{Expect, Kind, Record, Verdict};
use rustix::process::{Pid, Signal, kill_process};

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distlock-lab"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[test]
fn a_story_is_told_and_its_control_goes_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record.json");
    let json = file.to_str().unwrap();
    let args = ["--store", "sqlite", "--story", "pause", "--seed", "5", "--json", json];
    let done = lab(&args).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let record: Record = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let [story, control] = &record.runs[..] else { panic!("{} runs", record.runs.len()) };
    assert_eq!((story.kind, story.expect, story.verdict), EXPECTED_STORY);
    assert!(story.violations.is_empty() && story.writes.iter().any(|w| !w.accepted));
    assert_eq!((control.kind, control.expect, control.verdict), EXPECTED_CONTROL);
    assert!(control.violations.iter().any(|v| v.checker == "C5"), "{:?}", control.violations);
    assert_eq!(story.faults.len(), 1);
    // The same again with the same seed: what was done again replaces what was there.
    assert!(lab(&args).output().unwrap().status.success());
    let again: Record = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(again.runs.len(), 2);
    assert_eq!(again.runs[0].seed, story.seed);
}

const EXPECTED_STORY: (Kind, Expect, Verdict) = (Kind::Story, Expect::Clean, Verdict::AsExpected);
const EXPECTED_CONTROL: (Kind, Expect, Verdict) =
    (Kind::Control, Expect::Violates, Verdict::AsExpected);

#[test]
fn what_cannot_be_asked_for_is_said_with_what_can() {
    for (args, hint) in
        [(["--store", "nowhere"], "redlock5"), (["--story", "none"], "late-release")]
    {
        let done = lab(&args).output().unwrap();
        assert!(!done.status.success() && said(&done).contains(hint), "{}", said(&done));
    }
}

/// The processes below one, as the kernel lists them.
fn below(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut all: Vec<u32> = list.split_whitespace().filter_map(|p| p.parse().ok()).collect();
    // Children of other threads are listed with those.
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let path = task.path().join("children");
        let list = fs::read_to_string(path).unwrap_or_default();
        all.extend(list.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[tokio::test]
async fn an_interrupt_ends_servers_and_clients() {
    let clock = Clock::system();
    let mut running = lab(&["--store", "redis", "--story", "long-work"]).spawn().unwrap();
    let pid = running.id();
    // A server and three clients.
    let started = clock.timeout(Duration::from_secs(60), async {
        while below(pid).len() < 4 {
            clock.sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(started.await.is_some(), "it never started anything");
    let all = below(pid);
    let lab = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(lab, Signal::INT).unwrap();
    let status = running.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let gone = clock.timeout(Duration::from_secs(20), async {
        while all.iter().any(|p| Path::new(&format!("/proc/{p}")).exists()) {
            clock.sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(gone.await.is_some(), "something of {all:?} was left");
}

#[cfg(feature = "teeth")]
#[test]
fn a_seeded_bug_is_caught() {
    let done = lab(&["--bug", "token-starts-again", "--seed", "5"]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("1 of 1 seeded bugs caught"), "{}", said(&done));
}
