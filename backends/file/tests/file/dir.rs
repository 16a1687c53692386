use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::session::SessionStore;
use distlock_core::{Clock, Fence, Kind};
use distlock_file::{CAPABILITY, FileOptions, FileStore};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sixteen_processes_open_an_empty_directory_at_once", sixteen),
        trial("a_foreign_file_system_is_refused", foreign),
        trial("a_newer_or_unknown_layout_is_refused", newer),
        trial("what_a_reboot_takes_away_is_no_durable_fence", volatile),
        trial("files_are_for_their_user_alone", private),
        trial("a_deep_directory_still_hears_its_turn", deep),
        trial("s37_one_holder_while_files_are_removed_and_made_anew", s37),
        trial("s42_ten_thousand_one_shot_names_are_swept", s42),
    ]
}

fn sixteen() {
    let dir = tempdir().unwrap();
    let below = dir.path().join("not/there/yet");
    let mut agents: Vec<_> = (0..16).map(|_| Agent::new(&below)).collect();
    agents.iter_mut().for_each(|a| a.say("open"));
    agents.iter_mut().for_each(|a| assert_eq!(a.hear(), "opened"));
    agents.iter_mut().for_each(|a| a.say("once x"));
    let mut tokens: Vec<_> = agents.iter_mut().map(Agent::token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 16);
}

fn volatile() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = FileStore::open(dir.path().join("locks"), FileOptions::default()).unwrap();
    assert_eq!(store.info().capability.fence, Fence::Clocked);
    assert_eq!(CAPABILITY.fence, Fence::Durable);
}

fn foreign() {
    for path in ["/proc", "/sys/kernel/not-there"] {
        let e = FileStore::open(path, FileOptions::default()).err().unwrap();
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.hint().unwrap().contains("ext2/3/4"));
    }
}

fn newer() {
    let dir = tempdir().unwrap();
    drop(open(dir.path()));
    let layout = dir.path().join("layout");
    for (text, says) in [("2\n", "layout 2"), ("something else", "not a layout")] {
        std::fs::write(&layout, text).unwrap();
        let e = FileStore::open(dir.path(), FileOptions::default()).err().unwrap();
        assert_eq!(e.kind(), Kind::Layout);
        assert!(e.to_string().contains(says) && e.hint().is_some(), "{e:?}");
        assert_eq!(std::fs::read_to_string(&layout).unwrap(), text, "left as it was");
    }
}

fn private() {
    let dir = tempdir().unwrap();
    let below = dir.path().join("locks");
    run(async {
        let (a, b) = (open(&below), open(&below));
        let (_conn, _) = lock(&a, "x").await;
        let want = ask("x", distlock_core::Patience::Forever);
        let waiting = b.lock(&want, &|_| ());
        let look = async {
            until_in_line(&below, "x", 1);
            let mut left = vec![below.clone()];
            let mut seen = 0;
            while let Some(path) = left.pop() {
                let meta = std::fs::symlink_metadata(&path).unwrap();
                let mode = meta.permissions().mode() & 0o7777;
                if meta.is_dir() {
                    assert_eq!(mode, 0o700, "{}", path.display());
                    left.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                } else if meta.is_file() {
                    assert_eq!(mode, 0o600, "{}", path.display());
                }
                seen += 1;
            }
            assert!(seen >= 10);
        };
        // Biased: the look blocks this thread, so the request must have been sent before.
        tokio::select! { biased; _ = waiting => panic!("it is held"), () = look => {} }
    });
}

fn deep() {
    let dir = tempdir().unwrap();
    let below = dir.path().join("d".repeat(120));
    let clock = Clock::held();
    run(async {
        let stores = [open_at(&below, &clock), open_at(&below, &clock), open_at(&below, &clock)];
        let (conn, _) = lock(&stores[0], "x").await;
        let two = async {
            let (conn, _) = lock(&stores[1], "x").await;
            assert_eq!(stores[1].unlock(conn).await.unwrap(), RELEASED);
        };
        let three = async {
            until_in_line(&below, "x", 1);
            clock.advance(Duration::from_micros(1));
            let (conn, _) = lock(&stores[2], "x").await;
            assert_eq!(stores[2].unlock(conn).await.unwrap(), RELEASED);
        };
        let one = async {
            while in_line(&below, "x") < 2 {
                tokio::task::yield_now().await;
            }
            assert_eq!(stores[0].unlock(conn).await.unwrap(), RELEASED);
        };
        tokio::join!(two, three, one);
    });
}

fn s37() {
    // In memory, since every removal syncs the fence first and there shall be many.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = FileOptions { retention: Duration::ZERO, ..Default::default() };
    let open = || FileStore::open(dir.path(), options.clone()).unwrap();
    let (inside, swept, over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let rounds = AtomicU32::new(0);
    let worker = &|i: u32| {
        run(async {
            let store = open();
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                // Most try and some wait: both ways to the lock meet the sweep.
                let n = rounds.fetch_add(1, Ordering::Relaxed);
                let wait = (n + i).is_multiple_of(16);
                let got =
                    if wait { Ok(lock(&store, "x").await) } else { attempt(&store, "x").await };
                let Ok((conn, token)) = got else { continue };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                assert!(token > last);
                last = token;
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
            }
        });
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..3).map(|i| s.spawn(move || worker(i))).collect();
        run(async {
            let store = open();
            let start = std::time::Instant::now();
            while swept.load(Ordering::Relaxed) < 300 && workers.iter().all(|w| !w.is_finished()) {
                let n = store.sweep(4).await.unwrap();
                swept.fetch_add(u32::try_from(n).unwrap(), Ordering::Relaxed);
                if start.elapsed() > Duration::from_secs(20) {
                    break;
                }
            }
        });
        over.store(true, Ordering::Relaxed);
        let ends: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        assert!(ends.iter().all(Result::is_ok));
    });
    let (swept, rounds) = (swept.into_inner(), rounds.into_inner());
    eprintln!("s37: the file was removed {swept} times under {rounds} rounds");
    assert!(swept > 50, "{swept} of {rounds}");
}

fn s42() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    let files = || std::fs::read_dir(dir.path().join("_")).unwrap().count();
    run(async {
        let store = open_at(dir.path(), &clock);
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        for i in 0..10_000 {
            let (conn, _) = attempt(&store, &format!("job/{i}")).await.unwrap();
            assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        }
        assert_eq!(files(), 10_000);
        assert!(threads() <= before + 4, "no thread a name");
        clock.advance(Duration::from_secs(2 * 3600));
        // Nobody asks for it: the next thousand names pay for the last ten thousand.
        for i in 0..1000 {
            let (conn, _) = attempt(&store, &format!("later/{i}")).await.unwrap();
            assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        }
        let left = files();
        eprintln!("s42: {left} files left");
        assert!(left < 1500, "{left} files left");
    });
}
