//! Leases that stay with their client after the last release, for the next acquire there.

use super::cohort::{calls, elsewhere, holds, queued, settle, soon};
use super::*;

const LINGER: Duration = Duration::from_secs(5);

fn lock(s: &Scene) -> crate::Lock {
    s.locks.lock("a").linger(LINGER)
}

/// Takes the lock and gives it back: its token.
async fn cycle(lock: crate::Lock) -> Token {
    let guard = soon(lock.acquire()).await.unwrap();
    guard.check().unwrap();
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    token
}

#[tokio::test]
async fn the_next_acquire_asks_nobody_and_has_the_next_token() {
    let s = scene();
    let mut last = cycle(lock(&s)).await;
    let asked = s.spy.calls.lock().unwrap().len();
    for _ in 0..20 {
        let view = lock(&s).await.unwrap().held();
        // Dropped, and its views with it.
        assert_eq!(view.check().unwrap_err().why, LossReason::Released);
        assert!(view.token() > last);
        last = cycle(lock(&s)).await;
        assert!(last > view.token());
    }
    assert_eq!(s.spy.calls.lock().unwrap().len(), asked, "the store was asked");
    assert_eq!(holds(&s, "a"), 1);
    // One that does not wait takes it, too; one that does not linger gives it back in the end.
    let guard = s.locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert!(guard.token() > last);
    drop(guard);
    until("released", || holds(&s, "a") == 0).await;
    assert!(cycle(lock(&s)).await > last);
}

#[tokio::test]
async fn it_is_renewed_while_it_lingers_and_given_back_after_that() {
    let s = scene();
    let long = || s.locks.lock("a").linger(TTL * 3);
    let first = cycle(long()).await;
    renewing(&s, 6).await;
    assert_eq!(holds(&s, "a"), 1);
    let guard = soon(long().acquire()).await.unwrap();
    assert!(guard.remaining() > TTL / 2 && guard.token() > first);
    drop(guard);
    // From the last release on.
    renewing(&s, 8).await;
    assert_eq!((holds(&s, "a"), calls(&s, "release")), (1, 0));
    s.clock.advance(TTL / 3);
    until("given back", || holds(&s, "a") == 0).await;
    assert_eq!(calls(&s, "release"), 1);
}

#[tokio::test]
async fn a_short_linger_after_an_offer_ends_in_time() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let short = s.locks.lock("a").linger(Duration::from_millis(50));
    let second = tokio::spawn(async move { cycle(short).await });
    settle().await;
    drop(first);
    soon(second).await.unwrap();
    settle().await;
    assert_eq!(holds(&s, "a"), 1);
    s.clock.advance(Duration::from_millis(50));
    until("given back", || holds(&s, "a") == 0).await;
}

#[tokio::test]
async fn somebody_elsewhere_who_asks_gets_it_at_once() {
    let s = scene();
    let last = cycle(lock(&s)).await;
    let remote = soon(elsewhere(&s).lock("a").acquire()).await.unwrap();
    assert!(remote.token() > last);
    // While somebody waits, nothing lingers.
    let here = tokio::spawn(lock(&s).acquire());
    until("it waits", || queued(&s, "a") == 1).await;
    let (there, again) = (elsewhere(&s), remote);
    let next = tokio::spawn(there.lock("a").acquire());
    until("both wait", || queued(&s, "a") == 2).await;
    drop(again);
    drop(soon(here).await.unwrap().unwrap());
    drop(soon(next).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_request_here_that_cannot_share_it_does_not_find_it_busy() {
    let s = scene();
    let owner = crate::Owner::new();
    let others: [&dyn Fn() -> crate::Lock; 4] = [
        &|| s.locks.lock("a").ttl(TTL * 2),
        &|| s.locks.lock("a").label("another"),
        &|| s.locks.lock("a").owner(&owner),
        &|| s.locks.lock("a").shared(),
    ];
    for other in others {
        let last = cycle(lock(&s)).await;
        let guard = soon(other().try_acquire()).await.unwrap().expect("it is nobody's");
        assert!(guard.token() > last);
        drop(guard);
        until("free", || holds(&s, "a") == 0).await;
    }
}

#[tokio::test]
async fn a_lease_that_was_lost_or_is_nearly_over_is_asked_for_anew() {
    let s = scene();
    let first = cycle(lock(&s)).await;
    let _ = s.locks.force("a", Some(first), Force::Now).await.unwrap();
    settle().await;
    assert!(cycle(lock(&s)).await > first);
    s.spy.hang.store(usize::MAX, Ordering::SeqCst);
    // Not lost, but half of it is over: its renewals are not answered.
    s.clock.advance(LINGER - Duration::from_millis(1));
    let guard = soon(lock(&s).acquire()).await.unwrap();
    assert!(guard.remaining() > TTL * 8 / 10, "{:?}", guard.remaining());
}

#[tokio::test]
async fn closing_gives_back_what_lingers() {
    let s = scene();
    cycle(lock(&s)).await;
    assert_eq!(s.locks.close().await.left, 0);
    assert_eq!(holds(&s, "a"), 0);
}

#[tokio::test]
async fn what_cannot_linger_is_refused() {
    let s = scene();
    let strict = Locks::options().strict_order().ttl(TTL).open(s.memory.client()).unwrap();
    for lock in [
        lock(&s).shared(),
        lock(&s).owner(&crate::Owner::new()),
        lock(&s).min_hold(Duration::from_secs(1)),
        lock(&s).without_renewal(),
        lock(&s).on_wait(|_| ()),
        strict.lock("a").linger(LINGER),
        lock(&s).linger(Duration::from_secs(90_000)),
    ] {
        assert_eq!(lock.acquire().await.unwrap_err().kind(), Kind::Usage);
    }
    let never_told = scene_with(|promises| promises.linger = false);
    let refused = never_told.locks.lock("a").linger(LINGER).try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.hint().is_some());
}
