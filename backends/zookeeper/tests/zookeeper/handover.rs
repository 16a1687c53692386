//! Handing over inside one client: who leaves proves the place of who is next, and of nobody else.

use std::sync::Arc;

use distlock_core::backend::{Event, Force, Key};
use distlock_core::queue::{Joined, Proven, QueueStore, Turn, turn};
use distlock_core::{LossReason, Released, Store};
use distlock_testkit::proxy::Proxy;
use distlock_zookeeper::{OwnEntry, ZooKeeper};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::kit::{LONG, Named, Site, ask, crowd_of, give_back, raw, run, server, soon, take, task};

pub(crate) const TRIALS: &[Named] = &[
    ("the_next_of_this_client_is_called_with_the_release_itself", called),
    ("a_foreign_entry_between_two_of_ours_is_not_passed_over", foreign),
    ("who_is_gone_or_revoked_is_not_called_and_nobody_is_kept_waiting", not_there),
    ("a_request_joined_again_is_one_entry", joined_again),
    ("a_lock_whose_own_node_may_not_be_written_is_served", unwritable),
    ("a_holder_hears_that_somebody_waits", contended),
];

async fn join(store: &ZooKeeper) -> (Key, OwnEntry) {
    let ask = ask("a", LONG);
    let Joined::In { place, .. } = soon("a place", store.join(&ask)).await.unwrap() else {
        panic!("in line")
    };
    (ask.key(), place)
}

async fn leave(store: &ZooKeeper, (key, place): &(Key, OwnEntry)) {
    let left = soon("it leaves", store.leave(key, Some(place))).await.unwrap();
    assert_eq!(left, Released::Released);
}

/// Whether it is its turn, and whether that is proven.
async fn asks(store: &ZooKeeper, (key, place): &(Key, OwnEntry)) -> (Turn, Option<Proven>) {
    let (line, proven) = soon("an answer", store.queue_and_proof(key, place)).await.unwrap();
    (turn(&line, store.token(place)), proven)
}

fn called() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let store = site.store(proxy.addr()).await;
        let all = [join(&store).await, join(&store).await, join(&store).await];
        leave(&store, &all[0]).await;
        // Nothing can be asked any more, and nothing has to be.
        proxy.cut_both();
        assert!(matches!(asks(&store, &all[1]).await, (Turn::Mine, Some(Proven::Mine(_)))));
        proxy.heal();
        assert!(matches!(asks(&store, &all[2]).await.0, Turn::Behind(_)));
        leave(&store, &all[1]).await;
        assert!(matches!(asks(&store, &all[2]).await, (Turn::Mine, Some(Proven::Mine(_)))));
    });
}

fn foreign() {
    run(async {
        let site = Site::new();
        let (store, other) = (site.store(server()).await, raw(server()).await);
        let first = join(&store).await;
        let made = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/_c_0f9f7a0c-9a55-4b3e-8a4e-7d3b0c2f1e12-lock-", site.node("a"));
        let (_, number) = other.create(&prefix, b"", &made).await.unwrap();
        let last = join(&store).await;
        leave(&store, &first).await;
        assert!(matches!(asks(&store, &last).await.0, Turn::Behind(_)), "passed over");
        other.delete(&format!("{prefix}{number}"), None).await.unwrap();
        assert!(matches!(asks(&store, &last).await, (Turn::Mine, Some(Proven::Mine(_)))));
    });
}

fn not_there() {
    run(async {
        let site = Site::new();
        let (store, other) = (site.store(server()).await, raw(server()).await);
        let all = [join(&store).await, join(&store).await, join(&store).await, join(&store).await];
        let lines = store.queues(&distlock_core::info::Query::Name(crate::kit::full("a"))).await;
        let (lock, line) = lines.unwrap().remove(0);
        other.delete(&format!("{}/{}", site.node("a"), line.entries[1].spot), None).await.unwrap();
        let _ = store.oust(&lock, &line.entries[2], Force::Revoke).await.unwrap();
        leave(&store, &all[0]).await;
        assert!(matches!(asks(&store, &all[1]).await.1, Some(Proven::Lost(LossReason::Gone))));
        assert!(matches!(asks(&store, &all[2]).await.1, Some(Proven::Lost(LossReason::Revoked))));
        assert!(matches!(asks(&store, &all[3]).await.0, Turn::Behind(_)));
        let (key, place) = &all[2];
        assert_eq!(store.leave(key, Some(place)).await.unwrap(), Released::WasLost);
        assert!(matches!(asks(&store, &all[3]).await, (Turn::Mine, Some(Proven::Mine(_)))));
    });
}

fn joined_again() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let store = site.store(proxy.addr()).await;
        let look = site.client(server()).await;
        leave(&store, &join(&store).await).await;
        let (ask, other) = (ask("a", LONG), ask("b", LONG));
        proxy.drop_replies();
        {
            let joining = std::pin::pin!(store.join(&ask));
            let seen = crowd_of(&look, "a", 1);
            tokio::select! { biased; _ = joining => panic!("answered"), () = seen => {} }
        }
        proxy.heal();
        proxy.reset();
        // The loss has been noticed by then: that it was sent before is known by nothing but memory.
        let joined = soon("a place", store.join(&other)).await.unwrap();
        assert!(matches!(joined, Joined::In { .. }));
        // Given up, and asked again: first while it is not known to be in line, then while it is.
        for _ in 0..2 {
            let joined = soon("a place", store.join(&ask)).await.unwrap();
            let Joined::In { place, queue: line, .. } = joined else { panic!("in line") };
            assert_eq!(turn(&line, store.token(&place)), Turn::Mine);
            crowd_of(&look, "a", 1).await;
        }
        assert_eq!(store.leave(&ask.key(), None).await.unwrap(), Released::Released);
        crowd_of(&look, "a", 0).await;
    });
}

/// Somebody else made it, and lets others stand in line there and no more.
fn unwritable() {
    run(async {
        let site = Site::new();
        let (locks, other) = (site.strict(server()).await, raw(server()).await);
        let rights = Permission::READ | Permission::CREATE | Permission::DELETE;
        let grants = [Acl::new(rights, AuthId::anyone())];
        let made = CreateMode::Container.with_acls(Acls::new(&grants));
        other.create(&site.node("a"), b"theirs", &made).await.unwrap();
        let held = take(&locks, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let next = task(async move { lock.acquire().await });
        crowd_of(&locks, "a", 2).await;
        give_back(held).await;
        let next = soon("its turn", next).await.unwrap().unwrap();
        assert_eq!(other.get_data(&site.node("a")).await.unwrap().0, b"theirs");
        give_back(next).await;
    });
}

fn contended() {
    run(async {
        use distlock_core::backend::Attempt;
        let site = Site::new();
        let backend = site.store(server()).await.into_backend();
        let look = site.client(server()).await;
        let mut news = backend.events().unwrap();
        let ask = ask("a", LONG);
        let Attempt::Granted(_) = backend.acquire(Arc::new(ask.clone()), None).await.unwrap()
        else {
            panic!("it is free")
        };
        let lock = look.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await.map(drop) });
        assert_eq!(soon("word of it", news.recv()).await, Some(Event::Contended(ask.key())));
        assert_eq!(backend.release(&ask.key()).await.unwrap(), Released::Released);
        soon("its turn", waiting).await.unwrap().unwrap();
        backend.close().await;
    });
}
