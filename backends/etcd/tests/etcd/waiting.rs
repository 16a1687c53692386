//! Waiting: who is woken, and what becomes of one whose lease ends.

use distlock_core::backend::Event;
use distlock_core::queue::QueueStore;
use distlock_core::{Clock, Kind, LossReason, Store};
use distlock_testkit::servers::{Server, etcd_metric, etcdctl};

use crate::kit::{
    LONG, Named, client, connect, give_back, line_of, ms, run, scene, server, soon, strict, take,
    task, timed, until,
};
use crate::steps::{hold_watched, join_new, leave, store};

pub(crate) const TRIALS: &[Named] = &[
    ("a_release_wakes_one_of_many", one_wake_up),
    ("tasks_of_one_client_hand_over_by_wake_ups", hand_over),
    ("s17_a_lease_that_ends_is_an_error_and_the_client_goes_on", lease_ends),
    ("a_holder_hears_of_its_lease_and_of_its_key", holder_hears),
    ("a_watch_whose_past_is_compacted_away_misses_nothing", compacted),
    ("a_watch_of_ones_own_is_asked_for_again_after_a_compaction", compacted_alive),
    ("a_restart_of_the_server_loses_no_wake_up", restarted),
    ("no_watch_waits_for_the_servers_slow_loop", synced),
    ("what_happened_before_a_watch_began_is_seen", before_watch),
];

const WAITERS: usize = 1000;

fn one_wake_up() {
    run(async {
        let server = server().await;
        // All of them join at once: on a busy machine the last have their turn late.
        let url = format!("etcd://{}?timeout=60s", server.addr());
        let locks = strict(&url).await;
        let held = take(&locks, "a", LONG).await;
        let waiting: Vec<_> = (0..WAITERS)
            .map(|_| {
                let lock = locks.lock("a").ttl(LONG);
                task(async move { give_back(lock.acquire().await.unwrap()).await })
            })
            .collect();
        line_of(&locks, "a", WAITERS).await;
        // Everybody watches by now, the one ahead and his own.
        let watchers = async || etcd_metric(&server, "etcd_debugging_mvcc_watcher_total").await;
        until("each key is watched once", async || {
            watchers().await.is_some_and(|n| n >= WAITERS as f64)
        })
        .await;
        let events = async || etcd_metric(&server, "etcd_debugging_mvcc_events_total").await;
        let before = events().await.unwrap();
        give_back(held).await;
        for waiter in waiting {
            soon("its turn", waiter).await.unwrap();
        }
        let told = events().await.unwrap() - before;
        let releases = (WAITERS + 1) as f64;
        eprintln!("{releases} releases, {told} events told by the server");
        assert!(told <= releases, "{told} events for {releases} releases");
        assert!(told > releases / 2.0, "or nobody was woken by an event: {told}");
    });
}

/// With the default TTL a waiter that is not woken looks again after three seconds only.
fn hand_over() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server().await;
        let locks = strict(&format!("etcd://{}", server.addr())).await;
        for round in 0..3 {
            let tasks: Vec<_> = (0..16)
                .map(|_| {
                    let locks = locks.clone();
                    task(async move {
                        for _ in 0..20 {
                            give_back(locks.lock("one").acquire().await.unwrap()).await;
                        }
                    })
                })
                .collect();
            let (took, ()) = timed(soon("all turns", async {
                for task in tasks {
                    task.await.unwrap();
                }
            }))
            .await;
            eprintln!("round {round}: 320 turns in {took:?}");
        }
    });
    runtime.shutdown_background();
}

/// The client's leases, as the server lists them.
async fn leases(server: &distlock_testkit::servers::Server) -> Vec<String> {
    let all = etcdctl(server, &["lease", "list"]).await.unwrap();
    all.lines().skip(1).map(str::to_owned).collect()
}

fn lease_ends() {
    run(async {
        let server = server().await;
        let (locks, look) = (client(&server).await, client(&server).await);
        let lock = locks.lock("a").ttl(ms(10_000));
        let first = look.lock("a").ttl(LONG).acquire().await.unwrap();
        let before = leases(&server).await;
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        let after = leases(&server).await;
        let its: Vec<_> = after.iter().filter(|l| !before.contains(l)).collect();
        assert_eq!(its.len(), 1);
        etcdctl(&server, &["lease", "revoke", its[0]]).await.unwrap();
        let e = soon("it is told", waiting).await.unwrap().expect_err("never granted");
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
        assert!(e.is_transient(), "{e:?}");
        give_back(first).await;
        let again = soon("a grant", locks.lock("a").ttl(ms(10_000)).acquire()).await.unwrap();
        give_back(again).await;
    });
}

fn holder_hears() {
    run(async {
        let server = server().await;
        let locks = client(&server).await;
        for revoke in [true, false] {
            let held = take(&locks, "a", LONG).await;
            if revoke {
                for lease in leases(&server).await {
                    etcdctl(&server, &["lease", "revoke", &lease]).await.unwrap();
                }
            } else {
                etcdctl(&server, &["del", "--prefix", "/distlock/a/"]).await.unwrap();
            }
            // By the watch: its next renewal is minutes away.
            soon("it is told", held.lost()).await;
            let next = soon("a grant", locks.lock("a").ttl(LONG).acquire()).await.unwrap();
            assert!(next.token() > held.token());
            give_back(next).await;
        }
    });
}

