//! Several requests of one owner: who shares a hold, who has its own, and what a leaving one takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Backend, Kept, Released};
use distlock_core::quorum::QuorumDriver;
use distlock_core::{BootInstant, Clock, FullName, Kind, Name};
use distlock_testkit::doubles::{Fault, MemoryNode};

use crate::scene::{Scene, ask, waiting};

const SHORT: Duration = Duration::from_secs(1);

/// Two requests of one owner wait behind a holder, and the first in releases at once: the second
/// may find the hold it wanted to share gone, and bids on. What it then holds is not taken away by
/// cancels of its own earlier bids.
#[tokio::test]
async fn an_owners_second_request_keeps_what_it_holds_when_the_first_left() {
    for answer in 1..6 {
        for stays in 0..8 {
            second_keeps_its_hold(Duration::from_millis(answer), stays).await;
        }
    }
}

async fn second_keeps_its_hold(answer: Duration, stays: usize) {
    let scene = Scene::of(3);
    let (a, b) = (scene.client(), scene.client());
    let held = ask();
    scene.lock(&a, &held).await;
    let one = waiting();
    let two = Ask { owner: one.owner.clone(), ..waiting() };
    scene.faults(&[Fault::Tardy(answer); 3]);
    let granted = AtomicUsize::new(0);
    let turn = async |client: &QuorumDriver<MemoryNode>, ask: &Ask| {
        let attempt = client.acquire(Arc::new(ask.clone()), None).await.expect("an answer");
        assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
        if granted.fetch_add(1, Ordering::SeqCst) > 0 {
            return Some(ask.clone());
        }
        for _ in 0..stays {
            tokio::task::yield_now().await;
        }
        let _ = client.release(&ask.key()).await.expect("an answer");
        None
    };
    let in_line = || scene.states().iter().all(|s| s.line.iter().filter(|w| w.backed).count() == 2);
    let release = async {
        while !in_line() {
            tokio::task::yield_now().await;
        }
        let _ = a.release(&held.key()).await.expect("an answer");
    };
    let (first, second, ()) =
        scene.run(async { tokio::join!(turn(&b, &one), turn(&b, &two), release) }).await;
    let last = first.or(second).expect("one of them is the second");
    scene.faults(&[]);
    // Everything that is still owed to the nodes arrives.
    scene.until("all ends are told", || !b.owes()).await;
    let kept = scene.keep(&b, &last).await;
    assert!(matches!(kept, Kept::Until { .. }), "{answer:?}, {stays} polls: {kept:?}");
    let _ = scene.run(b.release(&last.key())).await.expect("an answer");
    scene.until("it is free", || scene.is_empty() && !b.owes()).await;
}

/// A request that is asked again on a host that was started later is no old one: its rounds are
/// numbered by what both hosts hear from the nodes.
#[tokio::test]
async fn a_request_asked_again_on_a_host_with_less_uptime_is_granted() {
    let scene = Scene::of(3);
    let (a, mine) = (scene.client(), ask());
    // Some uptime, which the other host does not have; its wall is behind, too.
    scene.clock.advance(Duration::from_secs(3600));
    scene.lock(&a, &ask_of("another")).await;
    let first = scene.lock(&a, &mine).await;
    let young = Clock::held();
    assert!(young.now() < scene.clock.now() && young.wall_micros() < scene.clock.wall_micros());
    scene.tick().await;
    let nodes = scene.nodes.iter().map(|n| n.client_on(young.clone())).collect();
    let b = QuorumDriver::new("quorum", nodes).expect("a quorum");
    let again = scene.lock(&b, &mine).await;
    assert!(again.tokens.first() > first.tokens.first());
    assert_eq!(scene.owned(mine.req), 3);
    // And what is over stays over.
    let _ = scene.run(b.release(&mine.key())).await.expect("an answer");
    for client in [&scene.client(), &b] {
        let e = scene
            .run(client.acquire(Arc::new(mine.clone()), None))
            .await
            .expect_err("it was released");
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
    }
}

fn ask_of(name: &str) -> Ask {
    let name = Name::new(name).expect("a name");
    Ask { lock: FullName { space: Default::default(), name }, ..ask() }
}

