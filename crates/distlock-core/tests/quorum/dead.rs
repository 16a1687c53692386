//! Dead nodes: a minority costs little, a majority ends everything.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Attempt, Backend, Kept, Released};
use distlock_core::quorum::QuorumDriver;
use distlock_core::{Clock, Kind, Locks, LossReason, Patience};
use distlock_testkit::doubles::{Fault, MemoryNode};

use crate::scene::{Scene, TTL, ask};

const DEAD: [Fault; 2] = [Fault::Down, Fault::Silent];

#[tokio::test]
async fn five_nodes_with_two_dead_still_lock() {
    for fault in DEAD {
        let scene = Scene::of(5);
        let client = scene.client();
        scene.faults(&[fault, fault]);
        let start = scene.clock.now();
        let first = ask();
        let grant = scene.lock(&client, &first).await;
        assert_eq!(scene.owned(first.req), 3);
        let released = scene.run(client.release(&first.key())).await.expect("an answer");
        assert_eq!(released, Released::Released);
        let took = scene.clock.now().since(start);
        assert!(took <= Duration::from_millis(55), "{fault:?}: {took:?}");
        // From now on nobody waits for them.
        let start = scene.clock.now();
        let second = ask();
        let next = scene.lock(&client, &second).await;
        assert!(next.tokens.first() > grant.tokens.first());
        let released = scene.run(client.release(&second.key())).await.expect("an answer");
        assert_eq!(released, Released::Released);
        assert_eq!(scene.clock.now().since(start), Duration::ZERO, "{fault:?}");
    }
}

#[tokio::test]
async fn with_three_of_five_dead_nobody_is_granted() {
    for fault in [Fault::Down, Fault::Silent, Fault::Mute] {
        let scene = Scene::of(5);
        let client = scene.client();
        scene.faults(&[fault; 3]);
        let (one, start) = (ask(), scene.clock.now());
        let e = scene.try_lock(&client, &one).await.expect_err("too few nodes");
        // Fifty milliseconds for the bid and as many for its undo.
        let took = scene.clock.now().since(start);
        assert!(took <= Duration::from_millis(105), "{fault:?}: {took:?}");
        assert_eq!(e.kind(), Kind::Unreachable);
        assert!(e.hint().is_some() && e.to_string().contains("2 of 5"), "{e}");
        // Also not what waits, which says so when its place cannot be kept any longer.
        let mut two = ask();
        two.patience = Patience::Forever;
        let e = scene
            .run(client.acquire(Arc::new(two.clone()), None))
            .await
            .expect_err("too few nodes");
        assert_eq!(e.kind(), Kind::Unreachable);
        scene.faults(&[]);
        scene.until("all of it is undone", || scene.is_empty() && !client.owes()).await;
    }
}

#[tokio::test]
async fn a_holder_is_told_within_its_ttl_when_a_majority_dies() {
    let scene = Scene::of(5);
    let locks = Locks::from_store(scene.client());
    let guard = scene.run(locks.lock("orders").ttl(TTL).acquire()).await.expect("a grant");
    let start = scene.clock.now();
    scene.faults(&[Fault::Silent, Fault::Down, Fault::Silent]);
    scene.clock.advance(TTL * 9 / 10);
    let lost = guard.check().expect_err("its deadline is over");
    assert_eq!(lost.why, LossReason::Expired);
    scene.run(guard.lost()).await;
    assert!(scene.clock.now().since(start) <= TTL, "told after the nodes gave it up");
}

#[tokio::test]
async fn no_answer_is_no_loss_and_no_renewal() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.lock(&client, &one).await;
    scene.faults(&[Fault::Silent; 3]);
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Unknown(_)), "{kept:?}");
    scene.faults(&[Fault::Silent; 2]);
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
}

#[test]
fn an_even_number_of_nodes_or_one_is_no_quorum() {
    for n in [0, 1, 2, 4, 6, 64] {
        let node = |i| MemoryNode::new(format!("node{i}"), Clock::held());
        let Err(e) = QuorumDriver::new("q", (0..n).map(node).collect()) else {
            panic!("{n} accepted")
        };
        assert!(e.kind() == Kind::Usage && e.hint().is_some());
    }
}

#[tokio::test]
async fn the_textbook_recipe_locks_by_majority_without_ordered_tokens() {
    let clock = Clock::held();
    let nodes: Vec<_> = (0..5).map(|i| MemoryNode::plain(format!("n{i}"), clock.clone())).collect();
    let scene = Scene { clock, nodes };
    let (a, b) = (scene.client(), scene.client());
    assert_eq!(a.capability().fence, distlock_core::Fence::Unordered);
    scene.faults(&[Fault::Down, Fault::Silent]);
    let (one, two) = (ask(), ask());
    scene.lock(&a, &one).await;
    assert!(scene.try_lock(&b, &two).await.expect("an answer").is_err());
    let kept = scene.keep(&a, &one).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
    assert_eq!(scene.run(a.release(&one.key())).await.expect("an answer"), Released::Released);
    let mut three = ask();
    three.patience = Patience::For(Duration::from_secs(1));
    let attempt = scene.run(b.acquire(Arc::new(three.clone()), None)).await.expect("an answer");
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
}

/// The last node to be looked at, so that the others make a majority before its answer counts.
#[tokio::test]
async fn a_node_that_answers_again_is_counted_on_again() {
    let scene = Scene::of(3);
    let client = scene.client();
    scene.faults(&[Fault::None, Fault::None, Fault::Down]);
    let one = ask();
    scene.lock(&client, &one).await;
    let _ = scene.run(client.release(&one.key())).await.expect("an answer");
    assert!(client.owes());
    scene.faults(&[]);
    scene.until("it has been told", || !client.owes()).await;
    let two = ask();
    scene.lock(&client, &two).await;
    let _ = scene.run(client.release(&two.key())).await.expect("an answer");
    assert!(!client.owes(), "told once more in the background, like a dead one");
}
