//! Tokens rise in the order of the grants, also when somebody stalls half-way.

use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Locks};
use distlock_memcached::{Memcached, fence_key};
use distlock_testkit::servers::memcached;

use crate::kit::{LONG, Valve, client, delete, full, raw, soon, start, take};

/// Fence first: it raised the fence, stalled, and others were granted before its item arrived. It is
/// granted then, but with a token above theirs.
#[tokio::test]
async fn a_token_taken_before_a_stall_is_not_used_after_it() {
    let server = start(memcached()).await;
    let mut valve = Valve::to(server.addr()).await;
    let (a, b) = (client(valve.addr).await, client(server.addr()).await);
    let _ = take(&a, "x").await.release().await.unwrap();
    valve.shut_at("ms dl1::l:");
    let lock = a.lock("x").ttl(LONG);
    let stalled = tokio::spawn(async move { lock.try_acquire().await });
    valve.holds().await;
    let theirs = take(&b, "x").await;
    let token = theirs.token();
    let _ = theirs.release().await.unwrap();
    valve.open();
    let mine = soon("the stalled one", stalled).await.unwrap().unwrap().expect("it is free");
    assert!(mine.token() > token, "{:?} was granted after {token:?}", mine.token());
    assert!(take_next(&b, mine).await > token);
}

async fn take_next(locks: &Locks, held: distlock_core::Guard) -> distlock_core::Token {
    let before = held.token();
    let _ = held.release().await.unwrap();
    let next = take(locks, "x").await;
    assert!(next.token() > before);
    next.token()
}

/// Item first: it added its item, stalled, and the item went. Whoever was granted meanwhile stays
/// the holder, and the one that comes back is told that it is busy.
async fn stalls_at(word: &'static str) {
    let server = start(memcached()).await;
    let mut valve = Valve::to(server.addr()).await;
    let (a, b) = (client(valve.addr).await, client(server.addr()).await);
    // Its first packet, with which it adds, passes: only there the item comes before the fence.
    valve.shut_at(word);
    let lock = a.lock("x").ttl(LONG);
    let stalled = tokio::spawn(async move { lock.try_acquire().await });
    valve.holds().await;
    delete(server.addr(), "x").await;
    let theirs = take(&b, "x").await;
    valve.open();
    let answer = soon("the stalled one", stalled).await.unwrap().unwrap();
    let busy = answer.expect_err("another holds it");
    assert_eq!(busy.status.holder.unwrap().token, theirs.token());
    let released = theirs.release().await.unwrap();
    assert_eq!(released, distlock_core::Released::Released, "a latecomer took the lock away");
}

#[tokio::test]
async fn an_item_lost_before_the_token_is_no_grant() {
    stalls_at("ms dl1::f:").await;
}

#[tokio::test]
async fn an_item_lost_after_the_token_is_no_grant() {
    // The second write of the item is the one by compare-and-swap.
    stalls_at(" C").await;
}

/// Item first, and the fence is raised between the look at it and our own raise: the item is ours
/// still, and the token is taken again.
#[tokio::test]
async fn a_fence_raised_meanwhile_is_taken_again() {
    let server = start(memcached()).await;
    let mut valve = Valve::to(server.addr()).await;
    let a = client(valve.addr).await;
    valve.shut_at("ms dl1::f:");
    let lock = a.lock("x").ttl(LONG);
    let stalled = tokio::spawn(async move { lock.try_acquire().await });
    valve.holds().await;
    let far = Clock::system().wall_micros() + 1_000_000_000_000;
    let (key, value) = (fence_key(&full("x")), far.to_string());
    raw(server.addr(), &format!("ms {key} {}\r\n{value}\r\n", value.len()), "HD\r\n").await;
    valve.open();
    let mine = soon("the stalled one", stalled).await.unwrap().unwrap().expect("its item is there");
    assert!(mine.token().get() > far, "{:?} is below the fence", mine.token());
}

/// Somebody raises the fence between: the token is taken again, above it.
#[tokio::test]
async fn a_fence_that_others_raised_is_not_passed_below() {
    let server = start(memcached()).await;
    let locks = client(server.addr()).await;
    let first = take(&locks, "x").await;
    let far = first.token().get() + 1_000_000_000_000;
    let _ = first.release().await.unwrap();
    let (key, value) = (fence_key(&full("x")), far.to_string());
    raw(server.addr(), &format!("ms {key} {}\r\n{value}\r\n", value.len()), "HD\r\n").await;
    for _ in 0..3 {
        let guard = take(&locks, "x").await;
        assert!(guard.token().get() > far, "{:?} is below the fence", guard.token());
        let _ = guard.release().await.unwrap();
    }
}

/// The wall clock steps back: tokens go on rising from the fence.
#[tokio::test]
async fn a_clock_that_steps_back_does_not_take_tokens_with_it() {
    let server = start(memcached()).await;
    let clock = Clock::held();
    let url = StoreUrl::parse(&format!("memcached://{}", server.addr())).unwrap();
    let mut last = None;
    for _ in 0..3 {
        let store = Memcached::connect_on(&url, clock.clone()).await.unwrap();
        let locks = Locks::from_store(store);
        for _ in 0..3 {
            let guard = take(&locks, "x").await;
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            last = Some(guard.token());
            let _ = guard.release().await.unwrap();
        }
        clock.step_wall(-3600);
    }
}
