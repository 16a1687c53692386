//! After a restart that may have lost locks nothing is granted until they have all run out.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_core::{Clock, Guard, Kind, Locks};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Redis, Server};
use futures_util::future::join_all;

use crate::errors::refused;
use crate::forgetful::Forgetful;
use crate::kit::{
    Named, busy, client, client_at, connect, give_back, keys, line_of, ms, run, said, soon,
    take_for, task, until,
};
use crate::rewriting::run_id_of;

pub(crate) const TRIALS: &[Named] = &[
    ("a_volatile_restart_grants_nothing_while_an_old_holder_may_believe", volatile),
    ("the_plain_recipe_keeps_the_quarantine_too", volatile_plain),
    ("a_durable_restart_keeps_holders_and_grants_at_once", durable),
    ("an_old_server_costs_nothing", old),
    ("with_the_quarantine_off_there_are_two_holders_and_the_fence_tells_them_apart", off),
    ("clients_that_disagree_about_max_ttl_are_refused", disagree),
    ("what_survives_is_renewed_and_released_during_the_quarantine", survivors),
    ("a_server_without_a_run_id_is_refused", nameless),
    ("a_restart_behind_a_constant_run_id_is_noticed", constant),
    ("a_request_under_way_while_the_server_restarts_is_not_granted", under_way),
    ("a_plain_request_under_way_while_the_server_restarts_is_not_granted", under_way_plain),
];

/// What has to be seen before the quarantine is over is seen, however busy the machine is.
const Q: &str = "max_ttl=8s&timeout=1s";
const TTL: Duration = ms(8000);

/// A client that has waited out the quarantine of a server that has just started.
async fn ready(server: &Server, query: &str) -> Locks {
    let locks = client(server, query).await;
    give_back(soon("the first grant", locks.lock("first").ttl(TTL).acquire()).await.unwrap()).await;
    locks
}

/// A holder that hears nothing from now on, so that it believes as long as it may.
async fn cut_off(server: &Server, query: &str) -> (Proxy, Guard) {
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let locks = client_at(proxy.addr(), query).await;
    let guard = soon("a grant", locks.lock("a").ttl(TTL).acquire()).await.unwrap();
    proxy.cut_both();
    (proxy, guard)
}

fn volatile() {
    run(volatile_with(Q));
}

fn volatile_plain() {
    run(volatile_with(&format!("{Q}&algorithm=plain")));
}

async fn volatile_with(query: &str) {
    let server = Redis::new().start().await.unwrap();
    let before = ready(&server, query).await;
    let (_proxy, holder) = cut_off(&server, query).await;
    server.kill();
    server.again().await.unwrap();
    let left = keys(&server).await;
    assert!(left.iter().all(|(k, _)| k == "dl:epoch"), "it has forgotten the lock: {left:?}");

    // Who asks without waiting is told, by an old client and by a new one.
    let after = client(&server, query).await;
    for locks in [&before, &after] {
        until("the client is connected again", async || {
            locks.lock("a").ttl(TTL).try_acquire().await.is_ok()
        })
        .await;
        let told = busy(locks, "a").await;
        let note = told.status.note.as_deref().unwrap_or_default();
        assert!(note.contains("started") && note.contains("granting in"), "{told}");
        assert!(told.to_string().contains(note), "{told}");
        assert!(told.status.left.is_some_and(|left| left <= ms(9100)), "{told}");
        // Any lock, also one that nobody had: nobody can know.
        busy(locks, "never used").await;
    }
    assert!(holder.check().is_ok(), "or this test shows nothing");

    // Who waits is told too, and enters when nobody can believe any more.
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let heard = notes.clone();
    let lock = after.lock("a").ttl(TTL).on_wait(move |s| heard.lock().unwrap().push(s.to_string()));
    let next = soon("a grant after the quarantine", lock.acquire()).await.unwrap();
    assert!(holder.check().is_err(), "two valid guards");
    assert!(next.token() > holder.token());
    let notes = notes.lock().unwrap().clone();
    assert!(notes.first().is_some_and(|n| n.contains("granting in")), "{notes:?}");
    give_back(next).await;
    // The other client counts from when it heard how long, which may be a moment later.
    for locks in [&before, &after] {
        give_back(soon("a grant to both", locks.lock("b").ttl(TTL).acquire()).await.unwrap()).await;
    }
}

