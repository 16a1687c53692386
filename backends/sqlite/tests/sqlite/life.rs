//! Leases and time: the end of a boot, steps of the wall, what dropped callers leave.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_core::backend::Due;
use distlock_core::info::Query;
use distlock_core::lease::LeaseStore;
use distlock_core::state::Reply;
use distlock_core::{Clock, engine};
use distlock_sqlite::{Sqlite, SqliteOptions};

use crate::kit::{Dir, Moves, Named, TTL, ask, cycle, give, is_busy, join, lock, open, run, take};

pub(crate) const TRIALS: &[Named] = &[
    ("another_boot_ends_leases_and_keeps_tokens_rising", reboot),
    ("a_wall_step_moves_no_lease", wall),
    ("a_lease_outlives_its_process_and_ends_with_its_ttl", outlives),
    ("a_dropped_caller_does_not_stop_its_job", dropped),
    ("two_handles_in_one_process_exclude_each_other", two_handles),
    ("many_callers_share_a_commit", shared_commit),
    ("the_library_thread_has_a_connection_of_its_own", background),
];

async fn boot(dir: &Dir, clock: &Clock, id: &str) -> Sqlite {
    let options =
        SqliteOptions { clock: clock.clone(), boot_id: Some(id.into()), ..Default::default() };
    Sqlite::open(dir.db(), options).await.unwrap()
}

fn reboot() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = boot(&dir, &clock, "first").await;
        let held = ask("x");
        let token = take(&store, &held).await;
        join(&store, &ask("x")).await;
        // The wall falls far back with the reboot: only what is stored keeps the token rising.
        let clock = Clock::held();
        clock.step_wall(-1_000_000);
        let after = boot(&dir, &clock, "second").await;
        assert!(after.inspect(&Query::Name(lock("x"))).await.unwrap().is_empty());
        let renewed = after.renew(&[Due { key: held.key(), ttl: TTL }]).await;
        assert!(matches!(renewed[0], Ok(Reply::Lost(_))));
        assert!(cycle(&after, "x").await > token);
        // Found in the middle of work, too.
        let held = ask("x");
        let token = take(&after, &held).await;
        dir.raw().execute("UPDATE meta SET boot = 'third'", []).unwrap();
        assert!(after.inspect(&Query::Name(lock("x"))).await.unwrap().is_empty());
        assert!(cycle(&after, "x").await > token);
    });
}

fn wall() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = open(&dir, &clock).await;
        let held = ask("x");
        let first = take(&store, &held).await;
        for seconds in [86_400, -2 * 86_400, 400_000_000, -800_000_000] {
            clock.step_wall(seconds);
            assert!(is_busy(&store, "x").await);
        }
        clock.advance(TTL - Duration::from_micros(1));
        assert!(is_busy(&store, "x").await);
        clock.advance(Duration::from_micros(1));
        assert!(cycle(&store, "x").await > first);
    });
}

fn outlives() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let held = ask("x");
        let token = {
            let store = open(&dir, &clock).await;
            let token = take(&store, &held).await;
            store.close().await;
            token
        };
        let store = open(&dir, &clock).await;
        assert!(is_busy(&store, "x").await);
        // Whoever has the request id goes on with the very hold.
        assert_eq!(take(&store, &held).await, token);
        clock.advance(TTL);
        assert!(!is_busy(&store, "x").await);
    });
}

fn dropped() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        let gone = ask("x");
        {
            // Polled once: the job is sent, the caller leaves.
            let mut call = pin!(store.acquire(&gone, None));
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
        }
        assert!(is_busy(&store, "x").await);
        store.cancel(&gone.key()).await.unwrap();
        assert!(!is_busy(&store, "x").await);
    });
}

fn two_handles() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::system();
        let (a, b) = (open(&dir, &clock).await, open(&dir, &clock).await);
        let held = ask("x");
        let token = take(&a, &held).await;
        assert!(is_busy(&b, "x").await);
        // Dropping one must not free what SQLite has locked for the other.
        drop(b);
        let c = open(&dir, &clock).await;
        assert!(is_busy(&c, "x").await);
        give(&a, &held.key()).await;
        assert!(cycle(&c, "x").await > token);
    });
}

fn shared_commit() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        cycle(&store, "warm").await;
        let raw = dir.raw();
        // While another has the write lock, calls queue up; then one commit serves them all.
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        let before = commits(&dir);
        let asks: Vec<_> = (0..100).map(|i| ask(&format!("n{i}"))).collect();
        let mut calls: Vec<_> = asks.iter().map(|a| Box::pin(store.acquire(a, None))).collect();
        for call in &mut calls {
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
        }
        raw.execute_batch("COMMIT").unwrap();
        for call in calls {
            assert!(matches!(call.await.unwrap(), distlock_core::state::Reply::Granted { .. }));
        }
        let commits = commits(&dir) - before;
        assert!(commits <= 3, "{commits} commits for 100 calls");
    });
}

/// How many commits the write-ahead log has: frames whose header says "end of a transaction".
fn commits(dir: &Dir) -> usize {
    let wal = std::fs::read(dir.path().join("locks.db-wal")).unwrap();
    let frames = wal[32..].chunks(24 + 4096);
    frames.filter(|f| f.len() > 8 && f[4..8] != [0; 4]).count()
}

fn background() {
    let dir = Dir::new();
    run(async {
        let store = std::sync::Arc::new(open(&dir, &Clock::system()).await);
        let held = ask("x");
        take(&store, &held).await;
        let (tx, rx) = tokio::sync::oneshot::channel();
        let (other, due) = (store.clone(), Due { key: held.key(), ttl: TTL });
        engine::spawn(async move {
            let _ = tx.send(other.renew(&[due]).await);
        });
        assert!(matches!(rx.await.unwrap()[0], Ok(Reply::Renewed { .. })));
        give(&store, &held.key()).await;
    });
}
