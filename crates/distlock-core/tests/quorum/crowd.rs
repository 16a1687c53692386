//! Contenders: split votes resolve, and who is next is agreed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::backend::{Attempt, Backend, Event, Released};
use distlock_core::{Clock, Locks, QueueStatus};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, waiting};

/// Answers that take a while at every node but the first: bids of several clients interleave.
fn crossed(scene: &Scene) {
    let ms = Duration::from_millis;
    scene.faults(&[Fault::None, Fault::Late(ms(1)), Fault::Late(ms(2)), Fault::Late(ms(1))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_votes_resolve_and_tokens_rise() {
    let scene = Scene::on(Clock::system(), 5);
    crossed(&scene);
    let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = scene.client().per_node(Duration::from_secs(1));
        let (locks, inside, last) = (Locks::from_store(client), inside.clone(), last.clone());
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = locks.lock("orders").await.expect("a grant");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                let before = last.swap(guard.token().get(), Ordering::SeqCst);
                assert!(guard.token().get() > before, "a token fell");
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                assert_eq!(guard.release().await.expect("an answer"), Released::Released);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("nobody finds another inside");
    }
}

#[tokio::test]
async fn the_ticket_decides_who_is_next() {
    let scene = Scene::of(5);
    let (a, b, c) = (scene.client(), scene.client(), scene.client());
    let held = waiting();
    scene.lock(&a, &held).await;
    let (first, second) = (waiting(), waiting());
    let in_line = |req| {
        let all = scene.states();
        all.iter().filter(|s| s.line.iter().any(|w| w.who.req == req && w.backed)).count()
    };
    let order = std::sync::Mutex::new(Vec::new());
    let turn = async |client: &dyn Backend, ask: &distlock_core::backend::Ask| {
        let attempt = client.acquire(Arc::new(ask.clone()), None).await.expect("an answer");
        assert!(matches!(attempt, Attempt::Granted(_)));
        order.lock().expect("unpoisoned").push(ask.req);
        let _ = client.release(&ask.key()).await.expect("an answer");
    };
    let one = turn(&b, &first);
    let two = async {
        // After the other stands in line, and asked for twice as often.
        while in_line(first.req) < 5 {
            tokio::task::yield_now().await;
        }
        turn(&c, &second).await;
    };
    let release = async {
        while in_line(second.req) < 5 {
            tokio::task::yield_now().await;
        }
        let _ = a.release(&held.key()).await.expect("an answer");
    };
    scene.run(async { tokio::join!(one, two, release) }).await;
    assert_eq!(*order.lock().expect("unpoisoned"), [first.req, second.req]);
    assert!(scene.is_empty());
}

/// The holder came through the line and keeps its place there: that makes nobody second.
#[tokio::test]
async fn the_first_behind_a_holder_is_next_and_the_holder_is_told() {
    let scene = Scene::of(3);
    let (a, b) = (scene.client(), scene.client());
    let mut news = a.events().expect("the first caller");
    let held = waiting();
    scene.lock(&a, &held).await;
    let start = scene.clock.now();
    scene.tick().await;
    let seen = std::sync::Mutex::new(Vec::new());
    let ask = waiting();
    let watch = |s: &QueueStatus| seen.lock().expect("unpoisoned").push(s.ahead);
    let attempt =
        scene.run(b.acquire(Arc::new(ask.clone()), Some(&watch))).await.expect("an answer");
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    assert_eq!(seen.into_inner().expect("unpoisoned").first(), Some(&Some(0)));
    // Nobody gave back or renewed: the lease ran out, and the next in line knew when.
    let waited = scene.clock.now().since(start);
    assert!(waited <= TTL + Duration::from_millis(20), "asked only after {waited:?}");
    assert_eq!(news.try_recv(), Ok(Event::Contended(held.key())));
}
