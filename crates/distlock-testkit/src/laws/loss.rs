//! Renewal, and what happens without it.

use std::time::Duration;

use distlock_core::{Guard, Kind, Locks, LossReason, Released};

use crate::StoreUnderTest;
use crate::stopwatch::Stopwatch;
use crate::wait::{LONG, all_free, busy, give_back, soon, take, until};

/// A living holder keeps its lock for many TTLs.
pub async fn renewal_outlasts_many_ttls(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = a.lock(&name).ttl(site.steady()).await.expect("a grant");
    let clock = site.clock();
    let end = clock.now().plus(site.steady() * 5 / 2);
    while clock.now() < end {
        guard.check().expect("still held");
        busy(&b, &name).await;
        clock.sleep(site.steady() / 20).await;
    }
    assert!(guard.remaining() <= guard.ttl());
    give_back(guard).await;
}

/// A lock that is not renewed: lost for its holder before the store gives it to another.
async fn run_out(site: &StoreUnderTest, locks: &Locks, name: &str) -> Guard {
    let lock = locks.lock(name).ttl(site.short()).without_renewal();
    let guard = lock.await.expect("a grant");
    assert!(guard.check().is_ok() && guard.remaining() <= site.short());
    guard
}

/// Without renewal the lock ends with its TTL, and never earlier for others than for its holder.
pub async fn without_renewal_it_runs_out(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = run_out(site, &a, &name).await;
    let next = soon("the lease's end", b.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
    let lost = guard.check().expect_err("its deadline is before the next grant");
    assert_eq!(lost.why, LossReason::Expired);
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    assert!(next.check().is_ok(), "a late release ended another's hold");
    busy(&a, &name).await;
    give_back(next).await;
}

/// Loss reaches the holder by every way it has, and stays.
pub async fn loss_is_told_and_latches(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let guard = run_out(site, &locks, &name).await;
    let (held, cancelled) = (guard.held(), guard.cancellation_token());
    let enough = guard.remaining() / 2;
    assert!(guard.check_for(enough).is_ok(), "less is left than was said");
    let too_short = guard.check_for(LONG).expect_err("more than the lease");
    assert_eq!(too_short.why, LossReason::TooShort);
    assert!(guard.check().is_ok(), "too short does not latch");
    let lost = soon("the loss", guard.lost()).await;
    assert_eq!((lost.why, lost.token), (LossReason::Expired, guard.token()));
    soon("the cancellation", cancelled.cancelled()).await;
    // For ever: also when the lock is taken again meanwhile, by the very same client.
    let again = soon("the next grant", locks.lock(&name).ttl(LONG).acquire()).await;
    let again = again.expect("a grant");
    for _ in 0..3 {
        assert_eq!(held.check().expect_err("lost for ever").why, LossReason::Expired);
        assert_eq!(held.remaining(), Duration::ZERO);
        assert_eq!(soon("said again", held.lost()).await, lost);
    }
    assert!(guard.cancellation_token().is_cancelled(), "a token taken after the loss");
    give_back(again).await;
}

/// `run` drops its work when the lock is lost, and says so.
pub async fn work_is_cancelled_by_loss(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let lock = locks.lock(&name).ttl(site.short()).without_renewal();
    let work = lock.run(async |_held| std::future::pending::<()>().await);
    let e = soon("the end of the work", work).await.expect_err("lost");
    assert!(e.kind() == Kind::Lost && e.hint().is_some(), "{e:?}");
    let value = locks.lock(&name).ttl(LONG).run(async |held| held.token()).await;
    assert!(value.is_ok(), "the work of a held lock counts");
    all_free(&locks, &name).await;
}

/// An operator deletes the record: the holder is told with its next renewal, which does not bring
/// it back.
pub async fn s07_a_deleted_record_is_found_out(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = a.lock(&name).ttl(site.steady()).await.expect("a grant");
    let lose = site.suite().lose.expect("listed only with this hook");
    lose(site, &site.full(&name)).await;
    let lost = soon("word before the lease would end", guard.lost()).await;
    assert!(matches!(lost.why, LossReason::Gone | LossReason::Disconnected), "{lost}");
    assert!(b.show(&name).await.expect("an answer").is_none(), "a renewal brought it back");
    let next = take(&b, &name).await;
    assert!(next.token() > guard.token(), "the token was forgotten with the record");
    drop(guard);
    assert!(next.check().is_ok());
    give_back(next).await;
}

/// Work that blocks its executor does not lose its lock: renewal runs on a thread of its own.
pub async fn s09_a_blocked_executor_is_still_renewed(site: &StoreUnderTest) {
    let (site, name) = (site.clone(), site.name());
    let other = site.client().await;
    let (ttl, watched) = (site.steady(), name.clone());
    let (tx, rx) = tokio::sync::oneshot::channel();
    distlock_core::engine::thread("blocked", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let locks = site.client().await;
            let guard = locks.lock(&name).ttl(ttl).await.expect("a grant");
            #[allow(clippy::disallowed_methods)] // blocking the executor is what is tested
            std::thread::sleep(ttl * 5 / 4);
            let checked = guard.check();
            let released = guard.release().await;
            let _ = tx.send((checked, released));
        });
    })
    .expect("a thread");
    until("it is held", async || other.show(&watched).await.expect("an answer").is_some()).await;
    let (checked, released) = soon("the blocked work", rx).await.expect("no panic");
    checked.expect("renewed while the executor was blocked");
    assert_eq!(released.expect("an answer"), Released::Released);
}

/// Releasing what was lost says so at once, without trying for seconds.
pub async fn s13_a_release_after_loss_is_quick(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let guard = run_out(site, &locks, &name).await;
    soon("the loss", guard.lost()).await;
    let watch = Stopwatch::start();
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    let took = watch.took();
    assert!(took < Duration::from_secs(1), "{took:?}");
    all_free(&locks, &name).await;
}
