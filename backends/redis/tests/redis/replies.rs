//! Requests that take effect and whose answers are late or never come.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_core::{Clock, Kind, Lock, Outcome, Released, Why};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Redis, Server};

use crate::kit::{
    Named, all_free, busy, client, client_at, give_back, keys, line_of, ms, run, soon, take,
    take_for, task, timed, until, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s01_s02_an_acquire_dropped_before_its_answer_holds_nothing", s02_dropped),
    ("s02_an_acquire_dropped_and_cut_off_is_over_with_its_ttl", s02_cut_off),
    ("s04_silence_is_a_loss_before_the_ttl_ends", s04_silence),
    ("s05_a_late_renewal_brings_nothing_back", s05_late),
    ("s11_a_release_without_an_answer_is_unknown_and_can_be_repeated", s11_release),
    ("s17_a_waiter_that_is_forgotten_is_told_and_never_granted", s17_forgotten),
    ("s18_a_wake_up_that_is_lost_costs_less_than_a_wait_lease", s18_lost_wake),
    ("s22_a_request_whose_answer_was_lost_is_known_when_it_comes_again", s22_again),
    ("an_acquire_dropped_at_any_moment_leaves_nothing", any_moment),
];

const ALGORITHMS: [&str; 2] =
    ["quarantine=off&timeout=400ms", "quarantine=off&timeout=400ms&algorithm=plain"];
/// A TTL that nothing here outlives: what becomes free under it was given back.
const LONG: Duration = ms(600_000);
const Q: &str = "quarantine=off&timeout=400ms&max_ttl=1h";

async fn scene(query: &str) -> (Server, Proxy) {
    let server = Redis::new().start().await.unwrap();
    // The scripts are known there: a first call by hash would be answered that it is not.
    let warm = client(&server, query).await;
    let held = take(&warm, "first").await;
    assert!(Clock::system().timeout(ms(50), warm.lock("first").acquire()).await.is_none());
    until("the cancel's script has run", async || {
        keys(&server).await.iter().any(|(k, _)| k.ends_with(":z") || k.ends_with(":c"))
    })
    .await;
    give_back(held).await;
    warm.close().await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

fn s02_dropped() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("{Q}{algorithm}");
            let (server, proxy) = scene(&query).await;
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            for deaf in [true, false] {
                if deaf {
                    proxy.drop_replies();
                } else {
                    proxy.cut(Way::Replies);
                }
                let lock = locks.lock("a").ttl(LONG);
                let asking = task(async move { lock.acquire().await.map(drop) });
                until("it is granted", async || look.show("a").await.unwrap().is_some()).await;
                asking.abort();
                // The answers of the cancel do not come either, but it does.
                all_free(&look, "a").await;
                proxy.heal();
                // The late answer of the acquire, and whatever else comes now, changes nothing.
                let held = take_for(&look, "a", LONG).await;
                until("it is busy for others", async || {
                    locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|a| a.is_err())
                })
                .await;
                assert!(held.check().is_ok());
                give_back(held).await;
                until("it is connected again", async || locks.show("a").await.is_ok()).await;
            }
        }
    });
}

fn s02_cut_off() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene(query).await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let ttl = ms(1500);
            proxy.cut(Way::Replies);
            let lock = locks.lock("a").ttl(ttl);
            let asking = task(async move { lock.acquire().await.map(drop) });
            until("it is granted", async || look.show("a").await.unwrap().is_some()).await;
            proxy.cut_both();
            asking.abort();
            let (took, next) = timed(soon("its end", look.lock("a").ttl(ttl).acquire())).await;
            assert!(took < ttl + ms(1000), "{took:?}");
            proxy.heal();
            // The cancels that arrive now are of the other request.
            Clock::system().sleep(ttl).await;
            next.unwrap().check().unwrap();
        }
    });
}

fn s04_silence() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene(query).await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let ttl = ms(2000);
            let mut work = None;
            let lock = locks.lock("a").ttl(ttl);
            let (took, ended) = timed(lock.run(async |held| {
                proxy.cut_both();
                work = Some(held.clone());
                std::future::pending::<()>().await;
            }))
            .await;
            assert_eq!(ended.unwrap_err().kind(), Kind::Lost);
            assert!(took < ttl, "{took:?}");
            let held = work.unwrap();
            assert_eq!(held.check().unwrap_err().why, Why::Expired);
            // The store has not given it on yet.
            assert!(busy(&look, "a").await.standing.holder.is_some());
            let next = soon("it passes on", look.lock("a").ttl(ttl).acquire()).await.unwrap();
            assert!(next.token() > held.token());
        }
    });
}

fn s05_late() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene(query).await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let ttl = ms(1500);
            let held = take_for(&locks, "a", ttl).await;
            // Renewals take effect, and nobody hears of it.
            proxy.cut(Way::Replies);
            let (took, lost) = timed(soon("the loss", held.lost())).await;
            assert!(took < ttl && lost.why == Why::Expired, "{took:?} {lost}");
            assert!(look.show("a").await.unwrap().is_some(), "or this test shows nothing");
            proxy.heal();
            until("an answer comes", async || locks.show("a").await.is_ok()).await;
            assert!(held.check().is_err());
            assert_eq!(held.release().await.unwrap(), Released::WasLost);
            // And what its renewals had prolonged is given back.
            all_free(&look, "a").await;
        }
    });
}

