//! Hand-over between two of one client: one write ends the one and proves the other.

use std::num::NonZeroU32;
use std::sync::Arc;

use distlock_core::backend::{Ask, Attempt, Backend, Due, Event, Kept, Released};
use distlock_core::queue::{Proven, QueueStore, Snapshot, Turn, turn};
use distlock_core::{Clock, LossReason, Store};
use distlock_etcd::Etcd;
use distlock_testkit::servers::etcdctl;

use crate::kit::{LONG, Named, ms, run, scene, server, soon, task, until, within};
use crate::steps::{ask, join, join_new, leave, store};

pub(crate) const TRIALS: &[Named] = &[
    ("who_leaves_proves_the_next_of_its_client", proven_by_the_leaver),
    ("who_is_gone_is_proven_by_nobody", gone_is_gone),
    ("what_was_shown_once_is_not_shown_again", shown_once),
    ("a_leave_without_an_answer_still_wakes_who_waits_behind", woken_all_the_same),
    ("a_holder_hears_that_somebody_waits", contended),
    ("who_hands_a_lock_on_hears_of_the_next_waiter_once_the_first_has_left", contended_again),
    ("who_hands_a_lock_on_is_told_when_joins_are_not_heard", unheard),
];

fn first(store: &Etcd, line: &Snapshot, place: &distlock_etcd::EtcdEntry) -> bool {
    turn(line, store.token(place)) == Turn::Mine
}

fn proven_by_the_leaver() {
    run(async {
        let (_server, proxy) = scene().await;
        let store = store(proxy.addr()).await;
        let (one, two) = (ask("a", LONG), ask("a", LONG));
        let (place, lease) = join(&store, &one).await;
        let (next, _) = join(&store, &two).await;
        assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
        // Nobody can be asked any more, and nobody need be.
        proxy.cut_both();
        let line = within(ms(4000), "the line", store.queue(&two.lock, &next)).await.unwrap();
        assert!(first(&store, &line, &next), "{line:?}");
        let proven = within(ms(4000), "a proof", store.prove(&two.key(), &next)).await.unwrap();
        let Proven::Mine(proven) = proven else { panic!("{proven:?}") };
        assert_eq!(proven.sent, lease.sent, "a proof prolongs nothing");
        proxy.heal();
        store.close().await;
    });
}

fn gone_is_gone() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, two) = (ask("a", LONG), ask("a", LONG));
        let (place, _) = join(&store, &one).await;
        let (next, _) = join(&store, &two).await;
        let key = store.proof(&next).unwrap().key;
        etcdctl(&server, &["del", &key]).await.unwrap();
        assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
        let line = store.queue(&two.lock, &next).await.unwrap();
        assert!(!first(&store, &line, &next), "{line:?}");
        let proven = store.prove(&two.key(), &next).await.unwrap();
        assert!(matches!(proven, Proven::Lost(LossReason::Gone)), "{proven:?}");
        // Nor is one that is not next: there is somebody of another kind between.
        let (one, two) = (ask("b", LONG), ask("b", LONG));
        let (place, _) = join(&store, &one).await;
        etcdctl(&server, &["put", "/distlock/b/stranger", ""]).await.unwrap();
        let (last, _) = join(&store, &two).await;
        assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
        let line = store.queue(&two.lock, &last).await.unwrap();
        assert!(!first(&store, &line, &last), "{line:?}");
        store.close().await;
    });
}

fn shown_once() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        for looks in [0, 1, 2] {
            let (one, two) = (ask("a", LONG), ask("a", LONG));
            let (place, _) = join(&store, &one).await;
            let (next, _) = join(&store, &two).await;
            assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
            for _ in 0..looks {
                let line = store.queue(&two.lock, &next).await.unwrap();
                assert!(first(&store, &line, &next), "{line:?}");
            }
            let proven = store.prove(&two.key(), &next).await.unwrap();
            assert!(matches!(proven, Proven::Mine(_)), "{proven:?}");
            let key = store.proof(&next).unwrap().key;
            etcdctl(&server, &["del", &key]).await.unwrap();
            let proven = store.prove(&two.key(), &next).await.unwrap();
            assert!(matches!(proven, Proven::Lost(LossReason::Gone)), "{proven:?}");
        }
        store.close().await;
    });
}

