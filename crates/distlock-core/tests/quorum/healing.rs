//! Renewal by a majority of what was granted, and nodes that come back.

use std::time::Duration;

use distlock_core::backend::{Backend, Due, Kept, Released};
use distlock_core::{LossReason, ReqId};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, ask, name};

#[tokio::test]
async fn s23_acquired_on_three_of_five_and_renewed_on_two_is_lost() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.faults(&[Fault::Down, Fault::Down]);
    scene.lock(&client, &one).await;
    // The other two are back and free: that they could be taken must not count.
    scene.faults(&[]);
    scene.nodes[2].wipe(&name());
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Lost(LossReason::Gone)), "{kept:?}");
    // Until its holder knows of the loss, what is left of it keeps others out.
    assert_eq!(scene.owned(one.req), 2);
    client.abandon(&one.key()).await.unwrap();
    scene.until("nothing of it is left", || scene.is_empty() && !client.owes()).await;
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Lost(_)), "it came back: {kept:?}");
}

#[tokio::test]
async fn healed_nodes_count_from_the_next_round_on() {
    let scene = Scene::of(5);
    let (client, one) = (scene.client(), ask());
    scene.faults(&[Fault::Down, Fault::Down]);
    let grant = scene.lock(&client, &one).await;
    scene.faults(&[]);
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
    scene.until("all five are taken", || scene.owned(one.req) == 5).await;
    let healed = |s: &distlock_core::quorum::NodeState| s.hold.as_ref().is_some_and(|h| h.healed);
    assert_eq!(scene.states().iter().filter(|s| healed(s)).count(), 2);
    // Another round settles them: they count like the others.
    scene
        .until("the heals are known", || {
            let due = [Due { key: one.key(), ttl: TTL }];
            let mut keep = std::pin::pin!(client.keep(&due));
            let waker = std::task::Waker::noop();
            let _ = keep.as_mut().poll(&mut std::task::Context::from_waker(waker));
            scene.states().iter().all(|s| !healed(s))
        })
        .await;
    // Two of the first three restart empty, as in a rolling upgrade: the week-long holder stays.
    scene.nodes[2].lose_data(TTL);
    scene.nodes[3].lose_data(TTL);
    let kept = scene.keep(&client, &one).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
    let tokens = scene.states().into_iter().filter_map(|s| s.hold).map(|h| h.token);
    assert!(tokens.into_iter().all(|t| t == Some(grant.tokens.first())));
    assert_eq!(scene.run(client.release(&one.key())).await.expect("an answer"), Released::Released);
    scene.until("nothing is left", || scene.is_empty()).await;
}

#[tokio::test]
async fn one_renewal_call_a_node_for_all_holds() {
    let scene = Scene::of(3);
    let client = scene.client();
    let mut due = Vec::new();
    for i in 0..20 {
        let mut one = ask();
        one.lock.name = distlock_core::Name::new(format!("lock {i}")).expect("a name");
        scene.lock(&client, &one).await;
        due.push(Due { key: one.key(), ttl: TTL });
    }
    let kept = scene.run(client.keep(&due)).await;
    assert!(kept.iter().all(|k| matches!(k, Kept::Until { .. })), "{kept:?}");
    assert!(scene.nodes.iter().all(|n| n.renewals() == [20]));
}

#[tokio::test]
async fn a_ticket_takes_up_a_hold_but_not_one_that_was_lost() {
    let scene = Scene::of(5);
    let (a, b, one) = (scene.client(), scene.client(), ask());
    scene.lock(&a, &one).await;
    let kept = scene.keep(&b, &one).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
    // Three nodes lose it, and its holder's heals arrive there although it is lost.
    for node in &scene.nodes[..3] {
        node.wipe(&name());
    }
    let kept = scene.keep(&scene.client(), &one).await;
    assert!(matches!(kept, Kept::Lost(LossReason::Gone)), "two nodes are no majority: {kept:?}");
    let kept = scene.keep(&a, &one).await;
    assert!(matches!(kept, Kept::Lost(_)), "{kept:?}");
    let stranger = distlock_core::backend::Ask { req: ReqId::random(), ..ask() };
    let kept = scene.keep(&b, &stranger).await;
    assert!(matches!(kept, Kept::Lost(_)), "{kept:?}");
}

/// How long a renewal may take follows from the shortest lease of its batch: long leases are in
/// another one, and a slow node that loses the short one loses no more.
#[tokio::test]
async fn a_short_lease_takes_no_time_from_long_ones() {
    let scene = Scene::of(3);
    let client = scene.client();
    let mut due = Vec::new();
    for (i, ttl) in [TTL, TTL / 100, TTL, TTL * 2].into_iter().enumerate() {
        let mut one = ask();
        one.lock.name = distlock_core::Name::new(format!("lock {i}")).expect("a name");
        one.ttl = ttl;
        scene.lock(&client, &one).await;
        due.push(Due { key: one.key(), ttl });
    }
    scene.faults(&[Fault::Tardy(Duration::from_millis(60)); 3]);
    let kept = scene.run(client.keep(&due)).await;
    let held: Vec<bool> = kept.iter().map(|k| matches!(k, Kept::Until { .. })).collect();
    assert_eq!(held, [true, false, true, true], "{kept:?}");
}

/// Many holds are renewed by several calls: one that is late costs no more than its own answers.
#[tokio::test]
async fn many_holds_are_renewed_in_bounded_calls() {
    let scene = Scene::of(3);
    let client = scene.client();
    let mut due = Vec::new();
    for i in 0..600 {
        let mut one = ask();
        one.lock.name = distlock_core::Name::new(format!("lock {i}")).expect("a name");
        scene.lock(&client, &one).await;
        due.push(Due { key: one.key(), ttl: TTL });
    }
    let kept = scene.run(client.keep(&due)).await;
    assert!(kept.iter().all(|k| matches!(k, Kept::Until { .. })));
    assert!(scene.nodes.iter().all(|n| n.renewals() == [256, 256, 88]));
}
