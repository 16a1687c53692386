//! Several requests of one owner: who shares a hold, who has its own, and what a leaving one takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::quorum::{Fault, MemoryNode, Quorum};
use distlock_core::seam::{Ask, Attempt, Backend, Kept};

use crate::scene::{Scene, ask, waiting};

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
    let turn = async |client: &Quorum<MemoryNode>, ask: &Ask| {
        let attempt = client.acquire(ask, None).await.expect("an answer");
        assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
        if granted.fetch_add(1, Ordering::SeqCst) > 0 {
            return Some(ask.clone());
        }
        for _ in 0..stays {
            tokio::task::yield_now().await;
        }
        let _ = client.release(&ask.key(), None).await.expect("an answer");
        None
    };
    let in_line = || scene.states().iter().all(|s| s.line.iter().filter(|w| w.backed).count() == 2);
    let release = async {
        while !in_line() {
            tokio::task::yield_now().await;
        }
        let _ = a.release(&held.key(), None).await.expect("an answer");
    };
    let (first, second, ()) =
        scene.run(async { tokio::join!(turn(&b, &one), turn(&b, &two), release) }).await;
    let last = first.or(second).expect("one of them is the second");
    scene.faults(&[]);
    // Everything that is still owed to the nodes arrives.
    scene.until("all ends are told", || !b.owes()).await;
    let kept = scene.keep(&b, &last).await;
    assert!(matches!(kept, Kept::Until { .. }), "{answer:?}, {stays} polls: {kept:?}");
    let _ = scene.run(b.release(&last.key(), None)).await.expect("an answer");
    scene.until("it is free", || scene.is_empty() && !b.owes()).await;
}
