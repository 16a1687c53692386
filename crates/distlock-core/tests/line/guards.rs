//! What a guard of a line store says and does.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Kind, Locks, LossReason, Released};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, name};

const SHORT: Duration = Duration::from_secs(1);

/// The store grants a shorter session than was asked for: that counts, and is renewed in time.
#[tokio::test]
async fn a_shorter_session_is_what_a_guard_counts_with() {
    let scene = Scene::new();
    let granted = Duration::from_secs(2);
    scene.store.longest(granted);
    let locks = Locks::from_store(scene.store.client());
    let lock = locks.lock("orders").ttl(Duration::from_secs(10));
    let guard = scene.run(lock.acquire()).await.expect("a grant");
    assert_eq!(guard.ttl(), granted);
    assert!(guard.remaining() <= granted);
    let long = scene.clock.now().plus(granted * 4);
    while scene.clock.now() < long {
        guard.check().expect("renewed by the pace of what was granted");
        scene.tick().await;
    }
    scene.store.wipe(&name());
    let lost = scene.run(guard.lost()).await;
    assert_eq!(lost.why, LossReason::Gone);
}

/// A session that ends is a lock that is lost, at once; for all who share it.
#[tokio::test]
async fn the_end_of_a_session_is_told_to_all_who_share_a_hold() {
    let scene = Scene::new();
    let store = scene.store.client();
    let backend = Arc::new(distlock_core::queue::QueueDriver::new(store));
    let locks = Locks::from_store(backend.clone() as Arc<dyn distlock_core::backend::Backend>);
    let me = distlock_core::Owner::new();
    let one = scene.run(locks.lock("orders").owner(&me).acquire()).await.expect("a grant");
    let two = scene.run(locks.lock("orders").owner(&me).acquire()).await.expect("a grant");
    assert_eq!(one.token(), two.token());
    backend.store().expire();
    for guard in [&one, &two] {
        assert_eq!(scene.run(guard.lost()).await.why, LossReason::Disconnected);
    }
    // The same client and owner then get a new hold.
    let new = scene.run(locks.lock("orders").owner(&me).acquire()).await.expect("a grant");
    assert!(new.token() > one.token() && new.check().is_ok());
}

/// A proof is good as long as the very entry is in line.
#[tokio::test]
async fn a_proof_ends_with_its_hold() {
    let scene = Scene::new();
    let locks = Locks::from_store(scene.store.client());
    let guard = scene.run(locks.lock("orders").acquire()).await.expect("a grant");
    let proof = guard.proof().expect("this store has proofs");
    assert!(scene.store.proves(&name(), &proof));
    let _ = scene.run(guard.release()).await.expect("an answer");
    let next = scene.run(locks.lock("orders").acquire()).await.expect("a grant");
    assert!(!scene.store.proves(&name(), &proof), "of another hold");
    assert_ne!(next.proof(), Some(proof));
    scene.store.wipe(&name());
    scene.run(next.lost()).await;
    assert_eq!(next.proof(), None, "of a lock that is known to be lost");
    let none = Locks::from_store(distlock_core::memory::Memory::new());
    assert_eq!(none.lock("orders").await.expect("a grant").proof(), None);
}

/// A lock lost by its deadline leaves the line, though another hold keeps the session alive; and
/// its owner does not enter it again.
#[tokio::test]
async fn what_is_lost_by_its_deadline_leaves_though_the_session_lives() {
    let scene = Scene::new();
    let locks = Locks::from_store(scene.store.client());
    let me = distlock_core::Owner::new();
    let kept = scene.run(locks.lock("other").acquire()).await.expect("a grant");
    let lock = locks.lock("orders").owner(&me).without_renewal();
    let lost = scene.run(lock.acquire()).await.expect("a grant");
    assert_eq!(scene.run(lost.lost()).await.why, LossReason::Expired);
    scene.until("it left", || scene.line().is_empty()).await;
    kept.check().expect("renewed");
    let new = scene.run(locks.lock("orders").owner(&me).acquire()).await.expect("a grant");
    assert!(new.token() > lost.token());
    drop(lost);
    scene.tick().await;
    new.check().expect("another hold");
    assert_eq!(scene.line().len(), 1);
}

