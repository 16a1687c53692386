//! An acquire dropped anywhere leaves nothing once it was abandoned.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, ask, poll_once, waiting};

async fn dropped_at_every_poll(held: bool, make: fn() -> Ask) {
    for polls in 0..12 {
        let scene = Scene::of(3);
        let (a, b) = (scene.client(), scene.client());
        let first = ask();
        if held {
            scene.lock(&a, &first).await;
        }
        let late = Fault::Late(Duration::from_millis(2));
        scene.faults(&[late, Fault::None, late]);
        let one = make();
        {
            let mut acquire = pin!(b.acquire(Arc::new(one.clone()), None));
            for _ in 0..polls {
                if poll_once(acquire.as_mut()).await.is_some() {
                    break;
                }
                scene.tick().await;
            }
        }
        scene.run(b.abandon(&one.key())).await.expect("a majority acknowledges");
        scene.faults(&[]);
        let left = || {
            let in_line =
                |s: &distlock_core::quorum::NodeState| s.line.iter().any(|w| w.who.req == one.req);
            scene.owned(one.req) > 0 || scene.states().iter().any(in_line)
        };
        scene.until("it is undone everywhere", || !left() && !b.owes()).await;
        // Bids still under way arrive, and find that it is over.
        for _ in 0..20 {
            scene.tick().await;
        }
        assert!(!left(), "after {polls} polls");
        assert_eq!(scene.owned(first.req), if held { 3 } else { 0 });
    }
}

#[tokio::test]
async fn dropped_at_every_poll_of_a_free_lock() {
    dropped_at_every_poll(false, ask).await;
}

#[tokio::test]
async fn dropped_at_every_poll_of_a_held_lock() {
    dropped_at_every_poll(true, ask).await;
}

#[tokio::test]
async fn dropped_at_every_poll_of_a_wait() {
    dropped_at_every_poll(true, waiting).await;
}

/// When a request is undone before it was granted, nobody knows how long its lease is. A node that is
/// away meanwhile is told when it is back, also after longer than most leases last.
#[tokio::test]
async fn a_node_that_was_away_is_told_of_a_request_with_a_long_lease() {
    let scene = Scene::of(3);
    let client = scene.client();
    let one = Ask { ttl: Duration::from_secs(100), ..ask() };
    let late = Fault::Late(Duration::from_millis(2));
    scene.faults(&[late, late]);
    assert!(poll_once(pin!(client.acquire(Arc::new(one.clone()), None))).await.is_none());
    assert_eq!(scene.owned(one.req), 1);
    scene.faults(&[Fault::None, Fault::None, Fault::Down]);
    scene.run(client.abandon(&one.key())).await.expect("a majority acknowledges");
    for _ in 0..30 {
        scene.clock.advance(Duration::from_secs(1));
        scene.tick().await;
    }
    assert_eq!(scene.owned(one.req), 1, "the node was to be away");
    scene.faults(&[]);
    scene.until("it is undone everywhere", || scene.owned(one.req) == 0).await;
}
