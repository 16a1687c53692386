//! Row locks: on connections of their own, and in a caller's transaction.

use distlock_core::Kind;
use distlock_mysql::with_row_lock;
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::the_end_is_told_at_once;
use sqlx::{Connection, Executor, MySqlConnection};

use crate::kit::{
    LONG, Named, ask, client, give_back, ms, run, soon, start, take, task, timed, until, url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_lock_in_a_transaction_ends_with_it_and_keeps_others_out", in_transaction),
    ("a_rolled_back_first_use_is_no_deadlock_for_those_who_wait", first_use),
    ("patience_for_a_row_is_kept", patience),
    ("the_end_of_the_server_is_told_at_once_and_not_at_a_renewal", told_at_once),
];

const QUERY: &str = "algorithm=row-lock";

/// A connection of somebody's own.
async fn own(server: &Server) -> MySqlConnection {
    let mut conn = MySqlConnection::connect(&url(server.addr(), "")).await.unwrap();
    conn.execute("SET SESSION innodb_lock_wait_timeout=1").await.unwrap();
    conn
}

fn in_transaction() {
    run(async {
        let server = start(Mariadb::new()).await;
        let locks = client(&server, QUERY).await;
        let mut conn = own(&server).await;
        let mut tx = conn.begin().await.unwrap();
        with_row_lock(&mut tx, "distlock_", "a").await.unwrap();
        with_row_lock(&mut tx, "distlock_", "a").await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_err());
        tx.rollback().await.unwrap();
        let held = take(&locks, "a", LONG).await;
        let mut tx = conn.begin().await.unwrap();
        let e = soon("an answer", with_row_lock(&mut tx, "distlock_", "a")).await.unwrap_err();
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        tx.rollback().await.unwrap();
        give_back(held).await;
        let mut tx = conn.begin().await.unwrap();
        with_row_lock(&mut tx, "distlock_", "a").await.unwrap();
        tx.commit().await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        let mut tx = conn.begin().await.unwrap();
        let e = with_row_lock(&mut tx, "x`", "a").await.unwrap_err();
        assert_eq!(e.kind(), Kind::Usage);
    });
}

/// The row is made in a transaction that is undone while others wait for it.
fn first_use() {
    run(async {
        let server = start(Mariadb::new()).await;
        let locks = client(&server, QUERY).await;
        for n in 0..5 {
            let name = format!("new {n}");
            let mut conn = own(&server).await;
            let mut tx = conn.begin().await.unwrap();
            with_row_lock(&mut tx, "distlock_", &name).await.unwrap();
            let mut waiting = Vec::new();
            for _ in 0..4 {
                let lock = locks.lock(&name).ttl(LONG);
                waiting.push(task(async move { give_back(lock.acquire().await.unwrap()).await }));
            }
            until("they wait", async || {
                let list = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                            WHERE INFO LIKE 'INSERT IGNORE%' OR INFO LIKE '%FOR UPDATE'";
                ask(&server, list).trim() == "4"
            })
            .await;
            tx.rollback().await.unwrap();
            for one in waiting {
                soon("its turn", one).await.unwrap();
            }
        }
    });
}

fn patience() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, QUERY).await, client(&server, QUERY).await);
        let held = take(&one, "a", LONG).await;
        let mut least = LONG;
        for _ in 0..5 {
            let (took, answer) = timed(other.lock("a").try_acquire_for(ms(100))).await;
            assert!(answer.unwrap().is_err());
            least = least.min(took);
        }
        assert!(least < ms(900), "patience of 100 ms took {least:?}");
        give_back(held).await;
    });
}

/// The next renewal would come after minutes, and one of the two has none at all.
fn told_at_once() {
    run(async {
        let server = start(Mariadb::new()).await;
        the_end_is_told_at_once(&server, &client(&server, QUERY).await).await;
    });
}
