//! The seam's own promises: every call is idempotent by its request.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Due, Grant, Kept, Released};
use distlock_core::{Kind, Label, Locks, Mode, Owner, Patience, ReqId};

use crate::StoreUnderTest;
use crate::wait::{
    AT_ONCE, LONG, all_free, busy, give_back, line_of, soon, take, task, until, within,
};

/// A request of its own for this lock, to be made at the seam.
pub(super) fn ask(
    site: &StoreUnderTest,
    name: &str,
    ttl: Duration,
    patience: Patience,
) -> Arc<Ask> {
    Arc::new(Ask {
        lock: site.full(name),
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl,
        patience,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("replay"),
        block: NonZeroU32::MIN,
    })
}

async fn granted(locks: &Locks, ask: &Arc<Ask>) -> Grant {
    match locks.backend().acquire(ask.clone(), None).await.expect("an answer") {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(status) => panic!("busy: {status}"),
    }
}

async fn holds(locks: &Locks, name: &str) -> usize {
    locks.show(name).await.expect("an answer").map_or(0, |l| l.holds.len())
}

/// The same request twice is one hold with one token; one release ends it.
pub async fn a_repeated_ask_is_the_same_grant(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    for patience in [Patience::Never, Patience::Forever] {
        let ask = ask(site, &name, LONG, patience);
        let first = granted(&a, &ask).await;
        for _ in 0..3 {
            let again = soon("a replay", granted(&a, &ask)).await;
            assert_eq!(again.tokens, first.tokens, "a replay is another grant");
        }
        assert_eq!(holds(&b, &name).await, 1, "a replay is a second entry");
        let released = a.backend().release(&ask.key()).await.expect("an answer");
        assert_eq!(released, Released::Released);
        all_free(&b, &name).await;
    }
}

/// The same waiting request once more, after the first try was dropped: one place in line.
pub async fn a_repeated_wait_is_one_place_in_line(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let held = take(&a, &name).await;
    let ask = ask(site, &name, LONG, Patience::Forever);
    let joined = async || line_of(&a, &name, 1).await;
    for _ in 0..2 {
        tokio::select! {
            grant = granted(&b, &ask) => panic!("it is held, but {grant:?}"),
            () = joined() => {}
        }
    }
    let behind = task({
        let lock = a.lock(&name).ttl(LONG);
        async move { lock.await.expect("a grant") }
    });
    line_of(&a, &name, 2).await;
    let again = task({
        let (b, ask) = (b.clone(), ask.clone());
        async move { granted(&b, &ask).await }
    });
    give_back(held).await;
    let grant = soon("its turn", again).await.expect("no panic");
    let shown = a.show(&name).await.expect("an answer").expect("it is held");
    assert_eq!((shown.holds.len(), shown.waiters.len()), (1, 1), "{shown:?}");
    assert_eq!((shown.holds[0].req, shown.holds[0].holder.token), (ask.req, grant.tokens.first()));
    let _ = b.backend().release(&ask.key()).await.expect("an answer");
    give_back(soon("the one behind", behind).await.expect("no panic")).await;
}

/// A replayed grant says what is left, not what was asked for: its deadline is that of the first.
pub async fn a_replayed_grant_counts_from_the_first(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let ask = ask(site, &name, site.ttl() * 10, Patience::Never);
    let first = granted(&locks, &ask).await;
    let took = site.clock().now().since(first.lease.sent.boot);
    // Past the step of a coarse store, so that less is left than at first.
    let pause = site.capability().ttl_step.max(Duration::from_millis(200));
    site.clock().sleep(pause).await;
    let again = granted(&locks, &ask).await;
    assert!(again.lease.sent.boot > first.lease.sent.boot, "a replay counts from its own question");
    // Less is left in which clocks could drift apart, so less is given up for that.
    // The lease began when the first question arrived, which is between its departure and its answer.
    let slack = Duration::from_millis(20) + site.capability().margin(pause * 2) + took;
    let (was, is) = (first.deadline(), again.deadline());
    assert!(is < was.plus(slack), "a replay moved the deadline by {:?}", is.since(was));
    let _ = locks.backend().release(&ask.key()).await.expect("an answer");
}

/// A request that was released is never granted again, and releasing it again is harmless.
pub async fn a_released_request_never_comes_back(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let ask = ask(site, &name, LONG, Patience::Never);
    granted(&a, &ask).await;
    for _ in 0..2 {
        let released = a.backend().release(&ask.key()).await.expect("an answer");
        if site.capability().family == distlock_core::capability::Family::Lease {
            assert_eq!(released, Released::Released, "a repeated release is the same answer");
        }
    }
    if site.capability().family == distlock_core::capability::Family::Lease {
        let again = a.backend().acquire(ask.clone(), None).await;
        let e = again.expect_err("a released request came back");
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
    }
    assert_eq!(holds(&b, &name).await, 0);
    give_back(take(&b, &name).await).await;
}

