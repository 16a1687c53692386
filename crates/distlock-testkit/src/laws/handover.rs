//! Handing a lock on among the tasks of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use distlock_core::{Clock, Force, Forced, Kind, LossReason, Released};

use crate::StoreUnderTest;
use crate::wait::{AT_ONCE, LONG, all_free, give_back, line_of, soon, task, waiters, within};

/// A crowd of one process is served one by one, in order of arrival, with rising tokens, by one
/// contender at the store.
pub async fn a_crowd_hands_over_in_order_with_rising_tokens(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let held = a.lock(&name).ttl(LONG).await.expect("a grant");
    let (inside, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::new(vec![])));
    let mut tasks = Vec::new();
    for i in 0..200 {
        let (inside, served) = (inside.clone(), served.clone());
        // Polled once here: in the queue before the next one comes.
        let mut waits = Box::pin(a.lock(&name).ttl(LONG).acquire());
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tasks.push(task(async move {
            let guard = waits.await.expect("a grant");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            served.lock().expect("no panic").push((i, guard.token()));
            guard.check().expect("held");
            inside.fetch_sub(1, Ordering::SeqCst);
            give_back(guard).await;
        }));
    }
    Clock::system().sleep(Duration::from_millis(100)).await;
    assert_eq!(waiters(&b, &name).await, 0, "a second contender of one client");
    give_back(held).await;
    for task in tasks {
        soon("its turn", task).await.expect("no panic");
    }
    let served = served.lock().expect("no panic").clone();
    assert!(served.iter().map(|s| s.0).eq(0..200), "out of order: {served:?}");
    assert!(served.is_sorted_by(|x, y| x.1 < y.1), "tokens out of order: {served:?}");
    all_free(&b, &name).await;
}

/// Whoever waits elsewhere gets its turn, however much this process wants the lock, and the other way
/// round.
pub async fn a_crowd_here_keeps_nobody_elsewhere_waiting(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (a, name, over, turns) = (a.clone(), name.clone(), over.clone(), turns.clone());
        tasks.push(task(async move {
            while !over.load(Ordering::SeqCst) {
                let guard = a.lock(&name).ttl(LONG).await.expect("a grant");
                turns.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                give_back(guard).await;
            }
        }));
    }
    let mut last = None;
    for _ in 0..20 {
        let lock = b.lock(&name).ttl(LONG);
        let guard = within(AT_ONCE, "its turn among a crowd", lock.acquire()).await;
        let guard = guard.expect("a grant");
        assert!(last < Some(guard.token()), "{last:?}, {}", guard.token());
        last = Some(guard.token());
        let before = turns.load(Ordering::SeqCst);
        Clock::system().sleep(Duration::from_millis(5)).await;
        assert_eq!(turns.load(Ordering::SeqCst), before, "two holders");
        give_back(guard).await;
    }
    over.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("its turn", task).await.expect("no panic");
    }
    assert!(turns.load(Ordering::SeqCst) > 20, "the crowd had no turn");
    all_free(&b, &name).await;
}

/// A task that waits and is not polled holds nobody up: the lock passes it by after a second.
pub async fn an_offer_that_nobody_polls_passes_on(site: &StoreUnderTest) {
    let (a, name) = (site.client().await, site.name());
    let held = a.lock(&name).ttl(LONG).await.expect("a grant");
    let mut asleep = Box::pin(a.lock(&name).ttl(LONG).acquire());
    assert!(asleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let lock = a.lock(&name).ttl(LONG);
    let awake = task(async move { lock.await.expect("a grant") });
    tokio::task::yield_now().await;
    give_back(held).await;
    // One second for a request that is granted to it, and one for the offer.
    let guard = within(AT_ONCE * 2, "a turn behind a task that is not polled", awake).await;
    give_back(guard.expect("no panic")).await;
    give_back(soon("its turn", asleep).await.expect("a grant")).await;
    all_free(&a, &name).await;
}

/// A lost lease is told to its holder and handed to nobody: whoever waits has the lock by a grant of
/// its own.
pub async fn a_lost_lease_is_handed_to_nobody(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    // Found out at a renewal, where nobody is told of it.
    let ttl = site.ttl();
    let first = a.lock(&name).ttl(ttl).await.expect("a grant");
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let mut waits = Box::pin(a.lock(&name).ttl(ttl).acquire());
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tasks.push(task(async move { waits.await.expect("a grant") }));
    }
    give_back(first).await;
    let mut tasks = tasks.into_iter();
    let second = soon("its turn", tasks.next().expect("two")).await.expect("no panic");
    assert_eq!(b.force(&name, None, Force::Now).await.expect("an answer"), Forced::Done);
    let third = soon("its turn", tasks.next().expect("two")).await.expect("no panic");
    assert!(third.token() > second.token());
    let lost = soon("word of the loss", second.lost()).await;
    assert!(matches!(lost.why, LossReason::Revoked | LossReason::Gone), "{lost}");
    assert_eq!(second.release().await.expect("an answer"), Released::WasLost);
    third.check().expect("held");
    give_back(third).await;
    all_free(&b, &name).await;
}

