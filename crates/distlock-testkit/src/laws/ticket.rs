//! Take here, release there.

use distlock_core::{Kind, Ticket};

use crate::StoreUnderTest;
use crate::wait::{LONG, all_free, busy, give_back, soon, take};

/// A detached hold stays held, travels as text, and is taken up by another client with its token.
pub async fn detach_and_resume(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let guard = take(&a, &name).await;
    let token = guard.token();
    let ticket = guard.detach().expect("a ticket");
    busy(&b, &name).await;
    let text = ticket.to_string();
    let ticket: Ticket = text.parse().expect("a ticket");
    let guard = b.resume(&ticket).await.expect("a hold to take up");
    assert_eq!(guard.token(), token);
    assert!(guard.check().is_ok());
    busy(&a, &name).await;
    give_back(guard).await;
    all_free(&a, &name).await;
    // From here on it is renewed again.
    let guard = a.lock(&name).ttl(site.steady()).await.expect("a grant");
    let ticket = guard.detach().expect("a ticket");
    let guard = b.resume(&ticket).await.expect("a hold to take up");
    let clock = site.clock();
    clock.sleep(site.steady() * 5 / 4).await;
    guard.check().expect("renewed after it was taken up");
    give_back(guard).await;
}

/// A ticket of a hold that ended, of another store, or of nothing.
pub async fn a_ticket_of_nothing_is_refused(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let guard = take(&locks, &name).await;
    let ticket = guard.ticket();
    give_back(guard).await;
    let e = locks.resume(&ticket).await.expect_err("it was released");
    assert!(e.kind() == Kind::Lost && e.hint().is_some(), "{e:?}");
    assert!(locks.show(&name).await.expect("an answer").is_none(), "it came back");
    if site.expires() {
        let lock = locks.lock(&name).ttl(site.short());
        let ticket = lock.await.expect("a grant").detach().expect("a ticket");
        let next = soon("the end of the lease", locks.lock(&name).ttl(LONG).acquire()).await;
        let e = locks.resume(&ticket).await.expect_err("its TTL ended");
        assert_eq!(e.kind(), Kind::Lost, "{e:?}");
        give_back(next.expect("a grant")).await;
    }
    let mut stranger = ticket;
    stranger.store ^= 1;
    let e = locks.resume(&stranger).await.expect_err("of another store");
    let said = e.hint().is_some_and(|h| h.contains("another store"));
    assert!(e.kind() == Kind::Lost && said, "{e:?}");
}

/// Where a lock ends with its process, a detach is refused and the lock is released.
pub async fn detach_is_refused_where_it_cannot_be(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let guard = take(&locks, &name).await;
    let ticket = guard.ticket();
    let e = guard.detach().expect_err("not served");
    assert!(e.kind() == Kind::Unsupported && e.hint().is_some(), "{e:?}");
    all_free(&locks, &name).await;
    let e = locks.resume(&ticket).await.expect_err("not served");
    assert_eq!(e.kind(), Kind::Unsupported, "{e:?}");
}
