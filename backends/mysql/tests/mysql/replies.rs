//! Requests that take effect and whose answers are late or never come.

use distlock_core::{Clock, Kind, Lock, Outcome, Released, Why};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Mariadb, Server};

use crate::kit::{
    BOTH, LONG, Named, all_free, client, client_at, give_back, line_of, ms, run, soon, start, take,
    task, timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s01_s02_an_acquire_dropped_before_its_answer_holds_nothing", s02_dropped),
    ("s02_an_acquire_dropped_and_cut_off_is_over_with_its_ttl", s02_cut_off),
    ("s04_silence_is_a_loss_before_the_ttl_ends", s04_silence),
    ("s05_a_late_renewal_brings_nothing_back", s05_late),
    ("s11_a_release_without_an_answer_is_unknown_and_can_be_repeated", s11_release),
    ("s17_a_waiter_that_is_forgotten_is_told_and_never_granted", s17_forgotten),
    ("s22_a_request_whose_answer_was_lost_is_known_when_it_comes_again", s22_again),
    ("a_client_that_falls_silent_in_a_transaction_keeps_nobody_out", silent_transaction),
];

async fn scene() -> (Server, Proxy) {
    let server = start(Mariadb::new()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

fn s02_dropped() {
    run(async {
        let (server, proxy) = scene().await;
        for query in BOTH {
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            // Both connections are there, or nothing could arrive.
            drop(take(&locks, "a", LONG).await);
            all_free(&look, "a").await;
            proxy.cut(Way::Replies);
            let lock = locks.lock("a").ttl(LONG);
            let asking = task(async move { lock.acquire().await.map(drop) });
            let granted = async || look.show("a").await.is_ok_and(|l| l.is_some());
            // The version algorithm reads before it writes: without answers it never gets there.
            if query == BOTH[0] {
                until("it is granted", granted).await;
            }
            asking.abort();
            proxy.heal();
            // The late answer of the acquire, and whatever else comes now, changes nothing.
            all_free(&look, "a").await;
            let held = take(&look, "a", LONG).await;
            until("it is busy for others", async || {
                locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|a| a.is_err())
            })
            .await;
            assert!(held.check().is_ok());
            give_back(held).await;
            locks.close().await;
        }
    });
}

fn s02_cut_off() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) =
            (client_at(proxy.addr(), BOTH[0]).await, client(&server, BOTH[0]).await);
        let ttl = ms(2000);
        drop(take(&locks, "a", ttl).await);
        all_free(&look, "a").await;
        proxy.cut(Way::Replies);
        let lock = locks.lock("a").ttl(ttl);
        let asking = task(async move { lock.acquire().await.map(drop) });
        until("it is granted", async || look.show("a").await.is_ok_and(|l| l.is_some())).await;
        proxy.cut_both();
        asking.abort();
        let next = soon("its end", look.lock("a").ttl(ms(8000)).acquire()).await.unwrap();
        proxy.heal();
        // The cancels that arrive now are of the other request.
        until("it is connected again", async || locks.show("a").await.is_ok()).await;
        Clock::system().sleep(ms(1500)).await;
        next.check().unwrap();
    });
}

fn s04_silence() {
    run(async {
        let (server, proxy) = scene().await;
        for query in BOTH {
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let ttl = ms(4000);
            let mut work = None;
            let lock = locks.lock("a").ttl(ttl);
            let (took, ended) = timed(lock.run(async |held| {
                proxy.cut_both();
                work = Some(held.clone());
                std::future::pending::<()>().await;
            }))
            .await;
            assert_eq!(ended.unwrap_err().kind(), Kind::Lost);
            let held = work.unwrap();
            assert_eq!(held.check().unwrap_err().why, Why::Expired);
            assert!(took < ttl + ms(4000), "{took:?}");
            let next = soon("it passes on", look.lock("a").ttl(ttl).acquire()).await.unwrap();
            assert!(next.token() > held.token());
            give_back(next).await;
            proxy.heal();
        }
    });
}

fn s05_late() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) =
            (client_at(proxy.addr(), BOTH[0]).await, client(&server, BOTH[0]).await);
        let ttl = ms(4000);
        // Its connection for renewals is there.
        drop(take(&locks, "a", ttl).await);
        all_free(&look, "a").await;
        let held = take(&locks, "a", ttl).await;
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
        let (server, proxy) = scene().await;
        for query in BOTH {
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            // Its statements are prepared, or nothing would take effect without an answer.
            give_back(take(&locks, "a", LONG).await).await;
            let mut held = take(&locks, "a", LONG).await;
            proxy.cut(Way::Replies);
            let e = soon("an error", held.give_back()).await.unwrap_err();
            assert!(e.is_transient(), "{e:?}");
            if query == BOTH[0] {
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
                let mut held = take(&locks, "b", LONG).await;
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
        for query in BOTH {
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            let held = take(&look, "a", LONG).await;
            let lock = locks.lock("a").ttl(ms(3000));
            let waiting = task(async move { lock.acquire().await });
            line_of(&look, "a", 1).await;
            proxy.cut_both();
            line_of(&look, "a", 0).await;
            give_back(held).await;
            let answer = soon("it is told", waiting).await;
            let e = answer.unwrap().expect_err("never granted");
            assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
            let next = take(&look, "a", LONG).await;
            proxy.heal();
            until("it is connected again", async || locks.show("a").await.is_ok()).await;
            assert!(next.check().is_ok());
            line_of(&look, "a", 0).await;
            give_back(next).await;
        }
    });
}

fn s22_again() {
    run(async {
        let (server, proxy) = scene().await;
        for query in BOTH {
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            // In line when the answers stop: it asks again, is granted meanwhile, and knows it.
            let held = take(&look, "a", LONG).await;
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
            proxy.cut(Way::Replies);
            let lock = locks.lock("b").ttl(LONG);
            soon("an error", lock.clone().try_acquire()).await.unwrap_err();
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

/// Its answers are cut between the two halves of a transaction, so that it keeps the row locked and
/// says nothing more; the server ends that by itself.
fn silent_transaction() {
    run(async {
        let (server, proxy) = scene().await;
        let long = "timeout=60s";
        let (locks, look) = (client_at(proxy.addr(), long).await, client(&server, "").await);
        let held = take(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await.map(drop) });
        line_of(&look, "a", 1).await;
        proxy.cut(Way::Replies);
        // Cancelled: its transaction begins, and its answer does not come.
        waiting.abort();
        until("the row is locked", async || {
            // This table shows what it showed before to whoever asks within a tenth of a second.
            Clock::system().sleep(ms(200)).await;
            let locked =
                "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_rows_locked>0";
            crate::kit::ask(&server, locked) != "0"
        })
        .await;
        let mut held = held;
        until("it is given back", async || {
            held.give_back().await.is_ok_and(|r| r == Released::Released)
        })
        .await;
    });
}