/// A request that has left the hold it shares, and is given back or undone once more, takes nothing
/// from who is still there: also when it is the one the nodes know the hold by.
#[tokio::test]
async fn leaving_twice_takes_nothing_from_who_shares_the_hold() {
    let scene = Scene::of(3);
    let (a, one) = (scene.client(), ask());
    let two = Ask { owner: one.owner.clone(), ..ask() };
    scene.lock(&a, &one).await;
    scene.lock(&a, &two).await;
    for _ in 0..2 {
        let released = scene.run(a.release(&one.key())).await.expect("an answer");
        assert_eq!(released, Released::Released);
        scene.run(a.abandon(&one.key())).await.expect("an answer");
    }
    let kept = scene.keep(&a, &two).await;
    assert!(matches!(kept, Kept::Until { .. }), "{kept:?}");
    let released = scene.run(a.release(&two.key())).await.expect("an answer");
    assert!(released == Released::Released && scene.is_empty());
}

/// Whoever has the ticket of a detached hold may end it anywhere: its owner's requests here do not
/// share it, and a hold that they share is not detached.
#[tokio::test]
async fn a_detached_hold_is_shared_with_nobody() {
    let scene = Scene::of(3);
    let (a, one) = (scene.client(), ask());
    let two = Ask { owner: one.owner.clone(), ..ask() };
    scene.lock(&a, &one).await;
    scene.lock(&a, &two).await;
    assert!(!a.detach(&one.key()), "another request shares it");
    let _ = scene.run(a.release(&two.key())).await.expect("an answer");
    assert!(a.detach(&one.key()));
    let again = scene.run(a.acquire(Arc::new(two.clone()), None)).await.expect("an answer");
    assert!(matches!(again, Attempt::Busy(_)), "{again:?}");
    let released = scene.run(a.release(&one.key())).await.expect("an answer");
    assert!(released == Released::Released && scene.is_empty());
}

/// A request that was released in order keeps its `min_hold`, whoever shared its hold: undone twice, as a
/// dropped call is, the other frees nothing.
#[tokio::test]
async fn an_undo_that_is_repeated_cuts_no_min_hold_short() {
    let scene = Scene::of(3);
    let (a, one) = (scene.client(), Ask { ttl: SHORT, ..ask() });
    let two = Ask { owner: one.owner.clone(), min_hold: SHORT * 2, ttl: SHORT, ..ask() };
    scene.lock(&a, &one).await;
    let free = scene.clock.now().plus(SHORT * 2);
    scene.lock(&a, &two).await;
    let released = scene.run(a.release(&two.key())).await.expect("an answer");
    assert_eq!(released, Released::Released);
    for _ in 0..2 {
        scene.run(a.abandon(&one.key())).await.expect("an answer");
    }
    gets_free_at(&scene, free, SHORT / 5).await;
}

/// A `min_hold` that is longer than the lease lasts also where whoever shares the hold lets it run out.
#[tokio::test]
async fn a_min_hold_outlasts_the_lease_of_who_shares_the_hold() {
    // Of the request that the nodes know, or of one that entered again.
    for (first, second) in [(SHORT * 3, Duration::ZERO), (Duration::ZERO, SHORT * 3)] {
        let scene = Scene::of(3);
        let (a, one) = (scene.client(), Ask { min_hold: first, ttl: SHORT, ..ask() });
        let two = Ask { owner: one.owner.clone(), min_hold: second, ttl: SHORT, ..ask() };
        let free = scene.clock.now().plus(SHORT * 3);
        scene.lock(&a, &one).await;
        scene.lock(&a, &two).await;
        let done = if first > second { &one } else { &two };
        let released = scene.run(a.release(&done.key())).await.expect("an answer");
        assert_eq!(released, Released::Released);
        // The other is neither renewed nor given back: it ends a lease after the last renewal.
        gets_free_at(&scene, free, SHORT + SHORT / 5).await;
    }
}

/// Somebody else gets the lock at a moment, not before and little later.
async fn gets_free_at(scene: &Scene, free: BootInstant, late: Duration) {
    let (other, next) = (scene.client(), ask());
    while !matches!(
        scene.run(other.acquire(Arc::new(next.clone()), None)).await,
        Ok(Attempt::Granted(_))
    ) {
        assert!(scene.clock.now() < free.plus(late), "it stays");
        for _ in 0..10 {
            scene.tick().await;
        }
    }
    assert!(scene.clock.now() >= free, "{:?} too early", free.since(scene.clock.now()));
}
