//! Standing in line.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use distlock_core::{Error, Guard, Locks};

use crate::StoreUnderTest;
use crate::wait::{AT_ONCE, LONG, all_free, give_back, line_of, soon, take, task, waiters, within};

/// Waiters of several clients are served in the order of their arrival, where all of them stand in
/// the queue of the store.
pub async fn first_come_first_served(site: &StoreUnderTest) {
    let (a, b, name) = (site.strict().await, site.strict().await, site.name());
    let held = take(&a, &name).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..6 {
        let lock = if i % 2 == 0 { &a } else { &b }.lock(&name).ttl(LONG);
        let served = served.clone();
        tasks.push(task(async move {
            let guard = lock.await.expect("a grant");
            served.lock().expect("no panic").push((i, guard.token()));
            give_back(guard).await;
        }));
        line_of(&a, &name, i + 1).await;
    }
    give_back(held).await;
    for t in tasks {
        soon("its turn", t).await.expect("no panic");
    }
    let served = served.lock().expect("no panic").clone();
    assert!(served.iter().map(|s| s.0).eq(0..6), "out of order: {served:?}");
    assert!(served.is_sorted_by(|x, y| x.1 < y.1), "tokens out of order: {served:?}");
}

/// Whoever comes while others wait does not get in before them, not even by a try.
pub async fn no_barging_past_the_line(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let clock = site.clock();
    for _ in 0..20 {
        let held = take(&a, &name).await;
        let waiting = task({
            let lock = b.lock(&name).ttl(LONG);
            async move { lock.await.expect("a grant") }
        });
        line_of(&a, &name, 1).await;
        give_back(held).await;
        // The releasing client is the quickest to ask again: it must not win by that.
        let next = a.lock(&name).ttl(LONG).try_acquire().await.expect("an answer");
        assert!(next.is_err(), "the releaser barged past a waiter at {:?}", clock.now());
        give_back(soon("its turn", waiting).await.expect("no panic")).await;
        all_free(&a, &name).await;
    }
}

