//! How long a hold may and must last.

use std::time::Duration;

use distlock_core::{BootInstant, Busy, Locks, LossReason};

use crate::StoreUnderTest;
use crate::wait::{LONG, give_back, soon, take, task};

/// At `max_hold` renewal stops, the holder is told, and the lock is free for the next.
pub async fn s10_max_hold_ends_the_hold(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let (ttl, max) = (site.steady(), site.steady() * 5 / 4);
    let clock = site.clock();
    let start = clock.now();
    let guard = a.lock(&name).ttl(ttl).max_hold(max).await.expect("a grant");
    let next = task({
        let lock = b.lock(&name).ttl(LONG);
        async move { lock.await.expect("a grant") }
    });
    let lost = soon("the end", guard.lost()).await;
    let held = clock.now().since(start);
    assert_eq!(lost.why, LossReason::MaxHold);
    assert!(held >= max - ttl && held < max + ttl, "ended after {held:?} instead of {max:?}");
    assert_eq!(guard.check().expect_err("over").why, LossReason::MaxHold);
    let next = soon("the next turn", next).await.expect("no panic");
    assert!(next.token() > guard.token());
    drop(guard);
    give_back(next).await;
}

/// A release before `min_hold` frees the lock only then: a short job runs once.
pub async fn min_hold_outlasts_the_release(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let clock = site.clock();
    let min = Duration::from_millis(700);
    let start = clock.now();
    let first = a.lock(&name).ttl(LONG).min_hold(min).await.expect("a grant");
    let token = first.token();
    give_back(first).await;
    for locks in [&a, &b] {
        is_busy_until(site, start.plus(min), locks, &name).await;
    }
    let next = soon("its turn", b.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
    let waited = clock.now().since(start);
    assert!(waited >= min, "free after {waited:?}, not {min:?}");
    assert!(waited < Duration::from_secs(5), "free only after {waited:?}");
    assert!(next.token() > token);
    give_back(next).await;
    // Dropped instead of released: the same. Held for longer: no delay.
    let start = clock.now();
    drop(a.lock(&name).ttl(LONG).min_hold(min).await.expect("a grant"));
    let next = soon("its turn", b.lock(&name).ttl(LONG).min_hold(min / 10).acquire()).await;
    assert!(clock.now().since(start) >= min, "a dropped guard cut min_hold short");
    clock.sleep(min / 10).await;
    give_back(next.expect("a grant")).await;
    give_back(take(&a, &name).await).await;
}

/// A lock is busy, unless the machine stood still until a moment after which it may be free.
async fn is_busy_until(
    site: &StoreUnderTest,
    free: BootInstant,
    locks: &Locks,
    name: &str,
) -> Option<Busy> {
    match locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer") {
        Err(busy) => Some(busy),
        Ok(guard) => {
            assert!(site.clock().now() >= free, "{name:?} should be busy, but {guard:?}");
            give_back(guard).await;
            None
        }
    }
}

/// After an expiry nobody is granted for the lock-delay; after a release everybody at once.
pub async fn lock_delay_follows_an_expiry_only(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let (ttl, delay) = (site.short(), Duration::from_millis(600));
    let first = a.lock(&name).ttl(LONG).lock_delay(delay).await.expect("a grant");
    give_back(first).await;
    give_back(take(&b, &name).await).await;
    let clock = site.clock();
    let start = clock.now();
    let lost = a.lock(&name).ttl(ttl).lock_delay(delay).without_renewal().await.expect("a grant");
    soon("the loss", lost.lost()).await;
    if let Some(busy) = is_busy_until(site, start.plus(ttl + delay), &b, &name).await {
        assert!(busy.status.left.is_some_and(|left| left <= ttl + delay), "{busy}");
    }
    let next = soon("its turn", b.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
    let waited = clock.now().since(start);
    assert!(waited >= ttl + delay, "granted after {waited:?}, before the delay ended");
    assert!(waited < ttl + delay + Duration::from_secs(5), "granted only after {waited:?}");
    give_back(next).await;
}
