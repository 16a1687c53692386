//! What fails, or wins early, leaves nothing anywhere (S24); who restarts empty lets nobody in (S25).

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Attempt, Backend, Released};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, ask, poll_once};

#[tokio::test]
async fn s24_a_failed_acquire_is_removed_from_all_nodes() {
    let scene = Scene::of(5);
    let (a, b) = (scene.client(), scene.client());
    scene.faults(&[Fault::Down, Fault::Down]);
    let held = ask();
    scene.lock(&a, &held).await;
    // Free at two nodes, where the next bid is granted; one of them serves it without an answer.
    for fault in [Fault::None, Fault::Mute, Fault::Late(Duration::from_millis(120))] {
        scene.faults(&[Fault::None, fault]);
        let failed = ask();
        let busy = scene.try_lock(&b, &failed).await.expect("an answer").expect_err("it is held");
        assert_eq!(busy.holder.expect("a holder").owner, held.owner);
        assert_eq!(scene.nodes[0].peek(&held.lock).hold, None, "{fault:?}");
        scene.faults(&[]);
        let gone = || scene.owned(failed.req) == 0 && !b.owes();
        scene.until("the stragglers are told", gone).await;
        // Whatever is still under way finds the tombstone.
        scene.clock.advance(Duration::from_millis(500));
        let spent = |n: &distlock_testkit::doubles::MemoryNode| {
            n.peek(&held.lock).tombstones.iter().any(|s| s.req == failed.req)
        };
        assert!(scene.nodes[..2].iter().all(spent), "{fault:?}");
    }
    assert_eq!(scene.owned(held.req), 3, "the holder is not touched");
}

#[tokio::test]
async fn s24_an_undo_that_did_not_arrive_is_repeated() {
    let scene = Scene::of(5);
    let (a, b) = (scene.client(), scene.client());
    scene.faults(&[Fault::Down, Fault::Down]);
    scene.lock(&a, &ask()).await;
    // The node grants, is cut off before it can answer, and hears nothing of the undo.
    scene.faults(&[Fault::Mute]);
    let (failed, start) = (ask(), scene.clock.now());
    let mut acquire = std::pin::pin!(b.acquire(Arc::new(failed.clone()), None));
    assert!(poll_once(acquire.as_mut()).await.is_none(), "one answer is missing");
    scene.faults(&[Fault::Silent]);
    let attempt = scene.run(acquire).await.expect("an answer");
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    assert_eq!(scene.owned(failed.req), 1);
    scene.faults(&[]);
    scene.until("the undo is repeated", || scene.owned(failed.req) == 0).await;
    assert!(scene.clock.now().since(start) < TTL / 2, "left to its lease");
}

#[tokio::test]
async fn s24_an_early_win_is_released_at_stragglers_too() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    let late = Fault::Late(Duration::from_millis(40));
    scene.faults(&[late, late]);
    let start = scene.clock.now();
    scene.lock(&client, &one).await;
    let took = scene.clock.now().since(start);
    assert!(took < Duration::from_millis(40), "waited for the stragglers: {took:?}");
    let released = scene.run(client.release(&one.key())).await.expect("an answer");
    assert_eq!(released, Released::Released);
    scene.faults(&[]);
    scene.until("the stragglers are told", || !client.owes()).await;
    scene.clock.advance(Duration::from_millis(100));
    scene.until("nothing is left", || scene.is_empty()).await;
    let spent =
        |s: &distlock_core::quorum::NodeState| s.tombstones.iter().any(|s| s.req == one.req);
    assert!(scene.states().iter().all(spent), "a late bid would be granted");
}

#[tokio::test]
async fn s25_a_node_that_restarts_empty_lets_nobody_in() {
    let scene = Scene::of(3);
    let (a, b) = (scene.client(), scene.client());
    scene.faults(&[Fault::Down]);
    let held = ask();
    let grant = scene.lock(&a, &held).await;
    scene.faults(&[]);
    scene.nodes[1].lose_data(TTL);
    // One node is free and one has forgotten: only its quarantine keeps the second holder out.
    while scene.clock.now() < grant.deadline() {
        let refused = scene.try_lock(&b, &ask()).await.expect("an answer");
        assert!(refused.is_err(), "a second holder after {:?}", scene.clock.now());
        scene.clock.advance(TTL / 20);
    }
    scene.clock.advance(TTL);
    let next = scene.lock(&b, &ask()).await;
    assert!(next.tokens.first() > grant.tokens.first());
}

#[tokio::test]
async fn s25_without_a_quarantine_the_second_holder_gets_in_with_a_higher_token() {
    let scene = Scene::of(3);
    let (a, b) = (scene.client(), scene.client());
    scene.faults(&[Fault::Down]);
    let grant = scene.lock(&a, &ask()).await;
    scene.faults(&[]);
    scene.nodes[1].lose_data(Duration::ZERO);
    scene.clock.advance(Duration::from_millis(1));
    let second = scene.lock(&b, &ask()).await;
    assert!(scene.clock.now() < grant.deadline(), "while the first is valid");
    assert!(second.tokens.first() > grant.tokens.first(), "but the clock's fence tells them apart");
}
