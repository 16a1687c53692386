//! Rows that are removed, at any moment and beside anybody else, and what that costs.

use std::time::Duration;

use distlock_core::{LockState, Mode, Op, Reply};

use super::scene::{START, Scene};
use super::{claim, name};
use crate::sql::run;
use crate::sweep::{Pace, alone, forget, look, sweep, sweep_lock, sweep_rows};

const HOUR: Duration = Duration::from_secs(3600);
/// An hour and more later.
const LATER: u64 = START + 3_700_000_000;

/// A row that was swept comes back above its tokens, though the clock went back.
#[tokio::test]
async fn what_was_swept_comes_back_above_its_tokens() {
    let mut scene = Scene::new().await;
    let name = name();
    let take = |n| Op::Acquire { claim: claim(n, Mode::Exclusive), wait: None };
    let token = |replies: Vec<Reply>| match replies[..] {
        [Reply::Granted { token, .. }] => token,
        ref other => panic!("{other:?}"),
    };
    scene.at(START).await;
    let first = token(scene.play(&name, &[take(1)], "").await);
    scene.play(&name, &[Op::Release { req: claim(1, Mode::Exclusive).req }], "").await;
    let hour = Duration::from_secs(3600);
    let tables = scene.tables();
    scene.at(START + 3_000_000_000).await;
    sweep(&mut scene.conn, &tables, hour).await.unwrap();
    assert_eq!(scene.state(&name).await.hi, first.get(), "not an hour yet");
    scene.at(START + 3_700_000_000).await;
    sweep(&mut scene.conn, &tables, hour).await.unwrap();
    assert_eq!(scene.state(&name).await, LockState::default(), "gone");
    scene.at(START - 3_600_000_000).await;
    let again = token(scene.play(&name, &[take(2)], "").await);
    assert!(again > first, "{again:?} after {first:?}");
    // What is held, waited for or was used lately stays.
    scene.at(START - 3_600_000_000 + 599_000_000).await;
    sweep(&mut scene.conn, &tables, Duration::ZERO).await.unwrap();
    assert_eq!(scene.state(&name).await.holds.len(), 1);
}