/// A token of any of those to whom a lease was handed takes it away from whoever has it now.
pub async fn a_token_of_an_earlier_holder_takes_the_lease_away(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    // Found out at a renewal, where nobody is told of it.
    let ttl = site.ttl();
    let first = a.lock(&name).ttl(ttl).await.expect("a grant");
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let mut waits = Box::pin(a.lock(&name).ttl(ttl).acquire());
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tasks.push(task(async move { waits.await.expect("a grant") }));
    }
    give_back(first).await;
    let mut tasks = tasks.into_iter();
    let second = soon("its turn", tasks.next().expect("three")).await.expect("no panic");
    let token = second.token();
    give_back(second).await;
    let third = soon("its turn", tasks.next().expect("three")).await.expect("no panic");
    assert_eq!(third.token().get(), token.get() + 1, "handed over");
    let forced = b.force(&name, Some(third.token()), Force::Now).await.expect("an answer");
    assert_eq!(forced, Forced::Done);
    soon("word of the loss", third.lost()).await;
    give_back(soon("its turn", tasks.next().expect("three")).await.expect("no panic")).await;
}

/// Closing a client in the middle of a crowd ends all its waits and leaves nothing.
pub async fn closing_in_a_crowd_leaves_nothing(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (a, name) = (a.clone(), name.clone());
        tasks.push(task(async move {
            loop {
                match a.lock(&name).ttl(LONG).await {
                    Ok(guard) => drop(guard),
                    Err(e) => return e.kind(),
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    Clock::system().sleep(Duration::from_millis(50)).await;
    assert_eq!(a.close().await.left, 0);
    for task in tasks {
        assert_eq!(soon("an end", task).await.expect("no panic"), Kind::Closed);
    }
    all_free(&b, &name).await;
}

/// A hold whose ticket was given away is not handed on: the ticket is good for it, and those who
/// wait get the lock after that.
pub async fn a_ticket_leaves_the_crowd(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let first = a.lock(&name).ttl(LONG).await.expect("a grant");
    let lock = a.lock(&name).ttl(LONG);
    let next = task(async move { lock.await.expect("a grant") });
    tokio::task::yield_now().await;
    let ticket = first.detach().expect("a ticket");
    line_of(&b, &name, 1).await;
    let resumed = b.resume(&ticket).await.expect("the hold");
    assert!(!next.is_finished());
    give_back(resumed).await;
    let next = soon("its turn", next).await.expect("no panic");
    assert!(next.token() > ticket.token);
    give_back(next).await;
}

/// A lease that lingers is the next holder's here without a call to the store, and whoever waits
/// elsewhere has the lock as soon as that is known.
pub async fn a_lingering_lease_goes_to_whoever_waits(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let lingers = || a.lock(&name).ttl(LONG).linger(LONG);
    let mut last = None;
    for _ in 0..10 {
        let guard = lingers().await.expect("a grant");
        assert!(last < Some(guard.token()), "{last:?}, {}", guard.token());
        last = Some(guard.token());
        give_back(guard).await;
    }
    let seen = b.show(&name).await.expect("an answer").expect("it is still held");
    assert!(seen.holds[0].tokens().contains(last.expect("ten")), "{seen}");
    let elsewhere = b.lock(&name).ttl(LONG);
    let remote = within(AT_ONCE, "a lease that lingers elsewhere", elsewhere.acquire()).await;
    let remote = remote.expect("a grant");
    assert!(last < Some(remote.token()));
    let lock = lingers();
    let again = task(async move { lock.await.expect("a grant") });
    line_of(&b, &name, 1).await;
    give_back(remote).await;
    give_back(soon("its turn", again).await.expect("no panic")).await;
    assert_eq!(a.close().await.left, 0);
    all_free(&b, &name).await;
}
