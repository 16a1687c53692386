//! What a lock is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::{Human, Kind, Owner, blocking};

use crate::StoreUnderTest;
use crate::wait::{LONG, busy, give_back, soon, take, task};

/// Two clients never hold one lock together, whoever asks.
pub async fn exclusion(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let first = take(&a, &name).await;
    busy(&a, &name).await;
    busy(&b, &name).await;
    give_back(first).await;
    let second = take(&b, &name).await;
    busy(&a, &name).await;
    give_back(second).await;
}

/// Many tasks of several clients at one lock: never two inside.
pub async fn exclusion_under_contention(site: &StoreUnderTest) {
    let name = site.name();
    let inside = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = site.client().await;
        for _ in 0..4 {
            let (locks, name) = (locks.clone(), name.clone());
            let (inside, done) = (inside.clone(), done.clone());
            tasks.push(task(async move {
                for _ in 0..10 {
                    let guard = locks.lock(&name).ttl(LONG).await.expect("a grant");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    give_back(guard).await;
                }
            }));
        }
    }
    for t in tasks {
        t.await.expect("nobody finds another inside");
    }
    assert_eq!(done.load(Ordering::SeqCst), 160);
}

/// Other names are other locks: holding many at once is no trouble.
pub async fn parallel_names(site: &StoreUnderTest) {
    let locks = site.client().await;
    let mut guards = Vec::new();
    for _ in 0..32 {
        guards.push(take(&locks, &site.name()).await);
    }
    for guard in guards {
        assert!(guard.check().is_ok());
        give_back(guard).await;
    }
}

/// Never, for a while, for ever: three patiences.
pub async fn try_timed_and_blocking_acquires(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let clock = site.clock();
    let held = take(&a, &name).await;
    let start = clock.now();
    busy(&b, &name).await;
    assert!(clock.now().since(start) < Duration::from_secs(5), "a try does not wait");
    let patience = Duration::from_millis(200);
    let start = clock.now();
    let answer = b.lock(&name).ttl(LONG).try_acquire_for(patience).await.expect("an answer");
    let waited = clock.now().since(start);
    let gave_up = answer.expect_err("it is held");
    assert!(waited >= patience && gave_up.waited >= patience, "gave up after {waited:?}");
    assert!(gave_up.to_string().contains("gave up after"), "{gave_up}");
    let none = b.lock(&name).try_acquire_for(Duration::ZERO).await.expect("an answer");
    assert!(none.is_err(), "no patience is a try");
    let waiting = task({
        let lock = b.lock(&name).ttl(LONG);
        async move { lock.await }
    });
    let timed = task({
        let lock = b.lock(&name).ttl(LONG);
        async move { lock.try_acquire_for(LONG).await }
    });
    give_back(held).await;
    // In whichever order they came, each gets its turn once the other is done.
    let first = task(async move {
        give_back(waiting.await.expect("no panic").expect("a grant")).await;
    });
    give_back(
        soon("the timed one", timed)
            .await
            .expect("no panic")
            .expect("an answer")
            .expect("its turn came before its patience ended"),
    )
    .await;
    soon("the blocking one", first).await.expect("no panic");
}

/// A busy answer says who holds the lock, since when, with what token, and for how long.
pub async fn busy_names_the_holder(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let owner = Owner::named("the-owner").expect("an owner");
    let lock = a.lock(&name).ttl(LONG).label("nightly report").owner(&owner);
    let guard = lock.await.expect("a grant");
    let answer = busy(&b, &name).await;
    let holder = answer.status.holder.clone().expect("the holder is known");
    assert_eq!(holder.label.as_str(), "nightly report");
    assert_eq!(holder.owner, owner);
    assert_eq!(holder.token, guard.token());
    assert!(holder.age < Duration::from_secs(20), "{:?}", holder.age);
    match holder.left {
        Some(left) => assert!(site.expires() && left <= LONG && left > LONG / 2, "{left:?}"),
        None => assert!(!site.expires(), "a lease has an end"),
    }
    let text = answer.to_string();
    let token = guard.token().to_string();
    for part in [name.as_str(), "nightly report", "the-owner", &token] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    if let Some(left) = holder.left {
        assert!(text.contains(&format!("{} left", Human(left))), "{text:?}");
    }
    let e = distlock_core::Error::from(answer);
    assert!(e.kind() == Kind::Busy && e.is_transient());
    give_back(guard).await;
}

/// The blocking API needs no runtime and does no harm inside one.
pub async fn the_blocking_api_inside_and_outside_a_runtime(site: &StoreUnderTest) {
    let name = site.name();
    let locks = blocking::Locks::from(site.client().await);
    let inside = locks.lock(&name).ttl(LONG).acquire().expect("a grant");
    assert!(locks.lock(&name).ttl(LONG).try_acquire().expect("an answer").is_err());
    let (tx, rx) = tokio::sync::oneshot::channel();
    let (other, wanted) = (blocking::Locks::from(site.client().await), name.clone());
    let outside = distlock_core::engine::thread("outside", move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "no runtime here");
        let token = other.lock(&wanted).ttl(LONG).run(|held| held.token()).expect("a grant");
        let _ = tx.send(token);
    })
    .expect("a thread");
    let first = inside.token();
    let released = inside.release().expect("an answer");
    assert_eq!(released, distlock_core::Released::Released);
    let second = soon("the thread's turn", rx).await.expect("the thread does not panic");
    assert!(second > first);
    outside.join().expect("the thread does not panic");
    assert!(locks.show(&name).expect("an answer").is_none());
}

/// What cannot be is refused before anything is sent, and says what could be.
pub async fn bad_input_is_refused_with_a_hint(site: &StoreUnderTest) {
    let locks = site.client().await;
    for bad in ["", "a\0b", &"x".repeat(256)] {
        let e = locks.lock(bad).try_acquire().await.expect_err("not a name");
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        assert!(e.hint().is_some_and(|h| h.contains("255")), "{e:?}");
        let e = locks.show(bad).await.expect_err("not a name");
        assert_eq!(e.kind(), Kind::Usage);
    }
    let name = site.name();
    for ttl in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401)] {
        let e = locks.lock(&name).ttl(ttl).try_acquire().await.expect_err("not a TTL");
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        assert!(e.hint().is_some_and(|h| h.contains("100ms to 24h")), "{e:?}");
    }
    let day = Duration::from_secs(86_401);
    let e = locks.lock(&name).min_hold(day).try_acquire().await.expect_err("too long");
    assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{e:?}");
    if !site.capability().lock_delay {
        let asked = locks.lock(&name).lock_delay(Duration::from_secs(1)).try_acquire().await;
        let e = asked.expect_err("not served");
        assert!(e.kind() == Kind::Unsupported && e.hint().is_some(), "{e:?}");
    }
    assert!(locks.show(&name).await.expect("an answer").is_none(), "something was sent");
}
