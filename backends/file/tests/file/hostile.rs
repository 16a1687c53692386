//! What operators and machines do to a directory that is in use.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

use distlock_core::session::SessionStore;
use distlock_core::{Kind, Patience};
use distlock_file::FileStore;
use libtest_mimic::Trial;
use rustix::fs::{FlockOperation, flock};
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_removed_session_directory_comes_back", no_sessions),
        trial("removed_signs_of_life_cost_a_place_and_no_wait", no_life),
        trial("a_removed_directory_is_made_again_and_tokens_rise", no_dir),
        trial("a_process_stopped_alone_in_the_directory_blocks_nobody_for_ever", stopped_alone),
        trial("two_are_never_alone_after_the_layout_file_was_removed", layout_removed),
        trial("a_record_that_claims_the_last_number_is_an_error", last_number),
        trial("a_child_program_inherits_no_descriptor", inherits),
        trial("paths_are_taken_literally", literal),
        trial("without_descriptors_there_is_an_error_and_a_recovery", no_descriptors),
    ]
}

/// Another process waits for `x` and gets it when it is given back.
fn handed_over(dir: &std::path::Path, spoil: impl FnOnce()) {
    run(async {
        let store = open(dir);
        let (conn, _) = lock(&store, "x").await;
        let mut agent = Agent::new(dir);
        agent.say("lock x");
        until_in_line(dir, "x", 1);
        spoil();
        let want = ask("x", Patience::Forever);
        let waiting = async {
            let (conn, _) = with(&store, &want).await.unwrap();
            assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        };
        let giving = async {
            while in_line(dir, "x") < 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
            // Elsewhere, for ours may come first: who lost its ticket has lost its place.
            let theirs = tokio::task::spawn_blocking(move || {
                agent.token();
                agent.ask("unlock")
            });
            assert_eq!(theirs.await.unwrap(), "free");
        };
        tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(waiting, giving) })
            .await
            .expect("both had it");
    });
}

fn no_sessions() {
    let dir = tempdir().unwrap();
    handed_over(dir.path(), || std::fs::remove_dir_all(dir.path().join("sessions")).unwrap());
}

fn no_life() {
    let dir = tempdir().unwrap();
    handed_over(dir.path(), || {
        for entry in std::fs::read_dir(dir.path().join("sessions")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    });
}

fn no_dir() {
    let dir = tempdir().unwrap();
    let below = dir.path().join("locks");
    run(async {
        let store = open(&below);
        let (mut conn, first) = lock(&store, "x").await;
        std::fs::remove_dir_all(&below).unwrap();
        let alive = store.alive(&mut conn).await;
        assert!(matches!(alive, distlock_core::session::Alive::No(_)), "{alive:?}");
        drop(conn);
        let (conn, second) = lock(&store, "x").await;
        assert!(second > first);
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
    });
    let again = below.clone();
    handed_over(&below, move || drop(again));
}

fn stopped_alone() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let layout = std::fs::File::open(dir.path().join("layout")).unwrap();
        flock(&layout, FlockOperation::LockExclusive).unwrap();
        // The first grant needs a session and a ceiling.
        let start = Instant::now();
        let want = ask("x", Patience::Never);
        let got = tokio::time::timeout(Duration::from_secs(18), store.lock(&want, &|_| ())).await;
        let e = got.expect("an answer").map(|_| ()).unwrap_err();
        assert!(e.is_transient() && e.hint().is_some(), "{e}");
        assert_eq!(e.kind(), Kind::Unreachable);
        eprintln!("stopped alone: told after {:?}", start.elapsed());
        flock(&layout, FlockOperation::Unlock).unwrap();
        attempt(&store, "x").await.unwrap();
    });
}

