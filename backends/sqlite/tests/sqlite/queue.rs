//! A long queue has rows of its own: a move writes those of the waiters it changes.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::Ask;
use distlock_core::info::Query;
use distlock_core::lease::{Class, LeaseStore, Move};
use distlock_core::state::Reply;
use distlock_core::{Clock, Owner};
use distlock_sqlite::{Sqlite, SqliteOptions};

use crate::kit::{Dir, Moves, Named, TTL, as_layout, ask, give, lock, open, run, take};

pub(crate) const TRIALS: &[Named] = &[
    ("a_hand_over_does_not_rewrite_two_thousand_waiters", hand_over),
    ("waiters_of_the_second_layout_keep_their_places", migrated),
    ("a_process_of_an_older_build_fails_after_the_migration", older),
    ("a_row_that_was_deleted_takes_its_queue_along", deleted),
];

fn waiters(dir: &Dir) -> i64 {
    dir.raw().query_row("SELECT count(*) FROM waiters", [], |r| r.get(0)).unwrap()
}

/// Joins with so many requests, in a few transactions.
async fn crowd(store: &Sqlite, n: usize) -> Vec<Ask> {
    let asks: Vec<Ask> = (0..n).map(|_| Ask { owner: Owner::new(), ..ask("x") }).collect();
    let joins = asks.iter().map(|ask| Move::Acquire(Arc::new(ask.clone()), Some(TTL)));
    let replies = store.play(Class::Caller, joins.collect()).await;
    assert!(replies.iter().all(|r| matches!(r, Ok(Reply::Waiting { .. }))));
    asks
}

fn hand_over() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let (a, b) = (open(&dir, &clock).await, open(&dir, &clock).await);
        let first = ask("x");
        take(&a, &first).await;
        let asks = crowd(&a, 2_000).await;
        assert_eq!(waiters(&dir), 2_000);
        let log = || std::fs::metadata(dir.path().join("locks.db-wal")).unwrap().len();
        // The other process reads the whole queue at its first move, and by difference from then on.
        give(&b, &first.key()).await;
        let before = log();
        let mut stores = [&a, &b].into_iter().cycle();
        for (holder, left) in asks.iter().take(20).zip((1_980..2_000).rev()) {
            let store = stores.next().unwrap();
            let Reply::Granted { waiters: n, .. } = store.acquire(holder, Some(TTL)).await.unwrap()
            else {
                panic!("a promoted waiter confirms")
            };
            assert_eq!(n, left);
            give(store, &holder.key()).await;
        }
        let wrote = log() - before;
        eprintln!("20 hand-overs wrote {wrote} bytes");
        // 40 commits of a few pages each; the queue alone is half a megabyte.
        assert!(wrote < 40 * 8 * 4096, "20 hand-overs wrote {wrote} bytes");
    });
}

fn migrated() {
    let dir = Dir::new();
    run(async {
        let held = ask("x");
        // It stays open: its waiters can be told.
        let before = open(&dir, &Clock::system()).await;
        take(&before, &held).await;
        let asks = crowd(&before, 40).await;
        // As the second layout had it: the queue in the state.
        let raw = dir.raw();
        let sql = "SELECT json_set(state, '$.queue', json((SELECT json_group_array(json_object(
                   'claim', json(claim), 'since', since, 'deadline', deadline)) FROM waiters)))
                   FROM locks";
        let state: String = raw.query_row(sql, [], |r| r.get(0)).unwrap();
        raw.execute("UPDATE locks SET state = ?1", [state]).unwrap();
        raw.execute_batch("ALTER TABLE tombstones RENAME TO spent").unwrap();
        as_layout(&raw, 2);
        drop(raw);
        let looking = SqliteOptions { look_only: true, ..Default::default() };
        let look = Sqlite::open(dir.db(), looking).await.unwrap();
        let seen = look.inspect(&Query::Name(lock("x"))).await.unwrap();
        assert_eq!((seen[0].holds.len(), seen[0].waiters.len()), (1, 40), "an old layout is read");
        let store = open(&dir, &Clock::system()).await;
        // Migrated meanwhile: read as it is now.
        let seen = look.inspect(&Query::Name(lock("x"))).await.unwrap();
        assert_eq!((seen[0].holds.len(), seen[0].waiters.len()), (1, 40), "the new layout is read");
        drop(look);
        give(&store, &held.key()).await;
        assert_eq!(waiters(&dir), 39, "the head was promoted, the others have rows");
        // And back into the state, when few are left.
        for (next, left) in asks.iter().zip((0..40).rev()) {
            let reply = store.acquire(next, Some(TTL)).await.unwrap();
            assert!(matches!(reply, Reply::Granted { .. }), "{reply:?}");
            assert_eq!(waiters(&dir), if left < 16 { 0 } else { left });
            give(&store, &next.key()).await;
        }
    });
}

fn older() {
    let dir = Dir::new();
    run(async {
        let held = ask("x");
        take(&open(&dir, &Clock::system()).await, &held).await;
        as_layout(&dir.raw(), 2);
        dir.raw().execute_batch("ALTER TABLE tombstones RENAME TO spent").unwrap();
        let old = dir.raw();
        let sql = "SELECT state FROM lock WHERE name = 'x'";
        let mut read = old.prepare(sql).unwrap();
        assert!(read.query_row([], |r| r.get::<_, String>(0)).is_ok());
        open(&dir, &Clock::system()).await;
        let e = read.query_row([], |r| r.get::<_, String>(0)).unwrap_err();
        assert!(e.to_string().contains("no such table"), "{e}");
    });
}

fn deleted() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = open(&dir, &clock).await;
        take(&store, &ask("x")).await;
        crowd(&store, 40).await;
        dir.raw().execute("DELETE FROM locks", []).unwrap();
        assert_eq!(waiters(&dir), 0);
        clock.advance(Duration::from_millis(1));
        take(&store, &ask("x")).await;
        crowd(&store, 40).await;
        assert_eq!(waiters(&dir), 40);
    });
}