/// A waiter is told who holds the lock and how many are ahead, whenever that changes.
pub async fn a_waiter_hears_its_place(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let held = a.lock(&name).ttl(LONG).label("first").await.expect("a grant");
    let second = task({
        let lock = a.lock(&name).ttl(LONG).label("second");
        async move { lock.await.expect("a grant") }
    });
    line_of(&a, &name, 1).await;
    let (tx, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let third = task({
        let lock = b.lock(&name).ttl(LONG).on_wait(move |status| {
            let _ = tx.send(status.clone());
        });
        async move { lock.await.expect("a grant") }
    });
    let status = soon("word of its place", heard.recv()).await.expect("the waiter lives");
    assert_eq!(status.ahead, Some(1), "{status}");
    assert_eq!(status.holder.expect("a holder").label.as_str(), "first");
    give_back(held).await;
    let second = soon("its turn", second).await.expect("no panic");
    let status = soon("word of the change", heard.recv()).await.expect("the waiter lives");
    assert_eq!(status.ahead, Some(0), "{status}");
    assert_eq!(status.holder.expect("a holder").label.as_str(), "second");
    give_back(second).await;
    give_back(soon("its turn", third).await.expect("no panic")).await;
}

/// A release that lands while a waiter is on its way into the line still wakes it. A wake-up that
/// is missed would cost a heartbeat or a TTL, which is what the bound tells apart.
pub async fn s18_a_release_while_joining_still_wakes(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    for round in 0..50 {
        let held = take(&a, &name).await;
        let lock = b.lock(&name).ttl(LONG);
        let waiting = task(async move { lock.await.expect("a grant") });
        for _ in 0..round % 10 {
            tokio::task::yield_now().await;
        }
        give_back(held).await;
        let woken = within(AT_ONCE, "a prompt wake-up", waiting).await;
        give_back(woken.expect("no panic")).await;
    }
}

/// Timed out or cancelled: the place in line is gone at once, and whoever is behind moves up.
pub async fn s20_a_waiter_that_gives_up_leaves_the_line(site: &StoreUnderTest) {
    let (a, b, name) = (site.strict().await, site.strict().await, site.name());
    let held = take(&a, &name).await;
    let timed = b.lock(&name).ttl(LONG).try_acquire_for(Duration::from_secs(3));
    let timed = task(timed);
    line_of(&a, &name, 1).await;
    let lock = b.lock(&name).ttl(LONG);
    let cancelled = task(async move { lock.await });
    line_of(&a, &name, 2).await;
    let lock = b.lock(&name).ttl(LONG);
    let last = task(async move { lock.await.expect("a grant") });
    line_of(&a, &name, 3).await;
    cancelled.abort();
    let busy = timed.await.expect("no panic").expect("an answer").expect_err("it is held");
    assert_eq!(busy.status.ahead, Some(0), "{busy}");
    line_of(&a, &name, 1).await;
    give_back(held).await;
    let last = within(AT_ONCE, "no delay by who left", last).await;
    give_back(last.expect("no panic")).await;
    all_free(&a, &name).await;
}

/// Polls a future `k` times and drops it then, unless it is done before.
pub(super) async fn dropped_after<F: Future>(k: usize, f: F) -> Option<F::Output> {
    let mut f: Option<Pin<Box<F>>> = Some(Box::pin(f));
    let mut polls = 0;
    poll_fn(move |cx| {
        if polls == k {
            f = None;
        }
        let Some(inner) = f.as_mut() else { return Poll::Ready(None) };
        polls += 1;
        match inner.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending if polls == k => {
                f = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// An acquire dropped after each number of polls, of a free lock and of one that is given up
/// while it waits: afterwards nobody holds and nobody waits, long before any lease could end.
pub async fn dropped_at_every_poll_leaves_nothing(site: &StoreUnderTest) {
    let (a, b) = (site.client().await, site.client().await);
    at_every_poll(&a, &b, &site.name()).await;
}

pub(super) async fn at_every_poll(a: &Locks, b: &Locks, name: &str) {
    dropped_in_line(a, b, name).await;
    for contended in [false, true] {
        let mut k = 0;
        loop {
            let holder = if contended { Some(turn(a, name).await) } else { None };
            let asking = b.lock(name).ttl(LONG).acquire();
            let (got, ()) = tokio::join!(dropped_after(k, asking), async {
                if let Some(holder) = holder {
                    // Once it waits, or has been dropped before it could.
                    let clock = distlock_core::Clock::system();
                    let joined = async {
                        while waiters(a, name).await == 0 {
                            clock.sleep(Duration::from_millis(2)).await;
                        }
                    };
                    clock.timeout(Duration::from_millis(100), joined).await;
                    give_back(holder).await;
                }
            });
            let done: Option<Result<Guard, Error>> = got;
            if let Some(guard) = done {
                give_back(guard.expect("a grant")).await;
                all_free(a, name).await;
                break;
            }
            // What was on its way when it was dropped may still arrive, and is then undone.
            give_back(turn(a, name).await).await;
            all_free(a, name).await;
            k += 1;
            assert!(k < 10_000, "an acquire that is never done");
        }
        assert!(k > 0, "an acquire takes at least one poll");
    }
}

/// While the lock stays held: a dropped waiter leaves the line long before its wait-lease ends.
async fn dropped_in_line(a: &Locks, b: &Locks, name: &str) {
    let held = turn(a, name).await;
    let clock = distlock_core::Clock::system();
    for k in 1.. {
        let asking = dropped_after(k, b.lock(name).ttl(LONG).acquire());
        let dropped = clock.timeout(Duration::from_millis(300), asking).await;
        line_of(a, name, 0).await;
        match dropped {
            Some(Some(got)) => panic!("it is held, but {got:?}"),
            Some(None) => {}
            // It stood in line and nothing happened any more: there is no later poll.
            None => break,
        }
    }
    give_back(held).await;
}

/// One's turn, which must come long before any lease ends.
async fn turn(locks: &Locks, name: &str) -> Guard {
    soon("its turn", locks.lock(name).ttl(LONG).acquire()).await.expect("a grant")
}
