//! Keys that serve one request after the other: what is late or was for the one touches no other.

use std::sync::Arc;

use distlock_core::line::{LineStore, Proven, Turn, turn};
use distlock_core::seam::{Attempt, Event, Released};
use distlock_core::{Clock, Store, Why};
use distlock_etcd::{Etcd, EtcdPlace};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{etcd_metric, etcdctl};

use crate::kit::{LONG, Named, ms, run, server, soon, task, until};
use crate::moves::{ask, join, keep, store};

pub(crate) const TRIALS: &[Named] = &[
    ("a_seat_serves_one_after_the_other", again),
    ("who_is_gone_takes_nothing_from_who_has_its_seat", takes_nothing),
    ("who_is_gone_hands_over_nothing_of_who_has_its_seat", hands_over_nothing),
    ("who_waits_for_one_that_left_does_not_wait_for_who_has_its_seat", waits_for_one),
    ("a_seat_that_is_in_doubt_is_given_to_nobody", in_doubt),
    ("a_seat_that_is_taken_is_left_alone", taken),
    ("a_seat_of_one_who_lingers_is_given_on_when_it_has_left", lingering),
    ("news_of_who_sat_there_before_is_no_news", old_news),
];

fn key(store: &Etcd, place: &EtcdPlace) -> String {
    store.proof(place).unwrap().key
}

fn again() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let mut last = None;
        for _ in 0..20 {
            let one = ask("a", LONG);
            let (place, _) = join(&store, &one).await;
            let (key, token) = (key(&store, &place), store.token(&place));
            if let Some((before, lower)) = last.replace((key.clone(), token)) {
                assert_eq!(key, before);
                assert!(token > lower, "{token} after {lower}");
            }
            // Beside it there is another.
            let two = ask("a", LONG);
            let (next, _) = join(&store, &two).await;
            assert_ne!(store.proof(&next).unwrap().key, key);
            assert_eq!(store.leave(&two.key(), Some(&next)).await.unwrap(), Released::Released);
            assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
        }
        store.close().await;
    });
}

fn takes_nothing() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, two) = (ask("a", LONG), ask("a", LONG));
        let (old, _) = join(&store, &one).await;
        etcdctl(&server, &["del", &key(&store, &old)]).await.unwrap();
        let lost = |p: &Proven| matches!(p, Proven::Lost(Why::Gone));
        let proven = store.prove(&one.key(), &old).await.unwrap();
        assert!(lost(&proven), "{proven:?}");
        let (new, _) = join(&store, &two).await;
        assert_eq!(key(&store, &new), key(&store, &old));
        // All that the first can still ask.
        let proven = store.prove(&one.key(), &old).await.unwrap();
        assert!(lost(&proven), "{proven:?}");
        let kept = keep(&store, &one, &old).await;
        assert!(matches!(kept, distlock_core::seam::Kept::Lost(Why::Gone)), "{kept:?}");
        assert!(!store.line(&one.lock, &old).await.unwrap().entries.is_empty());
        let left = store.leave(&one.key(), Some(&old)).await.unwrap();
        assert_eq!(left, Released::WasLost);
        let proven = store.prove(&two.key(), &new).await.unwrap();
        assert!(matches!(proven, Proven::Mine(_)), "{proven:?}");
        assert_eq!(store.leave(&two.key(), Some(&new)).await.unwrap(), Released::Released);
        store.close().await;
    });
}

fn hands_over_nothing() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, two, three) = (ask("a", LONG), ask("a", LONG), ask("a", LONG));
        let (old, _) = join(&store, &one).await;
        let (next, _) = join(&store, &two).await;
        etcdctl(&server, &["del", &key(&store, &old)]).await.unwrap();
        let proven = store.prove(&one.key(), &old).await.unwrap();
        assert!(matches!(proven, Proven::Lost(Why::Gone)), "{proven:?}");
        let (new, _) = join(&store, &three).await;
        assert_eq!(key(&store, &new), key(&store, &old));
        assert_eq!(store.leave(&one.key(), Some(&old)).await.unwrap(), Released::WasLost);
        for (who, place) in [(&two, &next), (&three, &new)] {
            let proven = store.prove(&who.key(), place).await.unwrap();
            assert!(matches!(proven, Proven::Mine(_)), "{proven:?}");
        }
        store.close().await;
    });
}