fn woken_all_the_same() {
    run(async {
        let (server, proxy) = scene().await;
        let store = Arc::new(store(proxy.addr()).await);
        let (one, two) = (ask("a", LONG), ask("a", LONG));
        let (place, _) = join(&store, &one).await;
        let (next, _) = join(&store, &two).await;
        let line = store.queue(&two.lock, &next).await.unwrap();
        let (watching, ahead, lock) =
            (store.clone(), line.entries[0].spot.clone(), two.lock.clone());
        let gone = task(async move { watching.gone(&lock, &[ahead], line.seen).await });
        // Whoever leaves has gone away, and will tell nobody.
        proxy.cut_both();
        let left = Clock::system().timeout(ms(100), store.leave(&one.key(), Some(&place))).await;
        assert!(left.is_none());
        proxy.heal();
        etcdctl(&server, &["del", &store.proof(&place).unwrap().key]).await.unwrap();
        soon("the entry is gone", gone).await.unwrap();
        store.close().await;
    });
}

fn contended() {
    run(async {
        let server = server().await;
        let (mine, other) = (store(server.addr()).await, store(server.addr()).await);
        let holder = mine.into_backend();
        let mut news = holder.events().unwrap();
        let held = ask("a", LONG);
        let Attempt::Granted(_) = holder.acquire(Arc::new(held.clone()), None).await.unwrap()
        else {
            panic!("it was free")
        };
        let (waits, _) = join(&other, &ask("a", LONG)).await;
        let event = soon("it is told", news.recv()).await.unwrap();
        assert_eq!(event, Event::Contended(held.key()));
        // Once: that there are more changes nothing.
        join(&other, &ask("a", LONG)).await;
        etcdctl(&server, &["del", &other.proof(&waits).unwrap().key]).await.unwrap();
        let key = holder.proof(&held.key()).unwrap().key;
        etcdctl(&server, &["del", &key]).await.unwrap();
        let event = soon("it is told", news.recv()).await.unwrap();
        assert_eq!(event, Event::Lost(held.key(), LossReason::Gone));
        holder.close().await;
        other.close().await;
    });
}

/// Holds a lock that may be handed on inside its process.
async fn hold_for_many(holder: &dyn Backend) -> Ask {
    let held = Ask { block: NonZeroU32::new(1024).unwrap(), ..ask("a", LONG) };
    let answer = holder.acquire(Arc::new(held.clone()), None).await.unwrap();
    let Attempt::Granted(grant) = answer else { panic!("it was free") };
    assert_eq!((grant.tokens.len().get(), grant.waiters), (1024, 0));
    held
}

fn contended_again() {
    run(async {
        let server = server().await;
        let (mine, other) = (store(server.addr()).await, store(server.addr()).await);
        let holder = mine.into_backend();
        let mut news = holder.events().unwrap();
        let held = hold_for_many(&*holder).await;
        let due = [Due { key: held.key(), ttl: LONG }];
        for _ in 0..3 {
            let (waits, place) = join_new(&other, "a").await;
            let event = soon("it is told", news.recv()).await.unwrap();
            assert_eq!(event, Event::Contended(held.key()));
            leave(&other, &waits, &place).await;
            let kept = holder.keep(&due).await.pop();
            assert!(matches!(kept, Some(Kept::Until { waiters: 0, .. })), "{kept:?}");
        }
        holder.close().await;
        other.close().await;
    });
}

fn unheard() {
    run(async {
        let (server, proxy) = scene().await;
        let (mine, other) = (store(proxy.addr()).await, store(server.addr()).await);
        let holder = mine.into_backend();
        let mut news = holder.events().unwrap();
        let held = hold_for_many(&*holder).await;
        // Heard: the stream is open.
        let (waits, place) = join_new(&other, "a").await;
        let event = soon("it is told", news.recv()).await.unwrap();
        assert_eq!(event, Event::Contended(held.key()));
        assert!(holder.tells_of_waiters());
        leave(&other, &waits, &place).await;
        proxy.cut_both();
        proxy.reset();
        assert_eq!(soon("it is told", news.recv()).await, Some(Event::Missed));
        assert!(!holder.tells_of_waiters());
        proxy.heal();
        until("joins are heard again", async || holder.tells_of_waiters()).await;
        holder.close().await;
        other.close().await;
    });
}
