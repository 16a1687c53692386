//! Many on one file: nobody loses a lock, and the log stays small.

#![allow(clippy::disallowed_methods)] // its callers are tasks of a runtime of their own

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{Clock, Locks};
use distlock_sqlite::{Sqlite, SqliteOptions};
use distlock_testkit::fellow::Fellow;

use crate::kit::{Dir, Named, cycle, open, run};

pub(crate) const TRIALS: &[Named] =
    &[("renewals_come_through_a_crowd", crowd), ("the_log_stays_bounded", log)];

fn crowd() {
    let dir = Dir::new();
    let mut children: Vec<_> = (0..8).map(|_| Fellow::start("crowd", dir.db())).collect();
    for child in &mut children {
        let line = child.line();
        eprintln!("crowd: {line}");
        assert!(line.ends_with("lost 0 of 8"), "{line}");
    }
    let log = std::fs::metadata(dir.path().join("locks.db-wal")).unwrap().len();
    eprintln!("crowd: the log has {log} bytes");
    // Untrimmed it grows by some 20 MB a second for ten seconds.
    assert!(log < 144 << 20, "{log}");
}

/// In a child: eight locks that are kept for a while by renewal alone, beside 64 tasks that take
/// and give as fast as they can.
pub(crate) async fn hammer(path: &std::path::Path) -> String {
    let store = Sqlite::open(path, SqliteOptions::default()).await.unwrap();
    let locks = Locks::from_store(store);
    let pid = std::process::id();
    // Several renewals each, and enough of a TTL that a machine busy with other tests is no loss.
    let ttl = Duration::from_secs(8);
    let mut guards = Vec::new();
    for i in 0..8 {
        guards.push(locks.lock(format!("kept {pid} {i}")).ttl(ttl).await.unwrap());
    }
    let over = Arc::new(AtomicBool::new(false));
    let (cycles, errors) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for i in 0..64 {
        let (locks, over, cycles) = (locks.clone(), over.clone(), cycles.clone());
        let errors = errors.clone();
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let name = format!("own {pid} {i}");
                match locks.lock(name).ttl(ttl).await {
                    Ok(guard) => drop(guard.release().await),
                    Err(_) => drop(errors.fetch_add(1, Ordering::Relaxed)),
                }
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let clock = Clock::system();
    clock.sleep(ttl + Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    let lost = guards.iter().filter(|g| g.check().is_err()).count();
    for task in tasks {
        task.await.unwrap();
    }
    let (cycles, errors) = (cycles.load(Ordering::Relaxed), errors.load(Ordering::Relaxed));
    format!("{cycles} cycles, {errors} errors, lost {lost} of 8")
}

fn log() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        // A look from outside now and then, as an operator's shell would.
        for i in 0..3000 {
            cycle(&store, &format!("n{}", i % 100)).await;
            if i % 500 == 0 {
                let n: i64 =
                    dir.raw().query_row("SELECT count(*) FROM locks", [], |r| r.get(0)).unwrap();
                assert!(n <= 100);
            }
        }
    });
    let log = std::fs::metadata(dir.path().join("locks.db-wal")).unwrap().len();
    eprintln!("the log has {log} bytes");
    assert!(log < 16 << 20, "{log}");
}
