//! Connections that break, fall silent or are ended: holders and waiters go on.

use std::time::Duration;

use distlock_core::{Clock, Locks};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Redis, Server, raw};
use futures_util::future::join_all;

use crate::forgetful::Forgetful;
use crate::kit::{
    Named, client, client_at, give_back, line_of, ms, ours, run, said, soon, take, take_for, task,
    until, waiter, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("holders_and_waiters_outlive_a_restart", restart),
    ("holders_and_waiters_outlive_a_kill", kill),
    ("holders_and_waiters_outlive_a_reset", reset),
    ("holders_and_waiters_outlive_a_pause", pause),
    ("holders_and_waiters_outlive_killed_connections", killed_clients),
    ("scripts_that_were_flushed_are_sent_again", flushed),
    ("a_connection_that_fell_silent_is_given_up_before_the_locks_are", silent_connection),
    ("a_crowd_at_a_silent_server_is_told_as_soon_as_one_alone", crowd),
    ("a_line_of_which_a_part_was_deleted_begins_anew", torn_line),
    ("a_blocked_executor_does_not_cost_the_connection", blocked),
    ("one_connection_carries_all_locks_and_waiters", one_connection),
    ("ten_thousand_names_leave_no_subscription", many_names),
];

/// Well below the time after which a waiter would ask by itself: a third of ten seconds.
const WOKEN: Duration = ms(2500);
const LONG: Duration = ms(30_000);
/// Is renewed in time even if a server has to start meanwhile, on a busy machine.
const SHORT: Duration = ms(6000);

/// A holder, a lock that must be renewed, and two in line, while something happens; then the line
/// moves on at once.
async fn through(locks: &Locks, server: &Server, what: &str, happens: impl AsyncFnOnce()) {
    let other = client(server, "quarantine=off").await;
    let (held, renewed) =
        (take_for(locks, "a", LONG).await, take_for(locks, "renewed", SHORT).await);
    let first = waiter(locks, "a", LONG);
    line_of(&other, "a", 1).await;
    let second = waiter(&other, "a", LONG);
    line_of(&other, "a", 2).await;
    happens().await;
    Clock::system().sleep(SHORT + ms(500)).await;
    renewed.check().unwrap_or_else(|lost| panic!("{what}: {lost}"));
    let token = held.token();
    give_back(held).await;
    let first = within(WOKEN, &format!("{what}: the first is woken"), first).await.unwrap();
    let second = within(WOKEN, &format!("{what}: the second is woken"), second).await.unwrap();
    assert!(token < first && first < second, "{what}: order and tokens");
    give_back(renewed).await;
}

fn restart() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        through(&locks, &server, "restart", async || server.restart().await.unwrap()).await;
    });
}

fn kill() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        through(&locks, &server, "kill", async || {
            server.kill();
            server.again().await.unwrap();
        })
        .await;
    });
}

fn reset() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let locks = client_at(proxy.addr(), "quarantine=off").await;
        let before = proxy.accepted();
        through(&locks, &server, "reset", async || {
            proxy.reset();
            until("it connects again", async || proxy.accepted() > before).await;
        })
        .await;
        assert_eq!(proxy.accepted(), before + 1, "once is enough");
    });
}

fn pause() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        through(&locks, &server, "pause", async || {
            server.pause();
            Clock::system().sleep(ms(600)).await;
            server.resume();
        })
        .await;
    });
}

fn killed_clients() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        for kind in ["pubsub", "normal"] {
            through(&locks, &server, kind, async || {
                let killed =
                    said(&server, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await;
                assert!(kind == "normal" || killed == "2", "{killed}");
            })
            .await;
        }
        // Killed just before the lock is freed: nobody listens then.
        let (held, other) = (take(&locks, "b").await, client(&server, "quarantine=off").await);
        let waits = waiter(&other, "b", ms(10_000));
        line_of(&locks, "b", 1).await;
        let id = ours(&server).await;
        let id = id.iter().filter_map(|l| l.split_once(' ')?.0.strip_prefix("id=")?.parse().ok());
        let id: u64 = id.max().unwrap();
        assert_eq!(said(&server, &["CLIENT", "KILL", "ID", &id.to_string()]).await, "1");
        give_back(held).await;
        within(WOKEN, "a waiter nobody could tell", waits).await.unwrap();
    });
}

/// The one connection of ours. The server may still list one that has just been closed.
async fn only(server: &Server) -> String {
    let mut lines = Vec::new();
    until("there is one connection", async || {
        lines = ours(server).await;
        lines.len() == 1
    })
    .await;
    lines[0].split(' ').next().unwrap().to_owned()
}