/// A re-entry into a hold that nobody renews is worth a whole lease, and is renewed while it lasts,
/// however little was left of what it entered.
#[tokio::test]
async fn a_reentry_into_a_hold_without_renewal_is_worth_its_ttl() {
    let scene = Scene::new();
    let locks = Locks::from_store(scene.store.client());
    let me = distlock_core::Owner::new();
    let lock = || locks.lock("orders").owner(&me).ttl(TTL);
    let outer = scene.run(lock().without_renewal().acquire()).await.expect("a grant");
    let most = outer.remaining();
    let (end, calls) = (scene.clock.now().plus(TTL / 5), scene.store.calls());
    let early = scene.run(lock().acquire()).await.expect("a grant");
    assert_eq!(scene.store.calls(), calls, "a lease that is fresh is shared without a call");
    drop(early);
    scene.until("little is left", || outer.remaining() < TTL / 10).await;
    assert!(scene.clock.now() > end);
    let inner = scene.run(lock().acquire()).await.expect("a grant");
    assert_eq!(inner.token(), outer.token());
    assert!(inner.remaining() > most - TTL / 100, "{:?} of {most:?}", inner.remaining());
    assert!(outer.remaining() < TTL / 10, "the outer one must run out: {:?}", outer.remaining());
    assert_eq!(scene.run(outer.lost()).await.why, LossReason::Expired);
    let long = scene.clock.now().plus(TTL * 3);
    while scene.clock.now() < long {
        inner.check().expect("renewed");
        scene.tick().await;
    }
    assert_eq!(scene.run(inner.release()).await.expect("an answer"), Released::Released);
    assert!(scene.line().is_empty());
}

/// A re-entry asks first where the hold has little left, and says so when the store does not answer.
#[tokio::test]
async fn a_reentry_that_cannot_renew_is_an_error_and_takes_nothing() {
    let scene = Scene::new();
    let locks = Locks::from_store(scene.store.client());
    let me = distlock_core::Owner::new();
    let lock = || locks.lock("orders").owner(&me).ttl(TTL);
    let outer = scene.run(lock().without_renewal().acquire()).await.expect("a grant");
    scene.until("half is left", || outer.remaining() < TTL / 2).await;
    scene.store.fault(Fault::Silent);
    let error = scene.run(lock().acquire()).await.expect_err("no answer");
    assert_eq!(error.kind(), Kind::Unreachable);
    outer.check().expect("held for as long as it was told");
    scene.store.fault(Fault::None);
    let inner = scene.run(lock().acquire()).await.expect("a grant");
    assert_eq!(inner.token(), outer.token());
}

/// A `min_hold` that is longer than the lease lasts also where whoever shares the hold lets it run out.
#[tokio::test]
async fn a_min_hold_outlasts_the_lease_of_who_shares_the_hold() {
    let scene = Scene::new();
    let (locks, others) =
        (Locks::from_store(scene.store.client()), Locks::from_store(scene.store.client()));
    let me = distlock_core::Owner::new();
    let lock = || locks.lock("orders").owner(&me).ttl(SHORT);
    let outer = scene.run(lock().without_renewal().acquire()).await.expect("a grant");
    let inner = scene.run(lock().min_hold(SHORT * 3).acquire()).await.expect("a grant");
    let free = scene.clock.now().plus(SHORT * 3);
    assert_eq!(scene.run(inner.release()).await.expect("an answer"), Released::Released);
    let next = scene.run(others.lock("orders").acquire()).await.expect("a grant");
    assert!(scene.clock.now() >= free, "{:?} too early", free.since(scene.clock.now()));
    assert!(scene.clock.now().since(free) < SHORT, "it left when its min_hold was over");
    assert_eq!(outer.check().expect_err("not renewed").why, LossReason::Expired);
    next.check().expect("held");
}

/// It lasts also where it was released shortly before the end of a lease that nobody had renewed.
#[tokio::test]
async fn a_min_hold_outlasts_a_lease_that_was_nearly_over() {
    let scene = Scene::new();
    let (locks, others) =
        (Locks::from_store(scene.store.client()), Locks::from_store(scene.store.client()));
    let lock = locks.lock("orders").ttl(SHORT).without_renewal().min_hold(SHORT * 3);
    let guard = scene.run(lock.acquire()).await.expect("a grant");
    let free = scene.clock.now().plus(SHORT * 3);
    scene.until("little is left", || guard.remaining() < SHORT / 10).await;
    assert_eq!(scene.run(guard.release()).await.expect("an answer"), Released::Released);
    let _next = scene.run(others.lock("orders").acquire()).await.expect("a grant");
    assert!(scene.clock.now() >= free, "{:?} too early", free.since(scene.clock.now()));
}
