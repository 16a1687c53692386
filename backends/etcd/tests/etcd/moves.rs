//! The store's moves, asked one by one.

use distlock_core::backend::{Ask, Force, Forced, Kept, Released};
use distlock_core::queue::{Joined, Proven, QueueStore};
use distlock_core::{Clock, Kind, LossReason, Outcome, Patience};
use distlock_testkit::proxy::Way;
use distlock_testkit::servers::etcdctl;

use crate::kit::{LONG, Named, ms, run, scene, server, task, timed, until};
use crate::steps::{
    ask, count, graves, is_there, join, join_new, join_unheard, keep, key, leave, patient_store,
    retire, store, take_away,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_place_that_is_gone_is_neither_proven_nor_kept", gone),
    ("a_lease_counts_from_its_keep_alive_and_not_from_a_put", from_the_keep_alive),
    ("a_lease_counts_from_before_the_question", from_before),
    ("a_cancel_without_an_answer_to_the_join_leaves_a_tombstone", tombstone),
    ("a_lease_with_many_tombstones_goes_with_them_and_with_nothing_else", retired),
    ("a_join_that_is_asked_again_stays_on_its_lease", asked_again),
    ("who_is_refused_after_an_attempt_in_doubt_is_buried", refused),
    ("a_write_that_waits_for_others_takes_no_longer_than_they", bounded),
    ("a_marked_entry_that_leaves_was_lost", marked),
];

fn gone() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (first, place) = join_new(&store, "a").await;
        is_there(&store, &first, &place).await;
        assert!(matches!(keep(&store, &first, &place).await, Kept::Until { .. }));
        // The lease lives on, as a keep-alive would say.
        take_away(&server, &store, &first, &place).await;
        let kept = keep(&store, &first, &place).await;
        assert!(matches!(kept, Kept::Lost(LossReason::Gone)), "{kept:?}");
        // Another entry at the same key is not the one that was made.
        let (second, place) = join_new(&store, "b").await;
        let key = key(&store, &place);
        etcdctl(&server, &["del", &key]).await.unwrap();
        etcdctl(&server, &["put", &key, "{}"]).await.unwrap();
        let kept = keep(&store, &second, &place).await;
        assert!(matches!(kept, Kept::Lost(LossReason::Gone)), "{kept:?}");
        let left = store.leave(&second.key(), Some(&place)).await.unwrap();
        assert_eq!(left, Released::WasLost);
        store.close().await;
    });
}

/// A leave has a fast path, which is only for an entry that nobody has written to.
fn marked() {
    run(async {
        let server = server().await;
        let (store, other) = (store(server.addr()).await, store(server.addr()).await);
        let (held, place) = join_new(&store, "a").await;
        let line = store.queue(&held.lock, &place).await.unwrap();
        let told = other.oust(&held.lock, &line.entries[0], Force::Revoke).await.unwrap();
        assert_eq!(told, Forced::Done);
        assert_eq!(store.leave(&held.key(), Some(&place)).await.unwrap(), Released::WasLost);
        assert_eq!(count(&server, "/distlock/a/").await, 0, "it left nevertheless");
        store.close().await;
        other.close().await;
    });
}

fn from_the_keep_alive() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (_, first) = join(&store, &ask("a", LONG)).await;
        Clock::system().sleep(ms(20)).await;
        let later = ask("b", LONG);
        let (place, second) = join(&store, &later).await;
        assert_eq!(second.sent, first.sent, "a put prolongs nothing");
        let Proven::Mine(proven) = store.prove(&later.key(), &place).await.unwrap() else {
            panic!("it is there")
        };
        assert_eq!(proven.sent, first.sent, "nor does a proof");
        let Kept::Until { lease, .. } = keep(&store, &later, &place).await else {
            panic!("it is there")
        };
        assert!(lease.sent.boot > first.sent.boot, "a keep-alive does");
        store.close().await;
    });
}

fn from_before() {
    run(async {
        let (_server, proxy) = scene().await;
        let store = patient_store(proxy.addr()).await;
        let slow = ms(1000);
        proxy.delay(slow);
        let began = Clock::system().now();
        let one = ask("a", LONG);
        let (place, lease) = join(&store, &one).await;
        assert!(lease.sent.boot.since(began) < slow, "the grant was not there yet");
        let began = Clock::system().now();
        let Kept::Until { lease, .. } = keep(&store, &one, &place).await else {
            panic!("it is there")
        };
        assert!(lease.sent.boot.since(began) < slow, "the keep-alive was not there yet");
        store.close().await;
    });
}

