//! The lab itself, as one calls it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use distlock::backend::Clock;
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

#[test]
fn a_run_is_gone_on_with_and_records_become_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let record = |seed: u64| dir.path().join(format!("seed-{seed}.json"));
    let file = ["--store", "file", "--story", "random", "--out", out, "--seed"];
    let call = |rest: &[&str]| {
        let done = lab(&[&file[..], rest].concat()).output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        said(&done)
    };
    call(&["6", "--rounds", "1"]);
    // What was done is not done again, and stays.
    let read =
        |seed| -> Record { serde_json::from_slice(&fs::read(record(seed)).unwrap()).unwrap() };
    let first = read(6);
    let text = call(&["6", "--rounds", "2", "--resume"]);
    assert!(text.contains("2 random rounds") && text.contains("[1/1]"), "{text}");
    let both = read(6);
    assert_eq!((both.runs.len(), &both.runs[0]), (2, &first.runs[0]));
    let page = fs::read_to_string(dir.path().join("seed-6.html")).unwrap();
    assert!(page.contains("<html") && page.contains(&both.runs[1].seed.to_string()));
    call(&["7", "--rounds", "1"]);
    // Those of two seeds together.
    let (a, b, all) = (record(6), record(7), dir.path().join("all.html"));
    let args = [a.as_path(), b.as_path(), Path::new("--html"), all.as_path()];
    let merged = lab(&["--merge"]).args(args).output().unwrap();
    assert!(merged.status.success() && said(&merged).contains("3 random rounds"), "{merged:?}");
    assert!(fs::read_to_string(&all).unwrap().contains(&both.runs[0].seed.to_string()));
    fs::write(&b, "{}").unwrap();
    let spoiled = lab(&["--merge"]).args(args).output().unwrap();
    assert!(!spoiled.status.success() && said(&spoiled).contains("no record of this lab"));
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

/// What the lab found once, told again: docs/lab.md says what each was.
#[test]
fn seeds_that_found_something_find_it_no_more() {
    for (store, seed) in
        [("postgres-advisory", "2"), ("postgres-row-lock", "1"), ("mysql-row-lock", "2")]
    {
        let done =
            lab(&["--story", "server-dies", "--store", store, "--seed", seed]).output().unwrap();
        assert!(done.status.success(), "{store}: {}", said(&done));
        assert!(said(&done).contains("2 stories"), "{store}: {}", said(&done));
    }
}

/// The rounds of the long run that were not as expected once.
#[test]
fn rounds_that_found_something_find_it_no_more() {
    for (store, round) in [("mysql", "61"), ("redlock3", "45"), ("postgres-advisory", "99")] {
        let random = ["--story", "random", "--seed", "7", "--rounds", "1", "--from", round];
        let done = lab(&random).args(["--store", store]).output().unwrap();
        assert!(done.status.success(), "{store}: {}", said(&done));
        assert!(said(&done).contains("1 random rounds"), "{store}: {}", said(&done));
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
    let dir = tempfile::tempdir().unwrap();
    let mut running = lab(&["--store", "redis", "--story", "long-work"]);
    let mut running = running.env("TMPDIR", dir.path()).spawn().unwrap();
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
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?} were left");
}
