//! Requests that are late or never arrive, where the laws of the road do not look closely enough.

use std::sync::Arc;

use distlock_core::backend::{Ask, Attempt};
use distlock_core::{Kind, Locks, ReqId};
use distlock_testkit::proxy::Way;
use distlock_testkit::servers::etcdctl;
use tokio::sync::Notify;

use crate::kit::{
    LONG, Named, all_free, client, connect, give_back, hasty, line_of, ms, run, scene, server,
    soon, take, task, timed, until,
};
use crate::steps::ask;

pub(crate) const TRIALS: &[Named] = &[
    ("an_acquire_that_arrives_after_its_cancel_holds_nothing", held_back),
    ("a_request_with_a_tombstone_is_never_in_line", tombstone),
    ("s17_a_waiter_cut_off_is_told_by_its_own_deadline", s17_cut_off),
];

/// Requests are held back on several connections and arrive in any order.
fn held_back() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, look) = (hasty(proxy.addr()).await, client(&server).await);
        for _ in 0..5 {
            // Who gives up after so little must ask again on a busy machine.
            until("it works", async || once(&locks, "warm").await).await;
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
            // Nor does it, or its cancel, take anything from who comes after it.
            let next = loop {
                match soon("an answer", locks.lock("a").ttl(LONG).acquire()).await {
                    Ok(next) => break next,
                    Err(e) => assert!(e.is_transient(), "{e:?}"),
                }
            };
            // Whatever else was on its way has arrived with the rest.
            until("it works again", async || once(&locks, "b").await).await;
            give_back(next).await;
            assert!(look.show("a").await.unwrap().is_none());
        }
    });
}

/// Takes a lock and gives it back; whether the store answered in time.
async fn once(locks: &Locks, name: &str) -> bool {
    match locks.lock(name).ttl(LONG).try_acquire().await {
        Ok(Ok(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

fn tombstone() {
    run(async {
        let server = server().await;
        let locks = client(&server).await;
        let ask = ask("a", LONG);
        let grave = format!("/distlock/:gone/{}", ask.req);
        etcdctl(&server, &["put", &grave, ""]).await.unwrap();
        let e = locks.backend().acquire(Arc::new(ask.clone()), None).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
        assert!(locks.show("a").await.unwrap().is_none());
        etcdctl(&server, &["del", &grave]).await.unwrap();
        let again = Ask { req: ReqId::random(), ..ask };
        let granted = locks.backend().acquire(Arc::new(again.clone()), None).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
    });
}

/// Its calls may take longer than its lease: that is what ends the wait.
fn s17_cut_off() {
    run(async {
        let (server, proxy) = scene().await;
        let url = format!("etcd://{}", proxy.addr());
        let (locks, look) = (connect(&url).await.unwrap(), client(&server).await);
        let held = take(&look, "a", LONG).await;
        let ttl = ms(4000);
        let told = Arc::new(Notify::new());
        let tells = told.clone();
        let lock = locks.lock("a").ttl(ttl).on_wait(move |_| tells.notify_one());
        let waiting = task(async move { timed(lock.acquire()).await });
        // It must know its place: without that it has no lease to end by.
        soon("it waits", told.notified()).await;
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
