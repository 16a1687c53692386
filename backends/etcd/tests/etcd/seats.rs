//! Keys that serve one request after the other: what is late or was for the one touches no other.

use std::sync::Arc;

use distlock_core::backend::{Attempt, Event, Released};
use distlock_core::queue::{QueueStore, Turn, turn};
use distlock_core::{LossReason, Store};
use distlock_testkit::servers::etcdctl;

use crate::kit::{LONG, Named, ms, run, scene, server, soon, task, until};
use crate::steps::{
    ask, hold_watched, is_gone, is_there, join_new, join_unheard, keep, key, leave, store,
    take_away,
};

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

fn again() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let mut last = None;
        for _ in 0..20 {
            let (one, place) = join_new(&store, "a").await;
            let (key, token) = (key(&store, &place), store.token(&place));
            if let Some((before, lower)) = last.replace((key.clone(), token)) {
                assert_eq!(key, before);
                assert!(token > lower, "{token} after {lower}");
            }
            // Beside it there is another.
            let (two, next) = join_new(&store, "a").await;
            assert_ne!(store.proof(&next).unwrap().key, key);
            leave(&store, &two, &next).await;
            leave(&store, &one, &place).await;
        }
        store.close().await;
    });
}

fn takes_nothing() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, old) = join_new(&store, "a").await;
        take_away(&server, &store, &one, &old).await;
        let (two, new) = join_new(&store, "a").await;
        assert_eq!(key(&store, &new), key(&store, &old));
        // All that the first can still ask.
        is_gone(&store, &one, &old).await;
        let kept = keep(&store, &one, &old).await;
        assert!(matches!(kept, distlock_core::backend::Kept::Lost(LossReason::Gone)), "{kept:?}");
        assert!(!store.queue(&one.lock, &old).await.unwrap().entries.is_empty());
        let left = store.leave(&one.key(), Some(&old)).await.unwrap();
        assert_eq!(left, Released::WasLost);
        is_there(&store, &two, &new).await;
        leave(&store, &two, &new).await;
        store.close().await;
    });
}

fn hands_over_nothing() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (one, old) = join_new(&store, "a").await;
        let (two, next) = join_new(&store, "a").await;
        take_away(&server, &store, &one, &old).await;
        let (three, new) = join_new(&store, "a").await;
        assert_eq!(key(&store, &new), key(&store, &old));
        assert_eq!(store.leave(&one.key(), Some(&old)).await.unwrap(), Released::WasLost);
        for (who, place) in [(&two, &next), (&three, &new)] {
            is_there(&store, who, place).await;
        }
        store.close().await;
    });
}

fn waits_for_one() {
    run(async {
        let server = server().await;
        let store = Arc::new(store(server.addr()).await);
        let (one, old) = join_new(&store, "a").await;
        let (two, next) = join_new(&store, "a").await;
        let line = store.queue(&two.lock, &next).await.unwrap();
        let Turn::Behind(ahead) = turn(&line, store.token(&next)) else { panic!("{line:?}") };
        leave(&store, &one, &old).await;
        let (_, new) = join_new(&store, "a").await;
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
        let (_server, proxy) = scene().await;
        let store = store(proxy.addr()).await;
        let (warm, place) = join_new(&store, "a").await;
        let first = key(&store, &place);
        leave(&store, &warm, &place).await;
        for _ in 0..2 {
            join_unheard(&store, &proxy, "a").await;
        }
        let (_, place) = join_new(&store, "a").await;
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
            let (one, place) = join_new(&store, "a").await;
            let seat = key(&store, &place);
            leave(&store, &one, &place).await;
            etcdctl(&server, &["put", &seat, value]).await.unwrap();
            let (two, place) = join_new(&store, "a").await;
            assert_ne!(key(&store, &place), seat);
            let line = store.queue(&two.lock, &place).await.unwrap();
            assert!(matches!(turn(&line, store.token(&place)), Turn::Behind(_)), "{line:?}");
            leave(&store, &two, &place).await;
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
        let (one, place) = join_new(&store, "a").await;
        assert!(store.linger(&one.key(), &place, ms(6000)).await.unwrap());
        let (two, next) = join_new(&store, "a").await;
        assert_ne!(key(&store, &next), key(&store, &place));
        let line = store.queue(&two.lock, &next).await.unwrap();
        let Turn::Behind(ahead) = turn(&line, store.token(&next)) else { panic!("{line:?}") };
        soon("it has left", store.gone(&two.lock, &ahead, line.seen)).await;
        until("its seat is free", async || {
            let (three, last) = join_new(&store, "a").await;
            let same = key(&store, &last) == key(&store, &place);
            leave(&store, &three, &last).await;
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
            let granted = holder.acquire(Arc::new(quick.clone()), None).await.unwrap();
            assert!(matches!(granted, Attempt::Granted(_)));
            assert_eq!(holder.release(&quick.key()).await.unwrap(), Released::Released);
        }
        let held = hold_watched(&server, &*holder, "a").await;
        // Somebody joins: whatever is told of the past is told before.
        let other = store(server.addr()).await;
        let (waits, place) = join_new(&other, "a").await;
        let first = soon("it hears of company", news.recv()).await;
        assert!(matches!(&first, Some(Event::Contended(k)) if k.req == held.req), "{first:?}");
        etcdctl(&server, &["del", &holder.proof(&held.key()).unwrap().key]).await.unwrap();
        let lost = soon("it hears of its end", news.recv()).await;
        assert!(
            matches!(&lost, Some(Event::Lost(k, LossReason::Gone)) if k.req == held.req),
            "{lost:?}"
        );
        leave(&other, &waits, &place).await;
        other.close().await;
        holder.close().await;
    });
}
