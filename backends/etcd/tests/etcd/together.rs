//! Writes that go together, where one of them cannot have what it wants.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use distlock_core::backend::{Ask, Force, Forced, Released};
use distlock_core::queue::{Joined, QueueStore};
use distlock_etcd::{Etcd, EtcdEntry};
use futures_util::FutureExt;
use futures_util::future::join_all;

use crate::kit::{LONG, Named, client, run, scene, server, soon, task, until};
use crate::steps::{ask, count, graves, join_new, patient_store, store};

pub(crate) const TRIALS: &[Named] = &[
    ("one_that_is_taken_keeps_nobody_from_his_own", taken),
    ("one_that_was_marked_is_lost_and_the_others_are_given_back", marked),
    ("those_whose_answer_was_lost_together_are_in_line_once_and_leave_for_good", answer_lost),
    ("who_was_told_and_does_not_run_keeps_nobody_waiting", does_not_run),
];

/// The first two of many go by themselves, and the others together.
const ALONE: usize = 2;
const MANY: usize = 40;

fn asks() -> Vec<Ask> {
    (0..MANY).map(|n| ask(&format!("a{n}"), LONG)).collect()
}

/// Joins all at once; for each its place, and whether it is the first in line.
async fn join_many(store: &Etcd, asks: &[Ask]) -> Vec<(EtcdEntry, bool)> {
    let joined = join_all(asks.iter().map(|ask| store.join(ask))).await;
    let places = joined.into_iter().map(|joined| match joined.unwrap() {
        Joined::In { place, queue: line, .. } => {
            let first = line.entries[0].token == store.token(&place);
            (place, first)
        }
        _ => panic!("not in line"),
    });
    places.collect()
}

async fn leave_many(store: &Etcd, asks: &[Ask], places: &[(EtcdEntry, bool)]) -> Vec<Released> {
    let leave = asks
        .iter()
        .zip(places)
        .map(async |(ask, (place, _))| store.leave(&ask.key(), Some(place)).await.unwrap());
    join_all(leave).await
}

fn taken() {
    run(async {
        let server = server().await;
        let (store, other) = (store(server.addr()).await, store(server.addr()).await);
        join_new(&store, "warm").await;
        let (theirs, held) = join_new(&other, "a7").await;
        // The first time it is not expected. Then all go as they are for a while, and then all but that
        // one go open again: that makes no difference to anybody.
        for round in 0..12 {
            let asks = asks();
            let places = join_many(&store, &asks).await;
            let first: Vec<bool> = places.iter().map(|(_, first)| *first).collect();
            assert_eq!(first, (0..MANY).map(|n| n != 7).collect::<Vec<_>>());
            let revision = |(place, _): &(EtcdEntry, bool)| store.proof(place).unwrap().version;
            let parties: BTreeSet<_> = places[ALONE..].iter().map(revision).collect();
            // Later what is told of the round before may still be under way.
            assert!(parties.len() == 1 || round > 0, "all of them go together: {parties:?}");
            let left = leave_many(&store, &asks, &places).await;
            assert!(left.iter().all(|left| *left == Released::Released), "{left:?}");
        }
        assert_eq!(count(&server, "/distlock/a").await, 1, "theirs");
        let left = other.leave(&theirs.key(), Some(&held)).await.unwrap();
        assert_eq!(left, Released::Released);
        store.close().await;
        other.close().await;
    });
}

fn marked() {
    run(async {
        let server = server().await;
        let (store, other) = (store(server.addr()).await, store(server.addr()).await);
        join_new(&store, "warm").await;
        let asks = asks();
        let places = join_many(&store, &asks).await;
        let line = store.queue(&asks[9].lock, &places[9].0).await.unwrap();
        let told = other.oust(&asks[9].lock, &line.entries[0], Force::Revoke).await.unwrap();
        assert_eq!(told, Forced::Done);
        let left = leave_many(&store, &asks, &places).await;
        for (n, left) in left.into_iter().enumerate() {
            assert_eq!(left == Released::Released, n != 9, "{n}: {left:?}");
        }
        assert_eq!(count(&server, "/distlock/a").await, 0, "all have left");
        store.close().await;
        other.close().await;
    });
}

/// The transaction took effect, and nobody heard. Asked again, it finds its own entries, and knows
/// that a third may arrive.
fn answer_lost() {
    run(async {
        let (server, proxy) = scene().await;
        let store = Arc::new(patient_store(proxy.addr()).await);
        let look = client(&server).await;
        join_new(&store, "warm").await;
        let asks = Arc::new(asks());
        // As slow as a connection may be that is not taken for a silent one.
        proxy.delay(std::time::Duration::from_millis(800));
        let joining = {
            let (store, asks) = (store.clone(), asks.clone());
            task(async move { join_many(&store, &asks).await })
        };
        let last = format!("a{}", MANY - 1);
        until("all are there", async || look.show(&last).await.unwrap().is_some()).await;
        proxy.heal();
        proxy.reset();
        let places = soon("they are in line", joining).await.unwrap();
        assert!(places.iter().all(|(_, first)| *first));
        assert_eq!(count(&server, "/distlock/a").await, MANY);
        let left = leave_many(&store, &asks, &places).await;
        assert!(left.iter().all(|left| *left == Released::Released), "{left:?}");
        assert_eq!(count(&server, "/distlock/a").await, 0);
        assert_eq!(graves(&server).await, MANY - ALONE);
        store.close().await;
    });
}

fn does_not_run() {
    run(async {
        let server = server().await;
        let store = patient_store(server.addr()).await;
        join_new(&store, "warm").await;
        let asks = asks();
        let (some, stuck) = asks.split_at(MANY - 1);
        let mut all = pin!(join_many(&store, some));
        assert!(all.as_mut().now_or_never().is_none());
        // It goes with the others, and never looks at its answer.
        let mut stuck = pin!(store.join(&stuck[0]));
        assert!(stuck.as_mut().now_or_never().is_none());
        soon("they are in line", all).await;
        let (late, place) = soon("one more", join_new(&store, "late")).await;
        let left = soon("it leaves", store.leave(&late.key(), Some(&place))).await.unwrap();
        assert_eq!(left, Released::Released);
        assert_eq!(count(&server, "/distlock/a").await, MANY);
        store.close().await;
    });
}
