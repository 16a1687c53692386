//! Requests that take effect and whose answers are late or never come: what the laws of the bad road
//! do not say of ZooKeeper.

use std::sync::Arc;

use distlock_core::Locks;
use distlock_core::queue::{Joined, QueueStore};
use distlock_testkit::proxy::{Proxy, Way};
use tokio::sync::Notify;
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{
    LONG, Named, Site, ask, crowd, crowd_of, give_back, ms, raw, run, server, soon, take, task,
    timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
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

fn s17_waiter() {
    run(async {
        let (_site, proxy, locks, look) = scene().await;
        let ttl = ms(4000);
        let held = take(&look, "a", LONG).await;
        let told = Arc::new(Notify::new());
        let tells = told.clone();
        let lock = locks.lock("a").ttl(ttl).on_wait(move |_| tells.notify_one());
        let waiting = task(async move { lock.acquire().await });
        // It must know its place: without that it has no lease to end by.
        soon("it waits", told.notified()).await;
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
            let Joined::In { place, queue: line, .. } = joined else { panic!("in") };
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