fn flushed() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for query in ["quarantine=off", "quarantine=off&algorithm=plain"] {
            let locks = client(&server, query).await;
            let held = take_for(&locks, "a", SHORT).await;
            let before = only(&server).await;
            for _ in 0..3 {
                said(&server, &["SCRIPT", "FLUSH"]).await;
                give_back(take(&locks, "b").await).await;
                said(&server, &["SCRIPT", "FLUSH"]).await;
                assert!(locks.show("a").await.unwrap().is_some());
            }
            Clock::system().sleep(SHORT).await;
            held.check().unwrap();
            give_back(held).await;
            assert_eq!(only(&server).await, before, "nobody connected anew");
            locks.close().await;
        }
    });
}

fn silent_connection() {
    run(async {
        join_all(["", "&algorithm=plain"].map(async |algorithm| {
            let server = Redis::new().start().await.unwrap();
            let way = Forgetful::to(server.addr()).await;
            let locks = client_at(way.addr, &format!("quarantine=off{algorithm}")).await;
            let held = take_for(&locks, "a", ms(8000)).await;
            way.forget();
            Clock::system().sleep(ms(10_000)).await;
            held.check().unwrap_or_else(|lost| panic!("the server is there: {lost}"));
            give_back(held).await;
        }))
        .await;
    });
}

/// More than ask at once over one connection: the last of them waits no longer than the first.
fn crowd() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off&timeout=1s").await;
        server.pause();
        let asks = (0..1000).map(|n| {
            let lock = locks.lock(format!("crowd-{n}"));
            task(async move { lock.try_acquire().await })
        });
        // The connection is found stuck, and no other comes about: once for all of them.
        let answers = within(ms(5000), "word for all", join_all(asks)).await;
        assert!(answers.into_iter().all(|told| told.unwrap().is_err()));
        server.resume();
    });
}

/// The answer has come, but nobody looks at it for longer than an answer may take.
fn blocked() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off&timeout=1500ms").await;
        let (before, lock) = (only(&server).await, locks.lock("a"));
        let asking = task(async move { lock.try_acquire().await });
        tokio::task::yield_now().await;
        #[allow(clippy::disallowed_methods)] // what the test is about
        std::thread::sleep(ms(4000));
        give_back(asking.await.unwrap().unwrap().unwrap()).await;
        assert_eq!(only(&server).await, before, "the connection was fine");
    });
}

/// Somebody deletes a part of the line: nobody fails, and who waits gets its turn.
fn torn_line() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        for part in ["q", "d", "w"] {
            let held = take(&locks, part).await;
            let ttl = ms(4500);
            let mut waiting: Vec<_> = (0..3).map(|_| waiter(&locks, part, ttl)).collect();
            line_of(&locks, part, 3).await;
            assert_eq!(said(&server, &["DEL", &format!("dl:{{:{part}}}:{part}")]).await, "1");
            // Through two heartbeats of those in line, and one more who joins.
            waiting.push(waiter(&locks, part, ttl));
            Clock::system().sleep(ttl).await;
            give_back(held).await;
            for turn in waiting {
                soon("a turn", turn).await.unwrap();
            }
        }
    });
}

fn one_connection() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        let names: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
        let held = join_all(names.iter().map(|name| take(&locks, name))).await;
        let waiting: Vec<_> = names.iter().map(|name| waiter(&locks, name, LONG)).collect();
        for name in &names {
            line_of(&locks, name, 1).await;
        }
        let lines = ours(&server).await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(" sub=1 "), "{lines:?}");
        join_all(held.into_iter().map(give_back)).await;
        for turn in waiting {
            within(WOKEN, "a turn", turn).await.unwrap();
        }
        assert_eq!(ours(&server).await.len(), 1);
        locks.close().await;
        until("the connection ends with the client", async || ours(&server).await.is_empty()).await;
    });
}

fn many_names() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        let busy_name = |n: usize| n.is_multiple_of(20);
        let lane = async |lane: usize| {
            for n in (lane..10_000).step_by(50) {
                let name = format!("once/{n}");
                let held = take(&locks, &name).await;
                let waits = busy_name(n).then(|| waiter(&locks, &name, LONG));
                if waits.is_some() {
                    line_of(&locks, &name, 1).await;
                }
                give_back(held).await;
                if let Some(turn) = waits {
                    soon("a turn", turn).await.unwrap();
                }
            }
        };
        join_all((0..50).map(lane)).await;
        let lines = ours(&server).await;
        assert!(lines.len() == 1 && lines[0].contains(" sub=1 psub=0 "), "{lines:?}");
        let channels = raw(server.addr(), &["PUBSUB", "CHANNELS"]).await.unwrap();
        assert_eq!(channels.list().len(), 1, "{channels}");
        // What remembers the tokens, and nothing of the lines; and what all clients agreed on.
        let keys = raw(server.addr(), &["DBSIZE"]).await.unwrap().int().unwrap();
        assert_eq!(keys, 10_000 + 1);
        assert_eq!(locks.list("").await.unwrap().len(), 0);
    });
}