fn layout_removed() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let layout = dir.path().join("layout");
        // Another process is alone in the directory, by a file that was removed under it: the
        // next one makes a new file, and whoever waits for the old one must move on to that.
        let old = std::fs::File::open(&layout).unwrap();
        flock(&old, FlockOperation::LockExclusive).unwrap();
        let want = ask("x", Patience::Forever);
        let mut waiting = Box::pin(store.lock(&want, &|_| ()));
        assert!(polls(1, waiting.as_mut()).await.is_none());
        let opened = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to == layout)).count()
        };
        until("the store waits to be alone", || opened() == 2);
        std::fs::remove_file(&layout).unwrap();
        std::fs::write(&layout, "1\n").unwrap();
        let new = std::fs::File::open(&layout).unwrap();
        flock(&new, FlockOperation::LockExclusive).unwrap();
        let fence = || std::fs::read_to_string(dir.path().join("fence")).unwrap();
        let before = fence();
        drop(old);
        let early = tokio::time::timeout(Duration::from_millis(500), waiting.as_mut()).await;
        assert!(early.is_err(), "granted while another was alone");
        assert_eq!(fence(), before, "written while another was alone");
        drop(new);
        tokio::time::timeout(Duration::from_secs(18), waiting).await.unwrap().unwrap();
    });
}

fn last_number() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (conn, token) = lock(&store, "x").await;
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        let path = dir.path().join("_/x.lock");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace(&format!("\"hi\":{token}"), &format!("\"hi\":{}", u64::MAX));
        assert!(text.contains(&u64::MAX.to_string()));
        std::fs::write(&path, text).unwrap();
        let want = ask("x", Patience::Never);
        let e = store.lock(&want, &|_| ()).await.map(|_| ()).unwrap_err();
        assert_ne!(e.kind(), Kind::Closed, "{e}");
        attempt(&store, "y").await.expect("the store lives on");
    });
}

fn inherits() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (_conn, _) = lock(&store, "x").await;
        let want = ask("x", Patience::Forever);
        let mut waiting = Box::pin(store.lock(&want, &|_| ()));
        assert!(polls(1, waiting.as_mut()).await.is_none());
        until_in_line(dir.path(), "x", 1);
        let out = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        let here = dir.path().to_str().unwrap();
        let mine: Vec<_> =
            out.lines().filter(|l| l.contains(here) || l.contains("socket:")).collect();
        assert!(mine.is_empty(), "{mine:?}");
    });
}

fn literal() {
    let dir = tempdir().unwrap();
    for name in [&b"a b"[..], b"a?b", b"a%20b", b"a#b", b"\xff\xfe"] {
        let below = dir.path().join(std::ffi::OsStr::from_bytes(name));
        handed_over(&below, || ());
        // By another path it is the same.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&below, &link).unwrap();
        run(async {
            let (a, b) = (open(&below), open(&link));
            let (_conn, _) = lock(&a, "x").await;
            assert!(attempt(&b, "x").await.is_err());
        });
        std::fs::remove_file(&link).unwrap();
    }
}

fn no_descriptors() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::new(dir.path());
    assert_eq!(agent.ask("exhaust"), "as it should be");
    drop(open(dir.path()));
}

/// In an agent: takes locks until there is no descriptor left, and goes on when there is.
pub async fn exhaust(store: &FileStore) -> String {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // What the library itself needs is there before.
    let (conn, _) = lock(store, "first").await;
    assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let mut held = Vec::new();
    let e = loop {
        let want = ask(&format!("n{}", held.len()), Patience::Never);
        match store.lock(&want, &|_| ()).await {
            Ok(distlock_core::session::Locked::Held { conn, .. }) => held.push(conn),
            Ok(_) => return "busy".to_owned(),
            Err(e) => break e,
        }
    };
    if !e.is_transient() || !e.hint().is_some_and(|h| h.contains("ulimit")) {
        return format!("{e:?}");
    }
    for conn in &mut held {
        let alive = store.alive(conn).await;
        if !matches!(alive, distlock_core::session::Alive::Yes { .. }) {
            return format!("{alive:?}");
        }
    }
    for conn in held {
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
    }
    let (conn, _) = lock(store, "last").await;
    assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
    "as it should be".to_owned()
}
