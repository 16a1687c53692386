//! The fence: no token is ever told twice or out of order.

use std::time::Duration;

use distlock_core::Clock;
use distlock_core::lease::LeaseStore;
use distlock_sqlite::{Sqlite, SqliteOptions, Sync};
use distlock_testkit::fellow::Fellow;

use crate::kit::{Dir, Moves, Named, TTL, ask, cycle, is_busy, join, lock, open, run, take};

pub(crate) const TRIALS: &[Named] = &[
    ("kill_nine_in_a_stream_of_grants_takes_no_token_back", killed),
    ("the_sweep_keeps_the_token_floor", sweep),
    ("the_sweep_leaves_what_is_held_waited_for_or_young", sweep_leaves),
    ("the_sweep_keeps_up_with_one_shot_names", one_shot),
    ("a_ceiling_covers_every_token_told_without_a_sync", ceiling),
    ("reentry_and_replay_keep_the_token", replay),
];

fn killed() {
    let dir = Dir::new();
    let mut highest = 0;
    for round in 0..4 {
        let mut child = Fellow::start("grants", dir.db());
        for _ in 0..20 + 7 * round {
            let token: u64 = child.line().parse().unwrap();
            assert!(token > highest, "{token} after {highest}");
            highest = token;
        }
        child.kill();
        // What it told between our last look and its end.
        while let Ok(token) = child.line().parse::<u64>() {
            assert!(token > highest);
            highest = token;
        }
        run(async {
            let clock = Clock::held(); // its wall is behind: only the file can know
            let store = open(&dir, &clock).await;
            let ask = ask("stream");
            let _ = store.force(&lock("stream"), None, distlock_core::Force::Now).await.unwrap();
            let token = take(&store, &ask).await;
            assert!(token > highest, "{token} after {highest}");
            highest = token;
            store.cancel(&ask.key()).await.unwrap();
        });
    }
}

fn rows(dir: &Dir) -> i64 {
    dir.raw().query_row("SELECT count(*) FROM locks", [], |r| r.get(0)).unwrap()
}

fn sweep() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = open(&dir, &clock).await;
        clock.step_wall(1_000_000);
        let token = cycle(&store, "old").await;
        clock.step_wall(-2_000_000);
        clock.advance(Duration::from_secs(3601));
        cycle(&store, "new").await;
        assert_eq!(rows(&dir), 1);
        assert!(cycle(&store, "old").await > token);
        // And for whoever opens it later.
        let again = open(&dir, &clock).await;
        assert!(cycle(&again, "old").await > token);
    });
}

fn sweep_leaves() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = open(&dir, &clock).await;
        let mut held = ask("held");
        held.ttl = Duration::from_secs(7200);
        take(&store, &held).await;
        let mut waited = ask("waited");
        waited.ttl = Duration::from_secs(60);
        take(&store, &waited).await;
        let long = Duration::from_secs(7200);
        let answer = store.acquire(&ask("waited"), Some(long)).await.unwrap();
        assert!(matches!(answer, distlock_core::state::Reply::Waiting { .. }));
        let mut delayed = ask("delayed");
        delayed.lock_delay = Duration::from_secs(7200);
        take(&store, &delayed).await;
        clock.advance(Duration::from_secs(1800));
        cycle(&store, "young").await;
        clock.advance(Duration::from_secs(1801));
        cycle(&store, "other").await;
        assert_eq!(rows(&dir), 5);
        assert!(is_busy(&store, "held").await && is_busy(&store, "delayed").await);
        clock.advance(Duration::from_secs(3 * 3600));
        cycle(&store, "last").await;
        assert_eq!(rows(&dir), 1);
    });
}

/// S42: what is swept keeps up with what is added.
fn one_shot() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let options =
            SqliteOptions { clock: clock.clone(), sync: Sync::Normal, ..Default::default() };
        let store = Sqlite::open(dir.db(), options).await.unwrap();
        for round in 0..4 {
            for i in 0..300 {
                cycle(&store, &format!("job {round} {i}")).await;
            }
            clock.advance(Duration::from_secs(1801));
        }
        // Two half hours of 300 are within the retention, one more may still be under the broom.
        let rows = rows(&dir);
        assert!(rows <= 900, "{rows} rows");
    });
}

fn ceiling() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let normal = |boot: &str| SqliteOptions {
            clock: clock.clone(),
            sync: Sync::Normal,
            boot_id: Some(boot.into()),
            ..Default::default()
        };
        let store = Sqlite::open(dir.db(), normal("one")).await.unwrap();
        let mut highest = 0;
        for i in 0..40 {
            clock.advance(Duration::from_millis(700));
            // Jumps of the wall put tokens above any ceiling that time alone would raise.
            clock.step_wall([0, 0, 3600, -7200][i % 4]);
            highest = cycle(&store, "x").await.max(highest);
            let sql = "SELECT ceiling FROM meta";
            let ceiling: i64 = dir.raw().query_row(sql, [], |r| r.get(0)).unwrap();
            assert!(ceiling.unsigned_abs() >= highest, "{highest} was told above {ceiling}");
        }
        store.close().await;
        // A power cut: the last commits are gone, what was synced is there.
        dir.raw().execute("DELETE FROM locks", []).unwrap();
        clock.step_wall(-1_000_000);
        let store = Sqlite::open(dir.db(), normal("two")).await.unwrap();
        assert!(cycle(&store, "x").await > highest);
        assert!(cycle(&store, "y").await > highest);
    });
}

fn replay() {
    let dir = Dir::new();
    run(async {
        let clock = Clock::held();
        let store = open(&dir, &clock).await;
        let first = ask("x");
        let token = take(&store, &first).await;
        let mut nested = ask("x");
        nested.owner = first.owner.clone();
        assert_eq!(take(&store, &nested).await, token);
        assert_eq!(take(&store, &first).await, token);
        join(&store, &ask("x")).await;
        clock.advance(TTL);
        assert!(cycle(&store, "y").await > 0);
        assert!(take(&store, &ask("x")).await > token);
    });
}
