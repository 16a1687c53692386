//! The laws on MariaDB.

use distlock_fence::mysql as db;
use sqlx::mysql::{MySql as Db, MySqlConnection as Connection, MySqlPool as Pool};

const ID: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

/// From the engine's own report: the table of transactions is a copy that is not renewed as long as
/// somebody keeps asking for it.
async fn waits(pool: &Pool, id: i64) -> bool {
    let report: (String, String, String) =
        sqlx::query_as("SHOW ENGINE INNODB STATUS").fetch_one(pool).await.unwrap();
    let me = format!("thread id {id},");
    report.2.split("---TRANSACTION").any(|tx| tx.contains(&me) && tx.contains("LOCK WAIT"))
}

include!("laws.rs");

/// Old snapshots: the fence and the effect are read as they are, not as the transaction saw them.
async fn what_only_this_database_does(pool: Pool) {
    let mut slow = pool.begin().await.unwrap();
    number(&mut *slow, "SELECT COUNT(*) FROM distlock_fence").await; // the snapshot
    number(&mut *slow, "SELECT COUNT(*) FROM distlock_once").await;
    let mut fast = pool.begin().await.unwrap();
    db::fence(&mut fast, "snapshot", token(7)).await.unwrap();
    first(&mut fast, "snapshot", "seen").await;
    fast.commit().await.unwrap();
    let Ok(Once::AlreadyDone { answer, .. }) = db::once(&mut slow, "snapshot").await else {
        panic!("it would be done twice")
    };
    assert_eq!(answer.as_deref(), Some(&b"seen"[..]));
    let late = db::fence(&mut slow, "snapshot", token(6)).await.unwrap_err();
    assert_eq!(late.stale().unwrap().highest, token(7));
    drop(slow);

    // Refused in a nested transaction: the outer one writes nothing either.
    table(&pool, "nested").await;
    let mut outer = pool.begin().await.unwrap();
    run(&mut *outer, "UPDATE nested SET n = 1").await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    let late = db::fence(&mut inner, "snapshot", token(6)).await.unwrap_err();
    assert!(late.stale().is_some());
    assert!(inner.rollback().await.is_err(), "the savepoint is gone");
    assert!(run(&mut *outer, "UPDATE nested SET n = 2").await.is_err());
    let _ = outer.commit().await;
    assert_eq!(number(&pool, "SELECT n FROM nested").await, 0);

    // Several wait for a first insert that is rolled back: each gets in or is told to run again.
    let mut one = pool.begin().await.unwrap();
    db::fence(&mut one, "undone crowd", token(1)).await.unwrap();
    let mut crowd = Vec::new();
    for n in 2..6 {
        let other = Other::starts(&pool, move |mut conn| async move {
            for _ in 0..20 {
                let mut tx = conn.begin().await.unwrap();
                match db::fence(&mut tx, "undone crowd", token(n)).await {
                    Err(Error::Retry(_)) => tx.rollback().await.unwrap(),
                    Err(Error::Stale(_)) => return,
                    told => {
                        told.unwrap();
                        return tx.commit().await.unwrap();
                    }
                }
            }
            panic!("told to run again, again and again")
        });
        let other = other.await;
        other.waits(&pool).await;
        crowd.push(other);
    }
    one.rollback().await.unwrap();
    for other in crowd {
        other.work.await.unwrap();
    }
    let highest = "SELECT token FROM distlock_fence WHERE resource = 'undone crowd'";
    assert_eq!(number(&pool, highest).await, 5);
}
