//! The wall clock is a second witness for the quorum, too: its nodes' time runs on while this
//! machine is paused.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Backend, Kept};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, ask, poll_once};

const MS: Duration = Duration::from_millis(1);
/// All that may be believed of a lease, in seconds: ten percent are for drifting clocks.
const BELIEVED: i64 = 9;

/// Sends a bid that is served at once, and pauses this machine before it sees the answers. Only
/// the wall shows that.
async fn paused(scene: &Scene, seconds: i64) -> (Attempt, u64) {
    let (client, one) = (scene.client(), ask());
    scene.faults(&[Fault::Tardy(MS); 5]);
    let mut acquire = pin!(client.acquire(Arc::new(one.clone()), None));
    assert!(poll_once(acquire.as_mut()).await.is_none(), "the answers are under way");
    let proposal = scene.clock.wall_micros();
    scene.clock.step_wall(seconds);
    scene.faults(&[]);
    (scene.run(acquire).await.expect("an answer"), proposal)
}

#[tokio::test]
async fn a_pause_that_only_the_wall_shows_is_no_grant() {
    let scene = Scene::of(5);
    let before = scene.clock.reading().wall;
    let (attempt, _) = paused(&scene, BELIEVED).await;
    // Nobody is in the way, so another bid is sent: only its own time counts.
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    let pause = Duration::from_secs(BELIEVED.unsigned_abs());
    assert!(grant.lease.sent.wall >= before.map(|w| w + pause), "the pause was not counted");
    assert_eq!(scene.owned(grant.req), 5);
}

#[tokio::test]
async fn after_half_a_lease_by_the_wall_the_token_is_written_back() {
    let scene = Scene::of(5);
    let (attempt, proposal) = paused(&scene, 6).await;
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    let token = grant.tokens.first().get();
    assert!(token > proposal, "the proposal was believed");
    assert!(scene.states().iter().filter(|s| s.hi == token).count() >= 3);
    assert!(
        grant.lease.until().left(scene.clock.reading()) <= TTL * 3 / 10,
        "counted from the bid"
    );
}

#[tokio::test]
async fn a_replay_does_not_forget_a_step() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    let first = scene.lock(&client, &one).await;
    scene.clock.step_wall(5);
    let left = first.lease.until().left(scene.clock.reading());
    let again = scene.lock(&client, &one).await;
    assert_eq!(again.tokens, first.tokens);
    assert!(again.lease.until().left(scene.clock.reading()) <= left, "the step was forgotten");
    // Over by the wall, it is not replayed, and not entered again without asking.
    scene.clock.step_wall(BELIEVED - 5);
    let calls = || scene.nodes.iter().map(|n| n.calls()).sum::<u64>();
    let before = calls();
    let third = scene.try_lock(&client, &one).await.expect("an answer");
    assert!(calls() > before, "granted from memory: {third:?}");
}

#[tokio::test]
async fn what_is_over_by_the_wall_is_not_entered_again() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.lock(&client, &one).await;
    let nested = || Ask { owner: one.owner.clone(), ..ask() };
    scene.clock.step_wall(BELIEVED - 1);
    scene.lock(&client, &nested()).await;
    scene.clock.step_wall(BELIEVED);
    let entered = scene.try_lock(&client, &nested()).await.expect("an answer");
    assert!(entered.is_err(), "its holder has been told that it is lost: {entered:?}");
}

#[tokio::test]
async fn a_renewal_starts_both_clocks_anew() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.lock(&client, &one).await;
    for _ in 0..4 {
        scene.clock.step_wall(5);
        let Kept::Until { lease, .. } = scene.keep(&client, &one).await else { panic!("not kept") };
        let left = lease.left(scene.clock.reading());
        assert!(left > Duration::from_secs(8), "{left:?}");
        let nested = Ask { owner: one.owner.clone(), ..ask() };
        let entered = scene.lock(&client, &nested).await;
        assert!(entered.lease.until().left(scene.clock.reading()) > Duration::from_secs(8));
    }
}