fn tombstone() {
    run(async {
        let (server, proxy) = scene().await;
        let store = store(proxy.addr()).await;
        join_new(&store, "warm").await;
        let late = join_unheard(&store, &proxy, "a").await;
        assert_eq!(graves(&server).await, 1);
        assert_eq!(count(&server, "/distlock/a/").await, 0);
        assert!(matches!(store.join(&late).await.unwrap(), Joined::Tombstoned));
        // An answered join needs none.
        let (plain, place) = join_new(&store, "a").await;
        leave(&store, &plain, &place).await;
        assert_eq!(graves(&server).await, 1);
        store.close().await;
    });
}

/// Tombstones do not pile up, and what lives beside them on the lease outlives it.
fn retired() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (kept, place) = join_new(&store, "kept").await;
        retire(&store, "a").await;
        let many = graves(&server).await;
        assert!(many > 200, "{many}");
        assert!(matches!(keep(&store, &kept, &place).await, Kept::Until { .. }));
        leave(&store, &kept, &place).await;
        until("the first lease and its tombstones are gone", async || {
            graves(&server).await < many / 2
        })
        .await;
        store.close().await;
    });
}

/// The lease it says it is good for must be the one that its entry is on.
fn asked_again() {
    run(async {
        let (server, proxy) = scene().await;
        let store = store(proxy.addr()).await;
        let (_, first) = join(&store, &ask("warm", LONG)).await;
        let twice = ask("a", LONG);
        proxy.cut(Way::Replies);
        let e = store.join(&twice).await.map(drop).unwrap_err();
        assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
        proxy.heal();
        retire(&store, "b").await;
        let (_, later) = join(&store, &ask("warm too", LONG)).await;
        assert!(later.sent.boot > first.sent.boot, "what is new goes on another lease");
        let (place, lease) = join(&store, &twice).await;
        assert_eq!(lease.sent, first.sent);
        assert_eq!(count(&server, "/distlock/a/").await, 1);
        assert_eq!(count(&server, &key(&store, &place)).await, 1);
        store.close().await;
    });
}

/// Its first attempt may arrive when the line is empty, and nobody would know of it.
fn refused() {
    run(async {
        let (server, proxy) = scene().await;
        let (holder, store) = (store(server.addr()).await, store(proxy.addr()).await);
        let (held, place) = join_new(&holder, "a").await;
        join_new(&store, "warm").await;
        let once = Ask { patience: Patience::Never, ..ask("a", LONG) };
        proxy.cut(Way::Requests);
        let e = store.join(&once).await.map(drop).unwrap_err();
        assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
        proxy.heal();
        assert!(matches!(store.join(&once).await.unwrap(), Joined::Refused(_)));
        assert_eq!(count(&server, &format!("/distlock/:gone/{}", once.req)).await, 1);
        // One that was answered at once needs no tombstone.
        let plain = Ask { patience: Patience::Never, ..ask("a", LONG) };
        assert!(matches!(store.join(&plain).await.unwrap(), Joined::Refused(_)));
        assert_eq!(graves(&server).await, 1);
        leave(&holder, &held, &place).await;
        store.close().await;
        holder.close().await;
    });
}

/// Many at once: some are sent, and the others wait to go together.
fn bounded() {
    run(async {
        let (_server, proxy) = scene().await;
        let store = std::sync::Arc::new(store(proxy.addr()).await);
        join_new(&store, "warm").await;
        proxy.cut_both();
        let one = |n: usize| {
            let store = store.clone();
            task(async move {
                let ask = ask(&format!("a{n}"), LONG);
                timed(async { store.join(&ask).await.map(drop) }).await
            })
        };
        let all: Vec<_> = (0..60).map(one).collect();
        for call in all {
            let (took, end) = call.await.unwrap();
            assert_eq!(end.unwrap_err().kind(), Kind::Unreachable);
            // Five seconds, where a second wait would make it ten.
            assert!(took < ms(8500), "{took:?}");
        }
        proxy.heal();
        store.close().await;
    });
}
