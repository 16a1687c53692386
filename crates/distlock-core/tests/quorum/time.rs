//! What counts is what is left after the last answer, from before the first question.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Attempt, Backend};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, ask, name, poll_once};

const MS: Duration = Duration::from_millis(1);

/// Sends a bid that is served at once, and stops the client for a while before it sees the answers.
async fn paused(scene: &Scene, pause: Duration, meanwhile: impl Fn()) -> (Attempt, u64) {
    let (client, one) = (scene.client(), ask());
    scene.faults(&[Fault::Tardy(MS); 5]);
    let mut acquire = pin!(client.acquire(Arc::new(one.clone()), None));
    assert!(poll_once(acquire.as_mut()).await.is_none(), "the answers are under way");
    let proposal = scene.clock.wall_micros();
    meanwhile();
    scene.clock.advance(pause);
    scene.faults(&[]);
    (scene.run(acquire).await.expect("an answer"), proposal)
}

#[tokio::test]
async fn a_pause_that_eats_the_lease_is_no_grant() {
    let scene = Scene::of(5);
    let start = scene.clock.now();
    let (attempt, proposal) = paused(&scene, TTL * 9 / 10, || {}).await;
    // Nobody is in the way, so another bid is sent: only its own time counts.
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    assert!(grant.lease.sent.boot >= start.plus(TTL * 9 / 10), "the pause was not counted");
    assert!(grant.tokens.first().get() > proposal);
    assert_eq!(scene.owned(grant.req), 5);
}

#[tokio::test]
async fn after_half_a_lease_the_token_is_written_back() {
    let scene = Scene::of(5);
    let (attempt, proposal) = paused(&scene, TTL * 6 / 10, || {}).await;
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    assert!(grant.deadline() <= scene.clock.now().plus(TTL * 4 / 10));
    let token = grant.tokens.first().get();
    assert!(token > proposal, "the proposal was believed after {:?}", TTL * 6 / 10);
    assert!(scene.states().iter().filter(|s| s.hi == token).count() >= 3);
}

#[tokio::test]
async fn a_connection_made_anew_meanwhile_is_not_believed() {
    let scene = Scene::of(5);
    let before = scene.clock.wall_micros();
    let restart = || scene.nodes[4].lose_data(Duration::ZERO);
    let (attempt, proposal) = paused(&scene, MS, restart).await;
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    assert!(proposal >= before && grant.tokens.first().get() > proposal);
    // And without: one round trip, the proposal itself.
    let scene = Scene::of(5);
    let (attempt, proposal) = paused(&scene, MS, || {}).await;
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    assert_eq!(grant.tokens.first().get(), proposal);
}

#[tokio::test]
async fn deadlines_count_from_before_the_first_bid() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.faults(&[Fault::Late(MS * 30); 5]);
    let start = scene.clock.now();
    let grant = scene.lock(&client, &one).await;
    assert!(scene.clock.now().since(start) >= MS * 30);
    assert_eq!(grant.lease.sent.boot, start);
    assert!(grant.deadline() <= start.plus(TTL * 9 / 10), "ten percent for drifting clocks");
}

#[tokio::test]
async fn nodes_with_clocks_apart_still_agree_on_rising_tokens() {
    let scene = Scene::of(5);
    let hour = 3_600_000_000;
    for (node, skew) in scene.nodes.iter().zip([0, hour, -hour, hour, hour]) {
        node.skew(skew);
    }
    let (a, b) = (scene.client(), scene.client());
    let mut last = 0;
    for i in 0..6 {
        let (client, one) = (if i % 2 == 0 { &a } else { &b }, ask());
        let grant = scene.lock(client, &one).await;
        let token = grant.tokens.first().get();
        assert!(token > last);
        last = token;
        let _ = scene.run(client.release(&one.key())).await.expect("an answer");
        scene.clock.advance(MS);
    }
    // Known by now: most nodes are an hour ahead, and proposals with them.
    let one = ask();
    let calls: u64 = scene.nodes.iter().map(|n| n.calls()).sum();
    scene.lock(&a, &one).await;
    let spent: u64 = scene.nodes.iter().map(|n| n.calls()).sum::<u64>() - calls;
    assert_eq!(spent, 5, "one round trip");
    assert!(scene.states().iter().all(|s| s.hold.is_some()), "{:?}", name());
}
