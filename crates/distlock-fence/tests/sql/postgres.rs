//! The laws on PostgreSQL.

use distlock_fence::postgres as db;
use sqlx::postgres::{PgConnection as Connection, PgPool as Pool, Postgres as Db};

const ID: &str = "SELECT CAST(pg_backend_pid() AS bigint)";

async fn waits(pool: &Pool, id: i64) -> bool {
    let me = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = ";
    number(pool, format!("{me}{id}")).await == 1
}

include!("laws.rs");

/// A transaction that keeps to one snapshot cannot pass a fence that moved since.
async fn what_only_this_database_does(pool: Pool) {
    for (n, level) in [(1, "REPEATABLE READ"), (2, "SERIALIZABLE")] {
        let resource = format!("snapshot/{n}");
        for move_by in ["insert", "update"] {
            let mut slow = pool.begin().await.unwrap();
            run(&mut *slow, format!("SET TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
            number(&mut *slow, "SELECT COUNT(*) FROM distlock_fence").await; // the snapshot
            let mut fast = pool.begin().await.unwrap();
            db::fence(&mut fast, &resource, token(7)).await.unwrap();
            first(&mut fast, &format!("{resource}/{move_by}"), "").await;
            fast.commit().await.unwrap();
            let told = db::fence(&mut slow, &resource, token(8)).await;
            assert!(matches!(told, Err(Error::Retry(_))), "{level}, {move_by}: {told:?}");
            drop(slow);
        }
        let mut slow = pool.begin().await.unwrap();
        run(&mut *slow, format!("SET TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        number(&mut *slow, "SELECT COUNT(*) FROM distlock_once").await;
        let mut fast = pool.begin().await.unwrap();
        first(&mut fast, &format!("{resource}/once"), "").await;
        fast.commit().await.unwrap();
        let told = db::once(&mut slow, &format!("{resource}/once")).await;
        assert!(matches!(told, Err(Error::Retry(_))), "{level}: {told:?}");
    }
}
