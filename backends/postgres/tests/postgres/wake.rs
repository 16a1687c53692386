//! The connection that listens: lost, ended by an operator, or never what it seems.

use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::Postgres;

use crate::kit::{
    LONG, Named, client, client_at, give_back, line_of, ms, run, soon, sql, take_for, task, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s35_connections_ended_by_the_server_are_made_anew_and_nothing_is_lost", terminated),
    ("s18_a_wake_up_that_is_lost_is_made_up_for", missed),
    ("who_does_not_listen_is_passed_over_and_keeps_its_place", deaf),
];

const OURS: &str = "pid <> pg_backend_pid() AND application_name = 'distlock'";

fn terminated() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, "").await;
        let held = take_for(&locks, "a", LONG).await;
        for _ in 0..5 {
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&locks, "a", 1).await;
            let end = format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OURS}"
            );
            assert!(sql(&server, &end).await.parse::<u32>().unwrap() >= 2);
            // The very next calls work, on new connections.
            assert!(held.check().is_ok());
            line_of(&locks, "a", 1).await;
            waiting.abort();
            line_of(&locks, "a", 0).await;
        }
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&locks, "a", 1).await;
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

fn missed() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (locks, look) = (client_at(proxy.addr(), "").await, client(&server, "").await);
        let held = take_for(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        // What it is told now goes nowhere.
        proxy.cut(Way::Replies);
        give_back(held).await;
        proxy.reset();
        proxy.heal();
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

fn deaf() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (locks, look) =
            (client_at(proxy.addr(), "timeout=3s").await, client(&server, "").await);
        let held = take_for(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(ms(60_000));
        let first = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        let lock = look.lock("a").ttl(LONG);
        let second = task(async move { lock.acquire().await });
        line_of(&look, "a", 2).await;
        // The first one's process loses all its connections and cannot come back for now.
        proxy.cut_both();
        let listeners = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
            WHERE {OURS} AND query LIKE '%pg_advisory_lock%' AND client_port IN \
            (SELECT client_port FROM pg_stat_activity WHERE {OURS} ORDER BY backend_start LIMIT 3)"
        );
        sql(&server, &listeners).await;
        give_back(held).await;
        let guard = soon("the second one's turn", second).await.unwrap().unwrap();
        proxy.heal();
        until("the first one is heard of again", async || {
            look.show("a").await.unwrap().is_some_and(|l| l.waiters.len() == 1)
        })
        .await;
        give_back(guard).await;
        give_back(soon("the first one's turn", first).await.unwrap().unwrap()).await;
    });
}