/// A cancel that overtakes its acquire wins: the request is never granted.
pub async fn a_cancelled_request_never_comes_back(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    for patience in [Patience::Never, Patience::Forever] {
        let ask = ask(site, &name, LONG, patience);
        a.backend().abandon(&ask.key()).await.expect("an answer");
        a.backend().abandon(&ask.key()).await.expect("an answer, again");
        if site.capability().family == distlock_core::capability::Family::Lease {
            let late = soon("the overtaken acquire", a.backend().acquire(ask.clone(), None)).await;
            let e = late.expect_err("a cancelled request was granted");
            assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
        }
        assert!(b.show(&name).await.expect("an answer").is_none());
    }
    // After a grant, too.
    let ask = ask(site, &name, LONG, Patience::Never);
    granted(&a, &ask).await;
    a.backend().abandon(&ask.key()).await.expect("an answer");
    until("free", async || holds(&b, &name).await == 0).await;
}

/// Nobody releases a lock with another request than the one that holds it.
pub async fn only_the_holder_releases(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = take(&a, &name).await;
    let stranger = ask(site, &name, LONG, Patience::Never);
    for locks in [&a, &b] {
        let released = locks.backend().release(&stranger.key()).await.expect("an answer");
        assert_eq!(released, Released::WasLost);
        locks.backend().abandon(&stranger.key()).await.expect("an answer");
    }
    assert_eq!(holds(&b, &name).await, 1, "a stranger released the lock");
    busy(&b, &name).await;
    let due = [Due { key: stranger.key(), ttl: LONG }];
    let kept = b.backend().keep(&due).await;
    assert!(matches!(kept[..], [Kept::Lost(_)]), "a stranger renewed the lock: {kept:?}");
    give_back(guard).await;
}

/// Renewing what has ended never brings it back, not even while nobody else has taken it.
pub async fn renewing_never_brings_back(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    // A short TTL leaves the nodes of a quorum little time to answer. If they do not, another
    // request is made, and what is left of the last one may be in its way for a moment.
    let mut unheard = false;
    let asking = async {
        loop {
            let ask = ask(site, &name, site.short(), Patience::Never);
            match a.backend().acquire(ask.clone(), None).await {
                Ok(Attempt::Granted(grant)) => return (ask, grant),
                Ok(Attempt::Busy(status)) => assert!(unheard, "busy: {status}"),
                Err(e) => assert!(e.is_transient(), "{e:?}"),
            }
            unheard = true;
            site.clock().sleep(Duration::from_millis(20)).await;
        }
    };
    let (ask, grant) = soon("a grant", asking).await;
    let due = [Due { key: ask.key(), ttl: LONG }];
    // It began before its answer came.
    let end = site.clock().now().plus(grant.lease.ttl).plus(Duration::from_millis(100));
    site.clock().sleep_until(end).await;
    let kept = a.backend().keep(&due).await;
    assert!(matches!(kept[..], [Kept::Lost(_)]), "an ended hold was renewed: {kept:?}");
    assert!(b.show(&name).await.expect("an answer").is_none(), "an ended hold came back");
    give_back(take(&b, &name).await).await;
}

/// Waiters nobody hears of any more are dropped from the line after their TTL, and whoever is
/// behind them is served as if they had never been.
pub async fn an_unheard_waiter_is_dropped(site: &StoreUnderTest) {
    let (a, name) = (site.client().await, site.name());
    let held = take(&a, &name).await;
    // Connected before: all five must stand in line before the first of them is dropped.
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(site.client().await);
    }
    for (b, silent) in clients.iter().zip(1..) {
        let ask = ask(site, &name, site.steady() * 3, Patience::Forever);
        // In line, and then forgotten, without the abandon that the seam asks for.
        tokio::select! {
            grant = granted(b, &ask) => panic!("it is held, but {grant:?}"),
            () = line_of(&a, &name, silent) => {}
        }
    }
    let lock = a.lock(&name).ttl(LONG).label("alive");
    let behind = task(async move { lock.await.expect("a grant") });
    until("the silent ones are out of the line", async || {
        let shown = a.show(&name).await.expect("an answer").expect("it is held");
        shown.waiters.len() == 1 && shown.waiters[0].label.as_str() == "alive"
    })
    .await;
    give_back(held).await;
    let behind = within(AT_ONCE, "the living one is served", behind).await;
    give_back(behind.expect("no panic")).await;
}
