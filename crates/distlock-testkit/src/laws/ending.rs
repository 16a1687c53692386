//! Letting go, in every way there is.

use std::time::Duration;

use distlock_core::{Kind, Locks, LossReason};

use crate::StoreUnderTest;
use crate::wait::{LONG, all_free, line_of, soon, take, task};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A guard dropped in a task, outside any runtime, after its runtime ended, or while it shuts
/// down: released in the background, nothing blocks, nothing panics.
pub async fn s14_a_guard_dropped_anywhere_is_released(site: &StoreUnderTest) {
    let watch = site.client().await;
    let names: Vec<String> = (0..4).map(|_| site.name()).collect();
    drop(take(&watch, &names[0]).await);
    all_free(&watch, &names[0]).await;
    let (site, wanted) = (site.clone(), names.clone());
    let thread = distlock_core::engine::thread("dropping", move || {
        let rt = runtime();
        let locks: Locks = rt.block_on(site.client());
        // Outside a runtime, while one lives elsewhere.
        let guard = rt.block_on(take(&locks, &wanted[1]));
        drop(guard);
        // While its runtime shuts down, which drops the task that has it.
        let guard = rt.block_on(take(&locks, &wanted[2]));
        let (tx, rx) = std::sync::mpsc::channel();
        rt.block_on(async {
            task(async move {
                let _guard = guard;
                let _ = tx.send(());
                std::future::pending::<()>().await;
            });
        });
        rx.recv().expect("the task runs");
        // After its runtime is gone.
        let last = rt.block_on(take(&locks, &wanted[3]));
        rt.shutdown_background();
        drop(last);
    })
    .expect("a thread");
    for name in &names {
        all_free(&watch, name).await;
    }
    soon("the thread's end", async {
        while !thread.is_finished() {
            site_clock().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    thread.join().expect("no panic");
}

fn site_clock() -> distlock_core::Clock {
    distlock_core::Clock::system()
}

/// A caller whose own deadline is over still gets its release sent.
pub async fn s15_a_release_that_is_not_awaited_is_still_sent(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    for polls in 0..4 {
        let guard = take(&a, &name).await;
        let _ = super::line::dropped_after(polls, guard.release()).await;
        all_free(&b, &name).await;
    }
}

/// A client that is dropped with its guards, without closing: its locks are free, and whoever
/// waits for them gets in long before their leases would end.
pub async fn a_leaving_client_delays_nobody(site: &StoreUnderTest) {
    let (watch, name) = (site.client().await, site.name());
    {
        let leaving = site.client().await;
        let _guard = take(&leaving, &name).await;
    }
    all_free(&watch, &name).await;
}

/// `close` gives everything back, tells guards, and wakes waiters with [`Kind::Closed`].
pub async fn close_gives_everything_back(site: &StoreUnderTest) {
    let (a, b) = (site.client().await, site.client().await);
    let (mine, theirs, dropped) = (site.name(), site.name(), site.name());
    let guard = take(&a, &mine).await;
    let other = take(&b, &theirs).await;
    let lock = a.lock(&theirs).ttl(LONG);
    let waiting = task(async move { lock.await });
    if site.capability().order == distlock_core::capability::Order::Fifo {
        line_of(&b, &theirs, 1).await;
    }
    drop(take(&a, &dropped).await);
    soon("the close", a.close()).await;
    // Closed means acknowledged: no waiting for it here.
    for name in [&mine, &dropped] {
        assert!(b.show(name).await.expect("an answer").is_none(), "{name} was not given back");
    }
    assert_eq!(guard.check().expect_err("its client is closed").why, LossReason::Closed);
    let e = soon("the waiter's end", waiting).await.expect("no panic").expect_err("closed");
    assert_eq!(e.kind(), Kind::Closed, "{e:?}");
    let e = a.lock(&mine).try_acquire().await.expect_err("closed");
    assert!(e.kind() == Kind::Closed && e.hint().is_some(), "{e:?}");
    soon("a second close", a.close()).await;
    drop(guard);
    let shown = b.show(&theirs).await.expect("an answer").expect("it is held");
    assert!(shown.waiters.is_empty(), "its waiter stayed in line");
    assert!(other.check().is_ok());
    drop(take(&b, &mine).await);
}
