//! Tombstones: in a table of their own, so that a move does not rewrite them.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::state::Reply;
use distlock_core::{Clock, ReqId};
use distlock_sqlite::{Sqlite, SqliteOptions, Sync};

use crate::kit::{Dir, Moves, Named, as_layout, ask, cycle, lock, open, run};

pub(crate) const TRIALS: &[Named] = &[
    ("a_move_does_not_rewrite_four_thousand_tombstones", many),
    ("a_cancelled_request_stays_cancelled_after_all_others_and_a_reopening", stays),
    ("tombstones_of_the_first_layout_still_count", migrated),
];

/// Cancels so many requests that never came, as a crowd would: a few transactions for all.
async fn cancel(store: &Arc<Sqlite>, n: usize) {
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..n {
        let (store, key) = (store.clone(), ask("x").key());
        crowd.spawn(async move { store.cancel(&key).await });
    }
    while let Some(done) = crowd.join_next().await {
        done.unwrap().unwrap();
    }
}

fn number(dir: &Dir, sql: &str) -> i64 {
    dir.raw().query_row(sql, [], |r| r.get(0)).unwrap()
}

fn many() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let options =
            SqliteOptions { clock: clock.clone(), sync: Sync::Normal, ..Default::default() };
        let store = Arc::new(Sqlite::open(dir.db(), options).await.unwrap());
        cycle(&store, "x").await;
        let before = number(&dir, "SELECT length(state) FROM locks");
        cancel(&store, 4000).await;
        cycle(&store, "x").await;
        let after = number(&dir, "SELECT length(state) FROM locks");
        assert!(after < before + 1000, "a move writes {after} bytes, {before} without tombstones");
        assert_eq!(number(&dir, "SELECT count(*) FROM tombstones"), 4000);
        // Those that are over go as others come.
        clock.advance(Duration::from_secs(61));
        cancel(&store, 2500).await;
        assert_eq!(number(&dir, "SELECT count(*) FROM tombstones"), 2500);
    });
}

fn stays() {
    let dir = Dir::new();
    run(async {
        let late = ask("x");
        {
            let store = Arc::new(open(&dir, &Clock::system()).await);
            store.cancel(&late.key()).await.unwrap();
            // More than a state ever remembered.
            cancel(&store, 5000).await;
            assert!(matches!(store.acquire(&late, None).await.unwrap(), Reply::Tombstoned(_)));
        }
        let store = open(&dir, &Clock::system()).await;
        assert!(matches!(store.acquire(&late, None).await.unwrap(), Reply::Tombstoned(_)));
        cycle(&store, "x").await;
        assert!(matches!(store.acquire(&late, None).await.unwrap(), Reply::Tombstoned(_)));
    });
}

fn migrated() {
    let dir = Dir::new();
    run(async {
        let (late, later) = (ask("x"), ReqId::random());
        cycle(&open(&dir, &Clock::system()).await, "x").await;
        // As the first layout had it: in the state, and no other table.
        let spent =
            |req| format!(r#"{{"req":"{req}","end":"cancelled","until":9000000000000000}}"#);
        let state = format!(r#"{{"hi":7,"spent":[{},{}]}}"#, spent(late.req), spent(later));
        let raw = dir.raw();
        raw.execute("UPDATE locks SET state = ?1", [state]).unwrap();
        raw.execute_batch("DROP TABLE tombstones").unwrap();
        as_layout(&raw, 1);
        drop(raw);
        let looking = SqliteOptions { look_only: true, ..Default::default() };
        drop(Sqlite::open(dir.db(), looking).await.unwrap());
        assert_eq!(number(&dir, "PRAGMA user_version"), 1, "a look changes nothing");
        let store = open(&dir, &Clock::system()).await;
        assert!(matches!(store.acquire(&late, None).await.unwrap(), Reply::Tombstoned(_)));
        assert_eq!(number(&dir, "PRAGMA user_version"), 3);
        assert_eq!(number(&dir, "SELECT count(*) FROM tombstones"), 2);
        assert!(cycle(&store, "x").await > 7);
        assert_eq!(lock("x"), late.lock);
    });
}