/// Has the server forget the past.
async fn compact(server: &Server) {
    let mut last = String::new();
    for value in ["1", "2", "3"] {
        last = etcdctl(server, &["put", "x", value, "-w", "fields"]).await.unwrap();
    }
    let revision = last.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
    etcdctl(server, &["compact", revision]).await.unwrap();
}

fn compacted() {
    run(async {
        let (server, proxy) = scene().await;
        let url = format!("etcd://{}?timeout=5s", proxy.addr());
        let (locks, look) = (connect(&url).await.unwrap(), client(&server).await);
        let held = take(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        let mine = take(&locks, "b", LONG).await;
        Clock::system().sleep(ms(200)).await; // both are watched: nothing that follows needs it
        proxy.cut_both();
        proxy.reset();
        give_back(held).await;
        etcdctl(&server, &["del", "--prefix", "/distlock/b/"]).await.unwrap();
        compact(&server).await;
        proxy.heal();
        let turn = soon("its turn", waiting).await.unwrap().unwrap();
        soon("it is told", mine.lost()).await;
        give_back(turn).await;
    });
}

/// The holder is there after all, and hears what happens next.
fn compacted_alive() {
    run(async {
        let (server, proxy) = scene().await;
        let holder = store(proxy.addr()).await.into_backend();
        let mut news = holder.events().unwrap();
        let held = hold_watched(&server, &*holder, "a").await;
        // The server has both watches. The client must have heard so as well, or it has nothing to
        // miss: the news of a waiter comes down the same stream, after the start of the first watch.
        let other = store(server.addr()).await;
        let (waiter, place) = join_new(&other, "a").await;
        let event = soon("it hears that somebody waits", news.recv()).await;
        assert_eq!(event, Some(Event::Contended(held.key())));
        leave(&other, &waiter, &place).await;
        proxy.cut_both();
        proxy.reset();
        compact(&server).await;
        proxy.heal();
        loop {
            match soon("it hears that it missed something", news.recv()).await {
                Some(Event::InDoubt(k)) if k.req == held.req => break,
                Some(Event::Contended(_) | Event::Missed) => {}
                other => panic!("{other:?}"),
            }
        }
        etcdctl(&server, &["del", &holder.proof(&held.key()).unwrap().key]).await.unwrap();
        loop {
            match soon("it hears of its end", news.recv()).await {
                Some(Event::Lost(k, LossReason::Gone)) if k.req == held.req => break,
                Some(Event::Contended(_) | Event::InDoubt(_) | Event::Missed) => {}
                other => panic!("{other:?}"),
            }
        }
        holder.close().await;
    });
}

fn restarted() {
    run(async {
        let server = server().await;
        let (locks, look) = (client(&server).await, client(&server).await);
        let held = take(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        server.restart().await.unwrap();
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

/// Other locks come and go meanwhile, as they do in a cluster that is in use: a watch that begins at a
/// revision of a moment ago would begin in the past.
fn synced() {
    run(async {
        let server = server().await;
        let (holder, locks, noise) =
            (client(&server).await, client(&server).await, client(&server).await);
        let noise: Vec<_> = (0..4)
            .map(|i| {
                let lock = noise.lock(format!("noise {i}")).ttl(LONG);
                task(async move {
                    loop {
                        give_back(lock.clone().acquire().await.unwrap()).await;
                    }
                })
            })
            .collect();
        let mut slow = 0;
        for _ in 0..10 {
            let held = take(&holder, "a", LONG).await;
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&holder, "a", 1).await;
            let mut waits = false;
            for _ in 0..3 {
                let name = "etcd_debugging_mvcc_slow_watcher_total";
                waits |= etcd_metric(&server, name).await.unwrap() > 0.0;
            }
            slow += usize::from(waits);
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
        noise.iter().for_each(tokio::task::JoinHandle::abort);
        // On a machine that is too busy a stream may break, and its watches then begin in the past.
        assert!(slow <= 3, "watches in the slow loop in {slow} of 10 rounds");
    });
}

/// The entry ahead goes before the watch on it begins: by the watch alone nobody would ever know.
fn before_watch() {
    run(async {
        let server = server().await;
        let (ours, theirs) = (store(server.addr()).await, store(server.addr()).await);
        for _ in 0..10 {
            let (held, place) = join_new(&theirs, "a").await;
            let (waits, mine) = join_new(&ours, "a").await;
            let line = ours.queue(&waits.lock, &mine).await.unwrap();
            leave(&theirs, &held, &place).await;
            let ahead = [line.entries[0].spot.clone()];
            soon("it hears of that", ours.gone(&waits.lock, &ahead, line.seen)).await;
            leave(&ours, &waits, &mine).await;
        }
    });
}
