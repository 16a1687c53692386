//! Waking: told, not polled; the dead are passed over at once.

use std::fs;
use std::time::Duration;

use distlock_core::backend::{Event, Force, Forced};
use distlock_core::info::Query;
use distlock_core::lease::{LeaseStore, Wake};
use distlock_core::state::Reply;
use distlock_core::{Clock, LossReason};
use distlock_sqlite::{Sqlite, SqliteOptions};
use distlock_testkit::Stopwatch;
use distlock_testkit::fellow::Fellow;

use crate::kit::{
    Dir, Moves, Named, SOON, TTL, ask, cycle, give, join, lock, open, run, sink, take,
};

pub(crate) const TRIALS: &[Named] = &[
    ("the_next_in_line_is_told_in_the_same_process", local),
    ("the_next_in_line_is_told_in_another_process", remote),
    ("dead_waiters_are_skipped_at_once", dead),
    ("a_holder_hears_of_waiters_and_of_its_end", events),
    ("a_path_longer_than_a_socket_allows_works", long_path),
    ("sockets_of_dead_sessions_are_cleaned_up", cleaned),
];

fn local() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::held()).await;
        let wakes = sink(&store);
        let (a, b, c) = (ask("x"), ask("x"), ask("x"));
        take(&store, &a).await;
        join(&store, &b).await;
        join(&store, &c).await;
        give(&store, &a.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Event(Event::Contended(a.key()))));
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(b.req)));
        take(&store, &b).await;
        give(&store, &b.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(c.req)));
    });
}

fn remote() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        let held = ask("queue");
        take(&store, &held).await;
        let mut child = Fellow::start("wait", dir.db());
        assert_eq!(child.line(), "waiting");
        give(&store, &held.key()).await;
        assert!(child.line().starts_with("Turn("));
    });
}

fn dead() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        let wakes = sink(&store);
        let mut held = ask("queue");
        held.ttl = Duration::from_secs(3600);
        take(&store, &held).await;
        let mut children: Vec<_> = (0..2).map(|_| Fellow::start("wait", dir.db())).collect();
        for child in &mut children {
            assert_eq!(child.line(), "waiting");
        }
        let alive = ask("queue");
        let answer = store.acquire(&alive, Some(held.ttl)).await.unwrap();
        assert!(matches!(answer, Reply::Waiting { ahead: 6, .. }), "{answer:?}");
        children.iter_mut().for_each(Fellow::kill);
        let watch = Stopwatch::start();
        give(&store, &held.key()).await;
        loop {
            match wakes.recv_timeout(SOON).expect("the live waiter is told") {
                Wake::Turn(req) => break assert_eq!(req, alive.req),
                other => assert_eq!(other, Wake::Event(Event::Contended(held.key()))),
            }
        }
        take(&store, &alive).await;
        // A claim left to the dead would have cost a second each.
        let took = watch.took();
        assert!(took < Duration::from_secs(1), "{took:?} for six dead waiters");
        let seen = store.inspect(&Query::Name(lock("queue"))).await.unwrap();
        assert!(seen[0].waiters.is_empty(), "the dead stand in no line");
    });
}

fn events() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::system();
        let (a, b) = (open(&dir, &clock).await, open(&dir, &clock).await);
        let wakes = sink(&a);
        let held = ask("x");
        take(&a, &held).await;
        join(&b, &ask("x")).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Event(Event::Contended(held.key()))));
        assert_eq!(b.force(&lock("x"), None, Force::Revoke).await.unwrap(), Forced::Done);
        let lost = Event::Lost(held.key(), LossReason::Revoked);
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Event(lost)));
        assert_eq!(b.force(&lock("y"), None, Force::Revoke).await.unwrap(), Forced::NoMatch);
    });
}

fn long_path() {
    let dir = Dir::new();
    let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
    let db = deep.join(format!("{}.db", "f".repeat(100)));
    run(async {
        let options = SqliteOptions::default();
        let a = Sqlite::open(&db, options.clone()).await.unwrap();
        let b = Sqlite::open(&db, options).await.unwrap();
        let wakes = sink(&b);
        let (first, second) = (ask("x"), ask("x"));
        take(&a, &first).await;
        join(&b, &second).await;
        give(&a, &first.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(second.req)));
    });
}

fn cleaned() {
    let dir = Dir::new();
    let sockets = || fs::read_dir(dir.path().join("locks.db.distlock")).unwrap().count();
    let mut child = Fellow::start("grants", dir.db());
    assert!(!child.line().is_empty());
    child.kill();
    assert_eq!(sockets(), 1);
    run(async {
        let store = open(&dir, &Clock::system()).await;
        assert_eq!(sockets(), 1);
        let other = open(&dir, &Clock::system()).await;
        assert_eq!(sockets(), 2);
        // The live one was left alone: it still hears.
        let wakes = sink(&store);
        let (first, second) = (ask("x"), ask("x"));
        take(&other, &first).await;
        assert!(matches!(store.acquire(&second, Some(TTL)).await.unwrap(), Reply::Waiting { .. }));
        give(&other, &first.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(second.req)));
        cycle(&other, "y").await;
    });
}
