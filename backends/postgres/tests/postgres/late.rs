//! A request that arrives late, after its own repetition was granted and given back.

use std::process::Command;

use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::Postgres;
use sqlx::{Connection, Executor, PgConnection};

use crate::kit::{
    LONG, Named, client, client_at, give_back, run, soon, sql, take_for, task, until,
};

pub(crate) const TRIALS: &[Named] =
    &[("a_late_request_whose_repetition_was_released_comes_to_nothing", late)];

/// The connection breaks under a request and it is sent again on another; the server's process that
/// has the first goes on only when the second was granted, given back, and pushed out of the row's
/// memory of releases by others.
fn late() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let proxy = Proxy::to(server.addr()).await.unwrap();
        // The server would end a statement that takes too long.
        let locks = client_at(proxy.addr(), "timeout=60s").await;
        let others = client(&server, "").await;
        let mut keeps =
            PgConnection::connect(&format!("postgres://postgres@{}/postgres", server.addr()))
                .await
                .unwrap();
        let keep = "BEGIN; LOCK TABLE distlock.lock IN ACCESS EXCLUSIVE MODE";
        sqlx::raw_sql(keep).execute(&mut keeps).await.unwrap();
        let lock = locks.lock("a").ttl(LONG);
        let asking = task(async move { lock.try_acquire().await });
        let waiting = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity \
            WHERE wait_event_type = 'Lock' AND query LIKE '%.acquire(%'";
        let pid = until_some(&server, waiting, 1).await;
        signal("-STOP", &pid);
        proxy.reset();
        until_some(&server, waiting, 2).await;
        keeps.execute("COMMIT").await.unwrap();
        let held = soon("a grant", asking).await.unwrap().unwrap().unwrap();
        give_back(held).await;
        for _ in 0..8 {
            give_back(take_for(&others, "a", LONG).await).await;
        }
        signal("-CONT", &pid);
        let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        until("it has ended", async || sql(&server, &gone).await == "0").await;
        let shown = others.show("a").await.unwrap();
        assert!(shown.is_none(), "a ghost holds the lock: {shown:?}");
    });
}

/// Waits until a query gives so many words.
async fn until_some(server: &distlock_testkit::servers::Server, query: &str, n: usize) -> String {
    let mut seen = String::new();
    until("it waits at the server", async || {
        seen = sql(server, query).await;
        seen.split_whitespace().count() == n
    })
    .await;
    seen
}

fn signal(which: &str, pid: &str) {
    assert!(Command::new("kill").args([which, pid]).status().unwrap().success());
}