fn durable() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let locks = client(&server, Q).await;
        let held = take_for(&locks, "a", TTL).await;
        server.kill();
        server.again().await.unwrap();
        let other = client(&server, Q).await;
        let told = busy(&other, "a").await;
        assert_eq!(told.status.holder.as_ref().map(|h| h.token), Some(held.token()), "{told}");
        assert!(told.status.note.is_none(), "{told}");
        give_back(take_for(&other, "b", TTL).await).await;
        Clock::system().sleep(TTL + ms(1000)).await;
        held.check().unwrap();
        let token = held.token();
        give_back(held).await;
        assert!(take_for(&other, "a", TTL).await.token() > token);
    });
}

fn old() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        until("the server is more than five seconds old", async || {
            let info = said(&server, &["INFO", "server"]).await;
            let age = info.lines().find_map(|l| l.strip_prefix("uptime_in_seconds:")?.parse().ok());
            age.is_some_and(|age: u64| age > 5)
        })
        .await;
        let locks = client(&server, "max_ttl=5s").await;
        give_back(take_for(&locks, "a", ms(5000)).await).await;
        // And a younger one for who has a longer max_ttl, from its very start.
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "max_ttl=1m").await;
        let told = busy(&locks, "a").await;
        let left = told.status.left.unwrap();
        assert!(left > ms(40_000) && left <= ms(61_000), "{told}");
    });
}

fn off() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let query = "quarantine=off&max_ttl=20s&timeout=1s";
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let locks = client_at(proxy.addr(), query).await;
        let older = take_for(&locks, "a", ms(20_000)).await;
        proxy.cut_both();
        server.kill();
        server.again().await.unwrap();
        let after = client(&server, query).await;
        let younger = take_for(&after, "a", ms(20_000)).await;
        assert!(older.check().is_ok() && younger.check().is_ok(), "the price of turning it off");
        assert!(younger.token() > older.token(), "what a resource goes by");
        use distlock_core::capability::Survives;
        assert_eq!(after.capability().restart, Survives::TwoHolders);
    });
}

fn disagree() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let addr = server.addr();
        let first = client(&server, "max_ttl=2s").await;
        for other in ["", "?max_ttl=3s", "?max_ttl=1s&algorithm=plain"] {
            let e = refused(&format!("redis://{addr}{other}")).await;
            assert_eq!(e.kind(), Kind::Refused, "{e:?}");
            assert!(e.to_string().contains("max_ttl=2") && e.hint().unwrap().contains("max_ttl"));
        }
        // Also after a restart, and a TTL above what was agreed on says so.
        server.restart().await.unwrap();
        refused(&format!("redis://{addr}")).await;
        let e = first.lock("a").ttl(ms(2001)).try_acquire().await.unwrap_err();
        assert!(e.hint().is_some(), "{e:?}");
        assert!(connect(&format!("redis://{addr}?max_ttl=2s")).await.is_ok());
    });
}

