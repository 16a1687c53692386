//! Figures: what a cycle costs beside the commits that any lock needs, and how long a hand-over
//! between processes takes. They judge nothing; run them on a quiet machine:
//! `cargo test -p distlock-sqlite --release -- --ignored --nocapture --test-threads 1 bench`.

use std::sync::mpsc::channel;
use std::time::Duration;

use distlock_core::lease::LeaseStore;
use distlock_core::{Clock, engine};
use distlock_sqlite::{Sqlite, SqliteOptions, Sync};
use tokio::sync::oneshot;

use crate::child::Child;
use crate::kit::{Dir, Named, ask, cycle, give, run, take};

pub(crate) const TRIALS: &[Named] =
    &[("bench_solo_cycle", solo), ("bench_hand_over_between_processes", hand_over)];

const ROUNDS: usize = 1000;

fn percentiles(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    eprintln!("{what}: p50 {p50:?} p99 {p99:?}");
    p50
}

/// A cycle beside two one-row UPDATE transactions, each sent to a thread and awaited as ours are;
/// taken in turns so that both see the same machine.
fn solo() {
    for (sync, pragma) in [(Sync::Full, "FULL"), (Sync::Normal, "NORMAL")] {
        let dir = Dir::new();
        let clock = Clock::system();
        let (tx, rx) = channel::<oneshot::Sender<()>>();
        let path = dir.path().join("raw.db");
        let raw = engine::thread("raw", move || {
            let conn = rusqlite::Connection::open(path).unwrap();
            conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).unwrap();
            conn.pragma_update(None, "synchronous", pragma).unwrap();
            conn.execute_batch("CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID")
                .unwrap();
            conn.execute("INSERT INTO t VALUES ('orders', 0)", []).unwrap();
            for answer in rx {
                let run = |sql: &str| conn.prepare_cached(sql).unwrap().execute([]).unwrap();
                run("BEGIN IMMEDIATE");
                run("UPDATE t SET n = n + 1 WHERE id = 'orders'");
                run("COMMIT");
                let _ = answer.send(());
            }
        })
        .unwrap();
        run(async {
            let store = Sqlite::open(dir.db(), SqliteOptions::new().sync(sync)).await.unwrap();
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let start = clock.now();
                cycle(&store, "orders").await;
                ours.push(clock.now().since(start));
                let start = clock.now();
                for _ in 0..2 {
                    let (done, wait) = oneshot::channel();
                    tx.send(done).unwrap();
                    wait.await.unwrap();
                }
                theirs.push(clock.now().since(start));
            }
            let ours = percentiles(&format!("{pragma}: acquire + release"), ours);
            let theirs = percentiles(&format!("{pragma}: two UPDATE transactions"), theirs);
            eprintln!("{pragma}: ratio {:.2}", ours.as_secs_f64() / theirs.as_secs_f64());
            store.close().await;
        });
        drop(tx);
        raw.join().unwrap();
    }
}

/// From before the release here to the confirmed grant there.
fn hand_over() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::system();
        let store = Sqlite::open(dir.db(), SqliteOptions::new()).await.unwrap();
        let mut child = Child::start("turns", &dir.db());
        assert_eq!(child.line(), "ready");
        let mut times = Vec::new();
        for _ in 0..300 {
            let held = ask("turns");
            // The child's last release may still be under way.
            while !matches!(
                store.acquire(&held, None).await.unwrap(),
                distlock_core::lease::Answer::Granted { .. }
            ) {}
            take(&store, &held).await;
            child.tell("join");
            assert_eq!(child.line(), "waiting");
            let start = clock.now();
            give(&store, &held.key()).await;
            let there: u64 = child.line().parse().unwrap();
            times.push(Duration::from_nanos(there - start.as_nanos()));
        }
        percentiles("hand-over between two processes", times);
        child.tell("end");
    });
}