fn s11_release() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("{Q}{algorithm}");
            let (server, proxy) = scene(&query).await;
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            let mut held = take_for(&locks, "a", LONG).await;
            proxy.drop_replies();
            let e = soon("an error", held.give_back()).await.unwrap_err();
            assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
            all_free(&look, "a").await;
            proxy.heal();
            until("a second try", async || {
                held.give_back().await.is_ok_and(|r| r == Released::Released)
            })
            .await;
            // Cancelled midway, before it left and after.
            for cut in [true, false] {
                let mut held = take_for(&locks, "b", LONG).await;
                if cut {
                    proxy.cut_both();
                } else {
                    proxy.cut(Way::Replies);
                }
                let half = Clock::system().timeout(ms(50), held.give_back()).await;
                assert!(half.is_none());
                assert!(held.check().is_err(), "from the first call on nobody may believe in it");
                drop(held);
                proxy.heal();
                all_free(&look, "b").await;
            }
        }
    });
}

fn s17_forgotten() {
    run(async {
        let (server, proxy) = scene(ALGORITHMS[0]).await;
        let (locks, look) =
            (client_at(proxy.addr(), ALGORITHMS[0]).await, client(&server, ALGORITHMS[0]).await);
        let held = take(&look, "a").await;
        let lock = locks.lock("a").ttl(ms(1000));
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        proxy.cut_both();
        line_of(&look, "a", 0).await;
        give_back(held).await;
        let (took, answer) = timed(soon("it is told", waiting)).await;
        let e = answer.unwrap().expect_err("never granted");
        assert!(took < ms(3000), "{took:?}");
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        let next = take(&look, "a").await;
        proxy.heal();
        Clock::system().sleep(ms(1000)).await;
        assert!(next.check().is_ok() && look.show("a").await.unwrap().unwrap().waiters.is_empty());
    });
}

fn s18_lost_wake() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("quarantine=off{algorithm}");
            let (server, proxy) = scene(&query).await;
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            let held = take(&look, "a").await;
            let told = Arc::new(tokio::sync::Notify::new());
            let tells = told.clone();
            let lock = locks.lock("a").on_wait(move |_| tells.notify_one());
            let waiting = task(async move { give_back(lock.acquire().await.unwrap()).await });
            soon("it knows that it waits", told.notified()).await;
            proxy.drop_replies();
            give_back(held).await;
            proxy.heal();
            within(ms(6000), "its turn", waiting).await.unwrap();
        }
    });
}

fn s22_again() {
    run(async {
        let (server, proxy) = scene(Q).await;
        let (locks, look) = (client_at(proxy.addr(), Q).await, client(&server, Q).await);
        // In line when the answers stop: it asks again, is granted meanwhile, and knows it.
        let held = take_for(&look, "a", LONG).await;
        let token = held.token();
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        proxy.cut(Way::Replies);
        give_back(held).await;
        until("it is promoted", async || {
            look.show("a").await.unwrap().is_some_and(|l| l.waiters.is_empty())
        })
        .await;
        proxy.heal();
        let turn = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(turn.token() > token);
        let seen = look.show("a").await.unwrap().unwrap();
        assert!(seen.holds.len() == 1 && seen.waiters.is_empty(), "{seen:?}");
        give_back(turn).await;
        all_free(&look, "a").await;
        // The first answer of all is lost: an error, and the next request finds no ghost.
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("{Q}{algorithm}");
            let locks = client_at(proxy.addr(), &query).await;
            proxy.drop_replies();
            let lock = locks.lock("b").ttl(LONG);
            let e = soon("an error", lock.clone().try_acquire()).await.unwrap_err();
            assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
            proxy.heal();
            give_back(soon("a lock", again(&lock)).await).await;
        }
    });
}

/// Asks until there is an answer and the lock is free.
async fn again(lock: &Lock) -> distlock_core::Guard {
    loop {
        if let Ok(Ok(guard)) = lock.clone().try_acquire_for(ms(5000)).await {
            return guard;
        }
    }
}

/// Drops a future after so many polls; whether it had ended before.
async fn dropped_after<T>(polls: usize, f: impl Future<Output = T>) -> Option<T> {
    let mut f = pin!(f);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match f.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn any_moment() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("quarantine=off&max_ttl=1h{algorithm}");
            let (server, proxy) = scene(&query).await;
            let look = client(&server, &query).await;
            proxy.delay(ms(4));
            // On a connection that is there, and on one that is still to be made.
            for fresh in [false, true] {
                for waits in [false, true] {
                    let mut polls = 1;
                    loop {
                        let locks = client_at(proxy.addr(), &query).await;
                        if fresh {
                            proxy.reset();
                        }
                        let held =
                            if waits { Some(take_for(&look, "a", LONG).await) } else { None };
                        let lock = locks.lock("a").ttl(LONG);
                        let ended = {
                            let asking = dropped_after(polls, lock.acquire());
                            let freeing = async {
                                if let Some(held) = held {
                                    Clock::system().sleep(ms(3 * polls as u64)).await;
                                    give_back(held).await;
                                }
                            };
                            soon("the moment", async { tokio::join!(asking, freeing) }).await.0
                        };
                        let done = ended.is_some();
                        if let Some(Ok(guard)) = ended {
                            give_back(guard).await;
                        }
                        all_free(&look, "a").await;
                        locks.close().await;
                        // A straggler must not bring it back.
                        assert!(look.show("a").await.unwrap().is_none());
                        if done {
                            break;
                        }
                        polls += 1;
                    }
                    assert!(polls > 1, "it was dropped at least once");
                }
            }
            assert!(keys(&server).await.iter().all(|(_, left)| *left > 0));
        }
    });
}
