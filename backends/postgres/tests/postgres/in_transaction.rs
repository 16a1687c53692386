//! `with_row_lock`: a lock in the caller's own transaction.

use distlock_core::Kind;
use distlock_postgres::with_row_lock;
use distlock_testkit::servers::{Postgres, Server};
use sqlx::{Connection, Executor, PgConnection};

use crate::kit::{LONG, Named, client, give_back, run, soon, sql, take_for, task, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_lock_in_a_transaction_is_nobody_elses_until_it_ends", exclusive),
    ("a_lock_in_a_transaction_of_another_isolation_is_refused", isolation),
    ("a_counter_under_locks_in_transactions_comes_out_right", counter),
];

async fn conn(server: &Server) -> PgConnection {
    PgConnection::connect(&format!("postgres://postgres@{}/postgres", server.addr())).await.unwrap()
}

fn exclusive() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, "algorithm=row-lock").await;
        // New and known, committed and rolled back.
        for (round, commit) in [true, false, true, false].into_iter().enumerate() {
            let name = format!("a{}", round / 2);
            let mut a = conn(&server).await;
            let mut tx = a.begin().await.unwrap();
            with_row_lock(&mut tx, "distlock", &name).await.unwrap();
            assert!(locks.lock(&name).ttl(LONG).try_acquire().await.unwrap().is_err());
            let lock = locks.lock(&name).ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            until("it waits", async || {
                sql(&server, "SELECT count(*) FROM pg_locks WHERE NOT granted").await == "1"
            })
            .await;
            if commit {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            let held = soon("its turn", waiting).await.unwrap().unwrap();
            // And the other way round.
            let mut tx = a.begin().await.unwrap();
            tx.execute("SET LOCAL lock_timeout = '50ms'").await.unwrap();
            let e = with_row_lock(&mut tx, "distlock", &name).await.expect_err("it is held");
            assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
            tx.rollback().await.unwrap();
            give_back(held).await;
            let mut tx = a.begin().await.unwrap();
            with_row_lock(&mut tx, "distlock", &name).await.unwrap();
            tx.commit().await.unwrap();
        }
        give_back(take_for(&locks, "a0", LONG).await).await;
    });
}

fn isolation() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        client(&server, "algorithm=row-lock").await.close().await;
        let mut a = conn(&server).await;
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let mut tx = a.begin().await.unwrap();
            let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
            tx.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
            let e = with_row_lock(&mut tx, "distlock", "a").await.expect_err("stale reads");
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{e:?}");
        }
        let mut tx = a.begin().await.unwrap();
        for (schema, name) in [("no such", "a"), ("distlock", "")] {
            let e = with_row_lock(&mut tx, schema, name).await.expect_err("it cannot be");
            assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        }
    });
}

fn counter() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        client(&server, "algorithm=row-lock").await.close().await;
        sql(&server, "CREATE TABLE n (n int); INSERT INTO n VALUES (0)").await;
        let mut all = Vec::new();
        for _ in 0..8 {
            let mut a = conn(&server).await;
            all.push(task(async move {
                for _ in 0..20 {
                    let mut tx = a.begin().await.unwrap();
                    with_row_lock(&mut tx, "distlock", "n").await.unwrap();
                    let n: i32 =
                        sqlx::query_scalar("SELECT n FROM n").fetch_one(&mut *tx).await.unwrap();
                    let write = sqlx::query("UPDATE n SET n = $1").bind(n + 1);
                    write.execute(&mut *tx).await.unwrap();
                    tx.commit().await.unwrap();
                }
            }));
        }
        for one in all {
            soon("its end", one).await.unwrap();
        }
        assert_eq!(sql(&server, "SELECT n FROM n").await, "160");
    });
}
