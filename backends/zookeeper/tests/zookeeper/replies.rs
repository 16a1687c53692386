//! Requests that take effect and whose answers are late or never come.

use distlock_core::line::{Joined, LineStore};
use distlock_core::{Clock, Kind, Locks, Outcome, Released, Why};
use distlock_testkit::proxy::{Proxy, Way};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{
    LONG, Named, Site, ask, crowd, crowd_of, give_back, ms, raw, run, server, soon, take, task,
    timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s01_s02_an_acquire_dropped_before_its_answer_holds_nothing", s02_dropped),
    ("s04_silence_is_a_loss_before_the_session_ends", s04_silence),
    ("s05_a_late_renewal_brings_nothing_back", s05_late),
    ("s11_a_release_without_an_answer_is_unknown_and_can_be_repeated", s11_release),
    ("s17_a_waiter_whose_session_ends_is_told_and_the_client_goes_on", s17_waiter),
    ("s22_a_join_whose_answer_was_lost_is_found_again", s22_again),
    ("s31_an_entry_of_another_session_is_not_ours", s31_old_session),
];

/// A path, a client through a proxy, and one that looks on.
async fn scene() -> (Site, Proxy, Locks, Locks) {
    let site = Site::new();
    let proxy = Proxy::to(server()).await.unwrap();
    let locks = site.client(proxy.addr()).await;
    let look = site.client(server()).await;
    (site, proxy, locks, look)
}

fn s02_dropped() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        for deaf in [true, false] {
            // Its session is there, so that only the join itself goes unanswered.
            give_back(take(&locks, "a", LONG).await).await;
            if deaf {
                proxy.drop_replies();
            } else {
                proxy.cut(Way::Replies);
            }
            let lock = locks.lock("a").ttl(LONG);
            let asking = task(async move { lock.acquire().await.map(drop) });
            crowd_of(&look, "a", 1).await;
            asking.abort();
            proxy.heal();
            proxy.reset();
            crowd_of(&look, "a", 0).await;
            let held = take(&look, "a", LONG).await;
            until("it is busy for others", async || {
                locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|a| a.is_err())
            })
            .await;
            give_back(held).await;
            crowd_of(&look, "a", 0).await;
        }
    });
}

fn s04_silence() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        let ttl = ms(4000);
        let mut work = None;
        let (took, ended) = timed(locks.lock("a").ttl(ttl).run(async |held| {
            proxy.cut_both();
            work = Some(held.clone());
            std::future::pending::<()>().await;
        }))
        .await;
        assert_eq!(ended.unwrap_err().kind(), Kind::Lost);
        assert!(took < ttl, "{took:?}");
        let held = work.unwrap();
        assert_eq!(held.check().unwrap_err().why, Why::Expired);
        // The servers have not given it on yet.
        assert_eq!(crowd(&look, "a").await, 1);
        let next = soon("it passes on", look.lock("a").ttl(LONG).acquire()).await.unwrap();
        assert!(next.token() > held.token());
    });
}

fn s05_late() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        let ttl = ms(4000);
        let held = take(&locks, "a", ttl).await;
        proxy.cut(Way::Replies);
        // The servers hear of it all the while, and it does not hear of them.
        let lost = soon("it is lost", held.lost()).await;
        assert_eq!(lost.why, Why::Expired);
        proxy.heal();
        assert!(held.check().is_err(), "a late answer revived it");
        crowd_of(&look, "a", 0).await;
        let next = take(&look, "a", LONG).await;
        assert!(next.token() > held.token() && held.check().is_err());
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        next.check().unwrap();
    });
}

fn s11_release() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        let mut held = take(&locks, "a", LONG).await;
        proxy.drop_replies();
        let e = soon("an error", held.give_back()).await.unwrap_err();
        assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
        crowd_of(&look, "a", 0).await;
        proxy.heal();
        proxy.reset();
        until("a second try", async || {
            held.give_back().await.is_ok_and(|r| r == Released::Released)
        })
        .await;
        // Cancelled midway, before it left and after.
        for cut in [true, false] {
            let mut held = soon("it is free", locks.lock("b").ttl(LONG).acquire()).await.unwrap();
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
            crowd_of(&look, "b", 0).await;
        }
    });
}

fn s17_waiter() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        let ttl = ms(4000);
        let held = take(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(ttl);
        let waiting = task(async move { lock.acquire().await });
        crowd_of(&look, "a", 2).await;
        proxy.cut_both();
        // Within a second of its own deadline, which comes before the end of its session.
        let (took, answer) = timed(soon("it is told", waiting)).await;
        let e = answer.unwrap().expect_err("never granted");
        assert!(took < ttl + ms(1000), "{took:?}");
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        crowd_of(&look, "a", 1).await;
        give_back(held).await;
        proxy.heal();
        // The same client opens another session by itself.
        let again = async || locks.lock("a").ttl(ttl).try_acquire().await.is_ok_and(|a| a.is_ok());
        until("the same client acquires again", again).await;
    });
}

fn s22_again() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        give_back(take(&locks, "a", LONG).await).await;
        for deaf in [true, false] {
            if deaf {
                proxy.drop_replies();
            } else {
                proxy.cut(Way::Replies);
            }
            let lock = locks.lock("a").ttl(LONG);
            let asking = task(async move { lock.acquire().await });
            crowd_of(&look, "a", 1).await;
            let told = look.show("a").await.unwrap().unwrap().holds[0].holder.token;
            proxy.reset();
            proxy.heal();
            let guard = soon("its answer", asking).await.unwrap().unwrap();
            assert_eq!(guard.token(), told, "its own entry, found again");
            assert_eq!(crowd(&look, "a").await, 1, "one request, one entry");
            give_back(guard).await;
            assert_eq!(crowd(&look, "a").await, 0);
        }
    });
}

const GHOSTS: usize = 30;

/// The uuid alone proves nothing: it may be in an entry that we made in a session which is over for
/// us and not yet for the servers.
fn s31_old_session() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let store = site.store(proxy.addr()).await;
        let look = site.client(server()).await;
        // The container, and a session for this TTL.
        let first = ask("a", LONG);
        let Joined::In { place, .. } = store.join(&first).await.unwrap() else { panic!("in") };
        let _ = store.leave(&first.key(), Some(&place)).await.unwrap();

        let mine = ask("a", LONG);
        let old = raw(server()).await;
        let hex = mine.req.to_string();
        let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        let prefix = format!("{}/_c_{uuid}-lock-", site.node("a"));
        let made = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        // Many, so that none of them is ours by luck: a line is told in no order.
        let mut ghost = old.create(&prefix, b"", &made).await.unwrap().0;
        for _ in 1..GHOSTS {
            ghost = old.create(&prefix, b"", &made).await.unwrap().0;
        }

        proxy.drop_replies();
        let joining = async {
            let joined = store.join(&mine).await.unwrap();
            let Joined::In { place, line, .. } = joined else { panic!("in") };
            (store.token(&place), line)
        };
        let break_it = async {
            crowd_of(&look, "a", GHOSTS + 1).await;
            proxy.reset();
            proxy.heal();
        };
        let ((token, line), ()) =
            soon("its answer", async { tokio::join!(joining, break_it) }).await;
        assert!(token.get() > ghost.czxid as u64 * 1024, "a ghost's token {token}");
        assert_eq!(line.entries.len(), 1, "the ghosts were removed: {line:?}");
    });
}