fn waits_for_one() {
    run(async {
        let server = server().await;
        let store = Arc::new(store(server.addr()).await);
        let (one, two, three) = (ask("a", LONG), ask("a", LONG), ask("a", LONG));
        let (old, _) = join(&store, &one).await;
        let (next, _) = join(&store, &two).await;
        let line = store.line(&two.lock, &next).await.unwrap();
        let Turn::Behind(ahead) = turn(&line, store.token(&next)) else { panic!("{line:?}") };
        assert_eq!(store.leave(&one.key(), Some(&old)).await.unwrap(), Released::Released);
        let (new, _) = join(&store, &three).await;
        assert_eq!(key(&store, &new), key(&store, &old));
        // Only now it begins to wait.
        let (waiting, lock) = (store.clone(), two.lock.clone());
        let gone = task(async move { waiting.gone(&lock, &ahead, line.seen).await });
        soon("the one ahead is gone", gone).await.unwrap();
        store.close().await;
    });
}

fn in_doubt() {
    run(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = store(proxy.addr()).await;
        let warm = ask("a", LONG);
        let (place, _) = join(&store, &warm).await;
        let first = key(&store, &place);
        assert_eq!(store.leave(&warm.key(), Some(&place)).await.unwrap(), Released::Released);
        for _ in 0..2 {
            let late = ask("a", LONG);
            proxy.cut(Way::Replies);
            let dropped = Clock::system().timeout(ms(200), store.join(&late)).await;
            assert!(dropped.is_none());
            proxy.heal();
            let _ = store.leave(&late.key(), None).await.unwrap();
        }
        let next = ask("a", LONG);
        let (place, _) = join(&store, &next).await;
        let (head, _) = first.rsplit_once('-').unwrap();
        assert_eq!(key(&store, &place), format!("{head}-2"));
        store.close().await;
    });
}

fn taken() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        for value in ["", "{}"] {
            let one = ask("a", LONG);
            let (place, _) = join(&store, &one).await;
            let seat = key(&store, &place);
            assert_eq!(store.leave(&one.key(), Some(&place)).await.unwrap(), Released::Released);
            etcdctl(&server, &["put", &seat, value]).await.unwrap();
            let two = ask("a", LONG);
            let (place, _) = join(&store, &two).await;
            assert_ne!(key(&store, &place), seat);
            let line = store.line(&two.lock, &place).await.unwrap();
            assert!(matches!(turn(&line, store.token(&place)), Turn::Behind(_)), "{line:?}");
            assert_eq!(store.leave(&two.key(), Some(&place)).await.unwrap(), Released::Released);
            let there = etcdctl(&server, &["del", &seat]).await.unwrap();
            assert_eq!(there.trim(), "1");
        }
        store.close().await;
    });
}

fn lingering() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, two) = (ask("a", LONG), ask("a", LONG));
        let (place, _) = join(&store, &one).await;
        assert!(store.linger(&one.key(), &place, ms(2000)).await.unwrap());
        let (next, _) = join(&store, &two).await;
        assert_ne!(key(&store, &next), key(&store, &place));
        let line = store.line(&two.lock, &next).await.unwrap();
        let Turn::Behind(ahead) = turn(&line, store.token(&next)) else { panic!("{line:?}") };
        soon("it has left", store.gone(&two.lock, &ahead, line.seen)).await;
        until("its seat is free", async || {
            let three = ask("a", LONG);
            let (last, _) = join(&store, &three).await;
            let same = key(&store, &last) == key(&store, &place);
            assert_eq!(store.leave(&three.key(), Some(&last)).await.unwrap(), Released::Released);
            same
        })
        .await;
        store.close().await;
    });
}

fn old_news() {
    run(async {
        let server = server().await;
        let holder = store(server.addr()).await.into_backend();
        let mut news = holder.events().unwrap();
        for _ in 0..3 {
            let quick = ask("a", LONG);
            let granted = holder.acquire(&quick, None).await.unwrap();
            assert!(matches!(granted, Attempt::Granted(_)));
            assert_eq!(holder.release(&quick.key(), None).await.unwrap(), Released::Released);
        }
        let held = ask("a", LONG);
        let granted = holder.acquire(&held, None).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
        // Its key, and its line.
        until("it is watched", async || {
            let watchers = etcd_metric(&server, "etcd_debugging_mvcc_watcher_total").await;
            watchers.is_some_and(|n| n >= 2.0)
        })
        .await;
        // Somebody joins: whatever is told of the past is told before.
        let other = store(server.addr()).await;
        let waits = ask("a", LONG);
        let (place, _) = join(&other, &waits).await;
        let first = soon("it hears of company", news.recv()).await;
        assert!(matches!(&first, Some(Event::Contended(k)) if k.req == held.req), "{first:?}");
        etcdctl(&server, &["del", &holder.proof(&held.key()).unwrap().key]).await.unwrap();
        let lost = soon("it hears of its end", news.recv()).await;
        assert!(matches!(&lost, Some(Event::Lost(k, Why::Gone)) if k.req == held.req), "{lost:?}");
        assert_eq!(other.leave(&waits.key(), Some(&place)).await.unwrap(), Released::Released);
        other.close().await;
        holder.close().await;
    });
}