fn survivors() {
    run(async {
        // Most of the log reaches the disk, but nobody can know that all of it did.
        let server = Redis::new().everysec().start().await.unwrap();
        let locks = ready(&server, Q).await;
        let (kept, freed) =
            (take_for(&locks, "kept", TTL).await, take_for(&locks, "freed", TTL).await);
        let waiting = {
            let lock = locks.lock("freed").ttl(TTL);
            task(async move { lock.acquire().await.unwrap() })
        };
        line_of(&locks, "freed", 1).await;
        // All of it, this time.
        until("the log is written", async || {
            let info = said(&server, &["INFO", "persistence"]).await;
            ["aof_buffer_length:0", "aof_pending_bio_fsync:0"]
                .iter()
                .all(|idle| info.contains(idle))
        })
        .await;
        server.kill();
        server.again().await.unwrap();
        let other = client(&server, Q).await;
        let told = busy(&other, "new").await;
        assert!(told.status.note.is_some(), "{told}");
        let started = Clock::system().now();
        give_back(freed).await;
        assert!(busy(&other, "new").await.status.note.is_some(), "or this test shows nothing");
        let next = soon("a turn after the quarantine", waiting).await.unwrap();
        kept.check().unwrap();
        let waited = Clock::system().now().since(started);
        assert!(waited > ms(1000), "granted after {waited:?}");
        give_back(next).await;
        give_back(kept).await;
        give_back(take_for(&other, "new", TTL).await).await;
    });
}

/// Without the id of a run no restart would ever be noticed.
fn nameless() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for byte in [b' ', b'0'] {
            let at = run_id_of(server.addr(), byte).await;
            for algorithm in ["", "&algorithm=plain"] {
                let e = refused(&format!("redis://{at}?timeout=1s{algorithm}")).await;
                assert_eq!(e.kind(), Kind::Refused, "{e:?}");
                assert!(e.hint().unwrap().contains("quarantine=off"), "{e:?}");
                // Whoever says so is promised less, and let in.
                let locks = client_at(at, &format!("quarantine=off{algorithm}")).await;
                use distlock_core::capability::Survives;
                assert_eq!(locks.capability().restart, Survives::TwoHolders);
                give_back(take_for(&locks, "a", ms(2000)).await).await;
            }
        }
    });
}

/// What the log kept includes the marker, and the run id says that nothing has happened.
fn constant() {
    run(async {
        let server = Redis::new().everysec().start().await.unwrap();
        let at = run_id_of(server.addr(), b'a').await;
        let query = "max_ttl=4s&timeout=1s";
        let before = client_at(at, query).await;
        let first = soon("the first grant", before.lock("first").ttl(ms(4000)).acquire()).await;
        give_back(first.unwrap()).await;
        until("the log is written", async || {
            let info = said(&server, &["INFO", "persistence"]).await;
            ["aof_buffer_length:0", "aof_pending_bio_fsync:0"]
                .iter()
                .all(|idle| info.contains(idle))
        })
        .await;
        server.kill();
        server.again().await.unwrap();
        let after = client_at(at, query).await;
        let told = after.lock("a").ttl(ms(4000)).try_acquire().await.unwrap();
        let told = told.expect_err("granted although locks may be lost");
        assert!(told.status.note.is_some(), "{told}");
    });
}

/// Requests that were let through before the restart leave only after it: those that wait until as
/// many as may ask at once have had no answer.
fn under_way() {
    // Or none of them came through to the server that was started anew.
    run(async { assert!(under_way_with("").await > 0, "this test shows nothing") });
}

fn under_way_plain() {
    run(under_way_with("&algorithm=plain"));
}

/// How many were told of the quarantine.
async fn under_way_with(algorithm: &str) -> u32 {
    let server = Redis::new().start().await.unwrap();
    // Those that wait do so until the server is up again, and leave long before it grants.
    let query = format!("max_ttl=12s&timeout=4s{algorithm}");
    drop(ready(&server, &query).await);
    let way = Forgetful::to(server.addr()).await;
    let locks = client_at(way.addr, &query).await;
    way.forget();
    let asking = join_all((0..140).map(|n| {
        let lock = locks.lock(format!("n{n}")).ttl(TTL);
        async move { lock.try_acquire().await }
    }));
    let restarting = async {
        server.kill();
        server.again().await.unwrap();
    };
    let (answers, ()) = tokio::join!(asking, restarting);
    let mut told = 0;
    for answer in answers {
        match answer {
            Ok(Ok(guard)) => panic!("granted during the quarantine: {guard:?}"),
            Ok(Err(busy)) => told += u32::from(busy.status.note.is_some()),
            Err(e) => assert!(e.is_transient(), "{e:?}"),
        }
    }
    told
}
