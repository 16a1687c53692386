//! What an operator sees and does.

use std::time::Duration;

use distlock_core::capability::Order;
use distlock_core::{Force, Forced, LossReason, Mode, Owner, Released, Token};

use crate::StoreUnderTest;
use crate::wait::{AGES, LONG, all_free, busy, give_back, line_of, soon, take, task, until_within};

/// A revoked holder is told, and nobody is granted before its lease ends: it may not know yet.
pub async fn revoking_tells_the_holder_and_waits_out_the_lease(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let ttl = site.steady();
    let clock = site.clock();
    let guard = a.lock(&name).ttl(ttl).await.expect("a grant");
    let end = clock.now().plus(guard.remaining());
    let forced = b.force(&name, None, Force::Revoke).await.expect("an answer");
    assert_eq!(forced, Forced::Done);
    let lost = soon("word of the revocation", guard.lost()).await;
    assert_eq!(lost.why, LossReason::Revoked);
    if clock.now() < end.minus(ttl / 4) {
        busy(&b, &name).await;
        let shown = b.show(&name).await.expect("an answer").expect("it blocks still");
        assert!(shown.holds[0].revoked, "{shown:?}");
    }
    let next = soon("its turn", b.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
    assert!(clock.now() >= end, "granted while the revoked lease ran");
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    give_back(next).await;
}

/// Forced now: free at once, and the old holder is told.
pub async fn forcing_now_frees_at_once(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = a.lock(&name).ttl(site.steady()).await.expect("a grant");
    let forced = b.force(&name, None, Force::Now).await.expect("an answer");
    assert_eq!(forced, Forced::Done);
    let next = take(&b, &name).await;
    assert!(next.token() > guard.token());
    let lost = soon("word of the loss", guard.lost()).await;
    assert!(matches!(lost.why, LossReason::Revoked | LossReason::Gone), "{lost}");
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    assert!(next.check().is_ok(), "the old holder's release ended the new hold");
    busy(&a, &name).await;
    give_back(next).await;
    let nobody = b.force(&name, None, Force::Now).await.expect("an answer");
    assert_eq!(nobody, Forced::NoMatch);
}

/// With a token, only that grant is meant.
pub async fn force_with_a_token_meets_only_that_grant(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = take(&a, &name).await;
    let other = Token::new(guard.token().get() - 1).expect("a token");
    for how in [Force::Revoke, Force::Now] {
        let forced = b.force(&name, Some(other), how).await.expect("an answer");
        assert_eq!(forced, Forced::NoMatch);
    }
    guard.check().expect("not meant");
    let forced = b.force(&name, Some(guard.token()), Force::Now).await.expect("an answer");
    assert_eq!(forced, Forced::Done);
    give_back(take(&b, &name).await).await;
}

/// Who holds, since when, with what token, and who waits, in order.
pub async fn inspection_shows_holds_and_waiters(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    assert!(b.show(&name).await.expect("an answer").is_none());
    let owner = Owner::named("somebody").expect("an owner");
    let lock = a.lock(&name).ttl(LONG).label("the label").owner(&owner);
    let guard = lock.await.expect("a grant");
    let shown = b.show(&name).await.expect("an answer").expect("it is held");
    assert_eq!(shown.lock, site.full(&name));
    let [hold] = &shown.holds[..] else { panic!("one hold: {shown:?}") };
    assert_eq!((hold.holder.label.as_str(), &hold.holder.owner), ("the label", &owner));
    assert_eq!((hold.holder.token, hold.mode), (guard.token(), Mode::Exclusive));
    assert_eq!(hold.req, guard.ticket().req);
    assert!(!hold.lingering && !hold.revoked && hold.holder.age < Duration::from_secs(20));
    assert!(shown.to_string().contains("the label"), "{shown}");
    if site.capability().order == Order::Fifo {
        let mut waiting = Vec::new();
        for (i, locks) in [&a, &b, &a].into_iter().enumerate() {
            let lock = locks.lock(&name).ttl(LONG).label(format!("waiter {i}"));
            waiting.push(task(async move { lock.await.map(drop) }));
            line_of(&b, &name, i + 1).await;
        }
        let show = async || b.show(&name).await.expect("an answer").expect("it is held");
        // A waiter may be seen in a file store's queue before it has written its label.
        until_within(AGES, "the waiters in order, with their labels", async || {
            let shown = show().await;
            let labels = shown.waiters.iter().map(|w| w.label.as_str());
            labels.eq(["waiter 0", "waiter 1", "waiter 2"])
        })
        .await;
        let shown = show().await;
        assert!(shown.to_string().contains("3 waiting"), "{shown}");
        give_back(guard).await;
        for w in waiting {
            soon("its turn", w).await.expect("no panic").expect("a grant");
        }
    } else {
        give_back(guard).await;
    }
    all_free(&b, &name).await;
}

/// A list has every lock of a prefix once, in order of name, over many pages.
pub async fn listing_pages_over_many_locks(site: &StoreUnderTest) {
    let (a, b) = (site.client().await, site.client().await);
    let mut guards = Vec::new();
    let wanted: Vec<String> = (0..300).map(|i| format!("page/{i:03}")).collect();
    for name in &wanted {
        guards.push(take(&a, name).await);
    }
    for other in ["pag", "page", "page0", "other"] {
        guards.push(take(&a, other).await);
    }
    let listed = b.list("page/").await.expect("a list");
    let names: Vec<_> = listed.iter().map(|l| l.lock.name.as_str()).collect();
    assert_eq!(names, wanted);
    assert!(listed.iter().zip(&guards).all(|(l, g)| l.holds[0].holder.token == g.token()));
    assert_eq!(b.list("").await.expect("a list").len(), 304);
    assert_eq!(b.list("page").await.expect("a list").len(), 302);
    assert!(b.list("nothing").await.expect("a list").is_empty());
    a.close().await;
    assert!(b.list("").await.expect("a list").is_empty());
}
