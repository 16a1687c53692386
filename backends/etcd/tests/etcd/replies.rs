//! Requests that take effect and whose answers are late or never come.

use distlock_core::seam::{Ask, Attempt};
use distlock_core::{Clock, Kind, Lock, Outcome, Released, ReqId, Why};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Server, etcdctl};

use crate::kit::{
    LONG, Named, all_free, busy, client, connect, give_back, hasty, line_of, ms, run, server, soon,
    take, task, timed, until, warm,
};
use crate::moves::ask;

pub(crate) const TRIALS: &[Named] = &[
    ("s01_s02_an_acquire_dropped_before_its_answer_holds_nothing", s02_dropped),
    ("an_acquire_that_arrives_after_its_cancel_holds_nothing", held_back),
    ("a_request_with_a_tombstone_is_never_in_line", tombstone),
    ("s04_silence_is_a_loss_before_the_ttl_ends", s04_silence),
    ("s05_a_late_renewal_brings_nothing_back", s05_late),
    ("s11_a_release_without_an_answer_is_unknown_and_can_be_repeated", s11_release),
    ("s17_a_waiter_cut_off_is_told_by_its_own_deadline", s17_cut_off),
    ("s22_a_request_whose_answer_was_lost_is_known_when_it_comes_again", s22_again),
];

async fn scene() -> (Server, Proxy) {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

fn s02_dropped() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        for deaf in [true, false] {
            warm(&locks, LONG).await;
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
            let held = take(&look, "a", LONG).await;
            until("it is busy for others", async || {
                locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|a| a.is_err())
            })
            .await;
            assert!(held.check().is_ok());
            give_back(held).await;
            until("it is connected again", async || locks.show("a").await.is_ok()).await;
        }
    });
}

/// Requests are held back on several connections and arrive in any order.
fn held_back() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        for _ in 0..5 {
            warm(&locks, LONG).await;
            proxy.cut(Way::Requests);
            let before = proxy.accepted();
            let lock = locks.lock("a").ttl(LONG);
            let asking = task(async move { lock.acquire().await.map(drop) });
            // Given up once, asked again on a connection of its own.
            until("it asks again", async || proxy.accepted() > before).await;
            asking.abort();
            until("the cancel is under way", async || proxy.accepted() > before + 1).await;
            proxy.heal();
            until("it is connected again", async || locks.show("a").await.is_ok()).await;
            all_free(&look, "a").await;
            // Whatever else was on its way has arrived with the rest.
            until("it works again", async || {
                locks.lock("b").ttl(LONG).try_acquire().await.is_ok_and(|g| g.is_ok())
            })
            .await;
            assert!(look.show("a").await.unwrap().is_none());
        }
    });
}

fn tombstone() {
    run(async {
        let server = server().await;
        let locks = client(&server).await;
        let ask = ask("a", LONG);
        let grave = format!("/distlock/:gone/{}", ask.req);
        etcdctl(&server, &["put", &grave, ""]).await.unwrap();
        let e = locks.backend().acquire(&ask, None).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
        assert!(locks.show("a").await.unwrap().is_none());
        etcdctl(&server, &["del", &grave]).await.unwrap();
        let again = Ask { req: ReqId::random(), ..ask };
        let granted = locks.backend().acquire(&again, None).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
    });
}

fn s04_silence() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
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
        assert!(took < ttl, "{took:?}");
        let held = work.unwrap();
        assert_eq!(held.check().unwrap_err().why, Why::Expired);
        // The store has not given it on yet.
        assert!(busy(&look, "a").await.standing.holder.is_some());
        let next = soon("it passes on", look.lock("a").ttl(ttl).acquire()).await.unwrap();
        assert!(next.token() > held.token());
    });
}

fn s05_late() {
    run(async {
        let (server, proxy) = scene().await;
        // Patient: its renewal is still waited for when the answer comes at last.
        let url = format!("etcd://{}?timeout=30s", proxy.addr());
        let (locks, look) = (connect(&url).await.unwrap(), client(&server).await);
        let ttl = ms(4000);
        let held = take(&locks, "a", ttl).await;
        // Renewals take effect, and nobody hears of it.
        proxy.cut(Way::Replies);
        let (took, lost) = timed(soon("the loss", held.lost())).await;
        assert!(took < ttl && lost.why == Why::Expired, "{took:?} {lost}");
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
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        let mut held = take(&locks, "a", LONG).await;
        proxy.drop_replies();
        let e = soon("an error", held.give_back()).await.unwrap_err();
        assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
        all_free(&look, "a").await;
        proxy.heal();
        let mut answer = None;
        until("a second try", async || {
            answer = held.give_back().await.ok();
            answer.is_some()
        })
        .await;
        assert_eq!(answer, Some(Released::Released));
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
            until("it is connected again", async || locks.show("a").await.is_ok()).await;
        }
    });
}

fn s17_cut_off() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        let held = take(&look, "a", LONG).await;
        let ttl = ms(4000);
        let lock = locks.lock("a").ttl(ttl);
        let waiting = task(async move { timed(lock.acquire()).await });
        line_of(&look, "a", 1).await;
        proxy.cut_both();
        let (took, answer) = timed(soon("it is told", waiting)).await;
        let e = answer.unwrap().1.expect_err("never granted");
        assert!(took < ttl + ms(1000), "{took:?}");
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        line_of(&look, "a", 0).await;
        give_back(held).await;
        let next = take(&look, "a", LONG).await;
        proxy.heal();
        until("it is connected again", async || locks.show("a").await.is_ok()).await;
        assert!(next.check().is_ok() && look.show("a").await.unwrap().unwrap().waiters.is_empty());
        give_back(next).await;
        // The same client, on a lease of its own making again.
        let again = soon("a grant", locks.lock("a").ttl(ttl).acquire()).await.unwrap();
        give_back(again).await;
    });
}

fn s22_again() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        // In line when the answers stop: it asks again, is first meanwhile, and knows it.
        let held = take(&look, "a", LONG).await;
        let token = held.token();
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&look, "a", 1).await;
        proxy.cut(Way::Replies);
        give_back(held).await;
        until("it is first", async || {
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
        warm(&locks, LONG).await;
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
