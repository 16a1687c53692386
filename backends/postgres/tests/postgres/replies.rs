//! Requests that take effect and whose answers are late or never come.

use distlock_core::{Clock, Kind, Lock, Outcome, Released, Why};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Postgres, Server};

use crate::kit::{
    LONG, Named, all_free, client, client_at, give_back, line_of, ms, run, soon, take_for, task,
    until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s01_s02_an_acquire_dropped_before_its_answer_holds_nothing", s02_dropped),
    ("s04_silence_is_a_loss_before_the_ttl_ends", s04_silence),
    ("s05_a_late_renewal_brings_nothing_back", s05_late),
    ("s11_a_release_without_an_answer_is_unknown_and_can_be_repeated", s11_release),
    ("s17_a_waiter_that_is_forgotten_is_told_and_never_granted", s17_forgotten),
    ("s22_a_request_whose_answer_was_lost_is_known_when_it_comes_again", s22_again),
    ("s33_an_acquire_dropped_at_any_moment_leaves_nothing", s33_any_moment),
];

const QUEUE: &str = "timeout=1s";
const ALGORITHMS: [&str; 2] = [QUEUE, "timeout=1s&algorithm=version"];

async fn scene() -> (Server, Proxy) {
    let server = Postgres::new().start().await.unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

fn s02_dropped() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene().await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            // What is spelled once is known there.
            give_back(take_for(&locks, "first", LONG).await).await;
            for round in 0..3 {
                proxy.cut(Way::Replies);
                let lock = locks.lock("a").ttl(LONG);
                let asking = task(async move { lock.acquire().await.map(drop) });
                if query == QUEUE {
                    until("it is granted", async || look.show("a").await.unwrap().is_some()).await;
                }
                asking.abort();
                let _ = asking.await;
                if query == QUEUE && round == 0 {
                    // The answer of the cancel does not come either, but it does.
                    all_free(&look, "a").await;
                }
                proxy.heal();
                all_free(&look, "a").await;
                // The late answer of the acquire, and whatever else comes now, changes nothing.
                let held = take_for(&look, "a", LONG).await;
                until("it is busy for others", async || {
                    locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|a| a.is_err())
                })
                .await;
                assert!(held.check().is_ok());
                give_back(held).await;
            }
        }
    });
}

fn s04_silence() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene().await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let ttl = ms(4000);
            let mut work = None;
            let lock = locks.lock("a").ttl(ttl);
            let ended = soon(
                "its end",
                lock.run(async |held| {
                    proxy.cut_both();
                    work = Some(held.clone());
                    std::future::pending::<()>().await;
                }),
            )
            .await;
            assert_eq!(ended.unwrap_err().kind(), Kind::Lost);
            let held = work.unwrap();
            assert_eq!(held.check().unwrap_err().why, Why::Expired);
            let next = soon("it passes on", look.lock("a").ttl(ttl).acquire()).await.unwrap();
            assert!(next.token() > held.token());
        }
    });
}

fn s05_late() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (client_at(proxy.addr(), QUEUE).await, client(&server, QUEUE).await);
        let held = take_for(&locks, "a", ms(4000)).await;
        // Renewals take effect, and nobody hears of it.
        proxy.cut(Way::Replies);
        let lost = soon("the loss", held.lost()).await;
        assert_eq!(lost.why, Why::Expired);
        proxy.heal();
        until("an answer comes", async || locks.show("a").await.is_ok()).await;
        assert!(held.check().is_err());
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        // And what its renewals had prolonged is given back.
        all_free(&look, "a").await;
    });
}

fn s11_release() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene().await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let mut held = take_for(&locks, "a", LONG).await;
            give_back(take_for(&locks, "warm", LONG).await).await;
            proxy.drop_replies();
            let e = soon("an error", held.give_back()).await.unwrap_err();
            if query == QUEUE {
                assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
                all_free(&look, "a").await;
            }
            proxy.heal();
            until("a second try", async || {
                held.give_back().await.is_ok_and(|r| r == Released::Released)
            })
            .await;
            all_free(&look, "a").await;
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
        let (server, proxy) = scene().await;
        let (locks, look) = (client_at(proxy.addr(), QUEUE).await, client(&server, QUEUE).await);
        let held = take_for(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(ms(1000));
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        proxy.cut_both();
        line_of(&look, "a", 0).await;
        give_back(held).await;
        let e = soon("it is told", waiting).await.unwrap().expect_err("never granted");
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        let next = take_for(&look, "a", LONG).await;
        proxy.heal();
        until("it is there again", async || locks.show("a").await.is_ok()).await;
        assert!(next.check().is_ok() && look.show("a").await.unwrap().unwrap().waiters.is_empty());
    });
}

fn s22_again() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (client_at(proxy.addr(), QUEUE).await, client(&server, QUEUE).await);
        // In line when the answers stop: it asks again, is granted meanwhile, and knows it.
        let held = take_for(&look, "a", LONG).await;
        let token = held.token();
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        proxy.cut(Way::Replies);
        give_back(held).await;
        proxy.heal();
        let turn = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(turn.token() > token);
        let seen = look.show("a").await.unwrap().unwrap();
        assert!(seen.holds.len() == 1 && seen.waiters.is_empty(), "{seen:?}");
        give_back(turn).await;
        all_free(&look, "a").await;
        // The first answer of all is lost: an error, and the next request finds no ghost.
        proxy.drop_replies();
        let lock = locks.lock("b").ttl(LONG);
        let e = soon("an error", lock.clone().try_acquire()).await.unwrap_err();
        assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
        proxy.heal();
        give_back(soon("a lock", again(&lock)).await).await;
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

fn s33_any_moment() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene().await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            proxy.delay(ms(2));
            for pause in 0..24 {
                // A straggler of the last round may still come, but its cancel is behind it.
                let held = soon("it is free", again(&look.lock("a").ttl(LONG))).await;
                let lock = locks.lock("a").ttl(LONG);
                let clock = Clock::system();
                let asking = clock.timeout(ms(pause), lock.acquire());
                let freeing = async {
                    Clock::system().sleep(ms(pause / 2)).await;
                    give_back(held).await;
                };
                let (got, ()) = tokio::join!(asking, freeing);
                if let Some(Ok(guard)) = got {
                    give_back(guard).await;
                }
                all_free(&look, "a").await;
            }
        }
    });
}
