//! A lock of a queue store that is handed on inside a process: tokens, an operator, whoever waits
//! elsewhere, and a session that ends.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Force, Forced, Grant, Released};
use distlock_core::queue::QueueDriver;
use distlock_core::{Error, Guard, Locks, LossReason, Token};
use distlock_testkit::wait::task;
use tokio::task::JoinHandle;

use crate::scene::{Scene, TTL, ask, name, waiting};

fn block(n: u32) -> Ask {
    Ask { block: NonZeroU32::new(n).expect("some"), ..ask() }
}

fn last(grant: &Grant) -> Token {
    Token::new(grant.tokens.first().get() + u64::from(grant.tokens.len().get()) - 1)
        .expect("a token")
}

/// Tasks that ask in turn.
async fn crowd(scene: &Scene, locks: &Locks, n: usize) -> Vec<JoinHandle<Result<Guard, Error>>> {
    let tasks = (0..n).map(|_| task(locks.lock("orders").ttl(TTL).acquire())).collect();
    scene.tick().await;
    tasks
}

#[tokio::test]
async fn a_grant_has_the_tokens_it_was_asked_for_as_far_as_there_is_room() {
    let scene = Scene::new();
    let client = scene.client();
    let some = block(1024);
    let grant = scene.lock(&client, &some).await;
    assert_eq!(grant.tokens.len().get(), 1024);
    assert_eq!(scene.lock(&client, &some).await.tokens, grant.tokens, "the same grant again");
    assert_eq!(
        scene.run(client.release(&some.key())).await.expect("an answer"),
        Released::Released
    );
    let next = scene.lock(&client, &block(u32::MAX)).await;
    assert_eq!(next.tokens.len().get(), 1 << 16);
    assert!(next.tokens.first() > last(&grant));
}

#[tokio::test]
async fn any_token_of_a_grant_takes_it_away_and_none_of_another_does() {
    let scene = Scene::new();
    let client = scene.client();
    let (first, second, third) = (block(1024), block(1024), waiting());
    let earlier = scene.lock(&client, &first).await;
    let _ = scene.run(client.release(&first.key())).await.expect("an answer");
    let grant = scene.lock(&client, &second).await;
    let _waits = scene.stands(&client, &third).await;
    let waiter = scene.store.peek(&name()).entries[1].token;
    let force = async |token| {
        let lock = name();
        scene.run(client.force(&lock, Some(token), Force::Now)).await.expect("an answer")
    };
    let later = Token::new(waiter.get() + 5).expect("a token");
    for token in [earlier.tokens.first(), last(&earlier), waiter, later] {
        assert_eq!(force(token).await, Forced::NoMatch, "{token} of another grant");
    }
    assert_eq!(scene.line(), [second.req, third.req]);
    assert_eq!(force(last(&grant)).await, Forced::Done);
    assert_eq!(scene.line(), [third.req]);
}

/// Time stands still for a holder until the scene lets it run: some of the crowd are served, and then
/// somebody elsewhere comes.
async fn somebody_elsewhere_waits(deaf: bool) {
    let scene = Scene::new();
    let (locks, there) =
        (Locks::from_store(scene.store.client()), Locks::from_store(scene.store.client()));
    scene.store.deaf(deaf);
    let first = scene.run(locks.lock("orders").ttl(TTL).acquire()).await.expect("a grant");
    let served = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let (lock, served) = (locks.lock("orders").ttl(TTL), served.clone());
            let clock = scene.clock.clone();
            task(async move {
                let guard = lock.acquire().await.expect("a grant");
                served.fetch_add(1, Ordering::SeqCst);
                clock.sleep(Duration::from_millis(1)).await;
                let _ = guard.release().await.expect("an answer");
            })
        })
        .collect();
    scene.tick().await;
    let _ = scene.run(first.release()).await.expect("an answer");
    scene.until("some are served", || served.load(Ordering::SeqCst) >= 3).await;
    let remote = task(there.lock("orders").ttl(TTL).acquire());
    scene.until("it waits", || scene.line().len() == 2).await;
    let before = served.load(Ordering::SeqCst);
    scene.until("its turn", || remote.is_finished()).await;
    let passed = served.load(Ordering::SeqCst) - before;
    assert!(passed <= 64, "passed by {passed} times; deaf: {deaf}");
    let remote = remote.await.expect("no panic").expect("a grant");
    let _ = scene.run(remote.release()).await.expect("an answer");
    for task in tasks {
        scene.run(task).await.expect("served after that");
    }
}

#[tokio::test]
async fn somebody_elsewhere_gets_the_lock_by_the_stores_push() {
    somebody_elsewhere_waits(false).await;
}

#[tokio::test]
async fn somebody_elsewhere_gets_the_lock_where_the_store_cannot_push() {
    somebody_elsewhere_waits(true).await;
}

#[tokio::test]
async fn a_session_that_ends_feeds_nobody() {
    let scene = Scene::new();
    let driver = Arc::new(QueueDriver::new(scene.store.client()));
    let locks = Locks::from_store(driver.clone() as Arc<dyn Backend>);
    let first = scene.run(locks.lock("orders").ttl(TTL).acquire()).await.expect("a grant");
    let mut tasks = crowd(&scene, &locks, 3).await.into_iter();
    assert_eq!(scene.line().len(), 1, "one request of one client");
    let _ = scene.run(first.release()).await.expect("an answer");
    let mut next = async || scene.run(tasks.next().expect("three")).await.expect("no panic");
    let second = next().await.expect("a grant");
    let lease = scene.line();
    driver.store().expire();
    assert_eq!(scene.run(second.lost()).await.why, LossReason::Disconnected);
    let third = next().await.expect("a grant");
    assert!(third.token().get() >> 16 > second.token().get() >> 16, "by a grant of its own");
    assert_ne!(scene.line(), lease);
    assert_eq!(scene.run(second.release()).await.expect("an answer"), Released::WasLost);
    third.check().expect("a late release of the lost one ends nothing");
    assert_eq!(scene.run(third.release()).await.expect("an answer"), Released::Released);
    let fourth = next().await.expect("a grant");
    drop(fourth);
    scene.until("free", || scene.line().is_empty()).await;
}

#[tokio::test]
async fn a_proof_takes_its_lease_out_of_the_hand_over() {
    let scene = Scene::new();
    let locks = Locks::from_store(scene.store.client());
    let first = scene.run(locks.lock("orders").ttl(TTL).acquire()).await.expect("a grant");
    let mut tasks = crowd(&scene, &locks, 2).await.into_iter();
    let _ = scene.run(first.release()).await.expect("an answer");
    let second = scene.run(tasks.next().expect("two")).await.expect("no panic").expect("a grant");
    let proof = second.proof().expect("this store has proofs");
    scene.until("whoever waits asks for a lease of its own", || scene.line().len() == 2).await;
    assert!(scene.store.proves(&name(), &proof));
    let _ = scene.run(second.release()).await.expect("an answer");
    let third = scene.run(tasks.next().expect("two")).await.expect("no panic").expect("a grant");
    assert!(!scene.store.proves(&name(), &proof), "good for the next holder");
    drop(third);
}