/// Rows of row locks are forgotten an hour after their last use, but not one that somebody has.
#[tokio::test]
async fn row_locks_are_forgotten_unless_somebody_has_them() {
    let mut scene = Scene::new().await;
    let (tables, hour) = (scene.tables(), Duration::from_secs(3600));
    scene.at(START).await;
    let dead = claim(1, Mode::Exclusive);
    crate::row_lock::next_token(&mut scene.conn, &tables, &name(), &dead, 0, &Pace::default())
        .await
        .unwrap();
    for name in ["had", "idle", "a"] {
        let mut tx = sqlx::Connection::begin(&mut scene.conn).await.unwrap();
        crate::with_row_lock(&mut tx, "distlock_", name).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut other = scene.other().await;
    let keep = "START TRANSACTION; \
                SELECT used FROM distlock_row WHERE space = '' AND name = 'had' FOR UPDATE";
    run(&mut other, keep.to_owned()).await.unwrap();
    for (after, rows, held) in [(3_000_000_000, 3, 1), (3_700_000_000, 1, 0)] {
        scene.at(START + after).await;
        sweep_rows(&mut scene.conn, &tables, hour).await.unwrap();
        let count = "SELECT name FROM distlock_row; SELECT name FROM distlock_held";
        let given = scene.sql(count.to_owned()).await;
        assert_eq!((given[0].rows.len(), given[1].rows.len()), (rows, held), "after {after}");
    }
}

/// Two sweep at once. While the first is about to delete, the second has deleted, and somebody has
/// taken the lock anew: its row has seen as many changes as the one that was looked at.
#[tokio::test]
async fn a_late_delete_does_not_hit_a_lock_that_was_taken_anew() {
    let mut scene = Scene::new().await;
    let (name, tables) = (name(), scene.tables());
    let take = |n| Op::Acquire { claim: claim(n, Mode::Exclusive), wait: None };
    let req = |n| claim(n, Mode::Exclusive).req;
    scene.at(START).await;
    scene.one(&name, take(1), "").await;
    scene.one(&name, Op::Release { req: req(1) }, "").await;
    scene.at(LATER).await;
    let late = look(&mut scene.conn, &tables, HOUR).await.unwrap();
    assert_eq!(sweep(&mut scene.conn, &tables, HOUR).await.unwrap(), 1);
    scene.one(&name, take(2), "").await;
    scene.one(&name, Op::Renew { req: req(2), ttl: HOUR }, "").await;
    assert_eq!(forget(&mut scene.conn, &tables, &late).await.unwrap(), 0);
    let holds = scene.state(&name).await.holds;
    assert_eq!(holds.iter().map(|h| h.claim.req).collect::<Vec<_>>(), [req(2)]);
}

/// As above, with a clock that shows the same moment twice: the highest token tells them apart.
#[tokio::test]
async fn nor_when_the_clock_goes_back_to_the_moment_at_which_the_row_was_made() {
    let mut scene = Scene::new().await;
    let (name, tables) = (name(), scene.tables());
    let take = |n| Op::Acquire { claim: claim(n, Mode::Exclusive), wait: None };
    let req = |n| claim(n, Mode::Exclusive).req;
    scene.at(START).await;
    scene.one(&name, take(1), "").await;
    scene.one(&name, Op::Release { req: req(1) }, "").await;
    scene.at(LATER).await;
    let late = look(&mut scene.conn, &tables, HOUR).await.unwrap();
    assert_eq!(sweep(&mut scene.conn, &tables, HOUR).await.unwrap(), 1);
    scene.at(START).await;
    scene.one(&name, take(2), "").await;
    scene.one(&name, Op::Renew { req: req(2), ttl: HOUR }, "").await;
    assert_eq!(forget(&mut scene.conn, &tables, &late).await.unwrap(), 0);
    assert_eq!(scene.state(&name).await.holds.len(), 1);
}

/// A step reads a few rows, not the table.
#[tokio::test]
async fn a_step_costs_the_same_whatever_the_number_of_rows() {
    let mut scene = Scene::new().await;
    let tables = scene.tables();
    scene.at(START).await;
    // 4,096 locks in use, 4,096 news, and 4,096 rows of row locks.
    let used = START * 2;
    let digits = "(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 \
                  UNION SELECT 5 UNION SELECT 6 UNION SELECT 7)";
    let all = format!("{digits} a, {digits} b, {digits} c, {digits} d");
    let number = "((a.n * 8 + b.n) * 8 + c.n) * 8 + d.n";
    let (lock, news, row) = (&tables.lock, &tables.news, &tables.row);
    scene
        .sql(format!(
            "INSERT INTO {lock} (space, name, hi) SELECT '', {number}, {used} FROM {all}; \
             INSERT INTO {news} (session, kind, space, name, req, at) \
             SELECT {number}, 1, '', 'x', REPEAT('x', 16), {used} FROM {all}; \
             INSERT INTO {row} (space, name, used) SELECT '', {number}, {used} FROM {all}"
        ))
        .await;
    for _ in 0..3 {
        let before = scene.rows_read().await;
        sweep(&mut scene.conn, &tables, HOUR).await.unwrap();
        sweep_rows(&mut scene.conn, &tables, HOUR).await.unwrap();
        let read = scene.rows_read().await - before;
        assert!(read < 1500, "{read} rows were read to look at 256");
    }
}

/// While another process is at it there is nothing to do; afterwards the name is free again.
#[tokio::test]
async fn one_process_sweeps_at_a_time() {
    let mut scene = Scene::new().await;
    let (name, tables) = (name(), scene.tables());
    let mut other = scene.other().await;
    let sweep_lock = sweep_lock(&tables);
    scene.at(START).await;
    scene.one(&name, Op::Cancel { req: claim(1, Mode::Exclusive).req }, "").await;
    scene.at(LATER).await;
    run(&mut other, format!("DO GET_LOCK({sweep_lock}, 0)")).await.unwrap();
    assert_eq!(alone(&mut scene.conn, &tables, true).await.unwrap(), 0);
    run(&mut other, format!("DO RELEASE_LOCK({sweep_lock})")).await.unwrap();
    assert_eq!(alone(&mut scene.conn, &tables, true).await.unwrap(), 1);
    let free = run(&mut other, format!("SELECT IS_FREE_LOCK({sweep_lock}) AS free")).await.unwrap();
    assert_eq!(crate::sql::number(&free[0].rows[0], "free").unwrap(), 1);
}
