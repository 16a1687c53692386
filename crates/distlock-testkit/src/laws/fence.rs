//! The fencing token.

use distlock_core::Token;

use crate::StoreUnderTest;
use crate::wait::{LONG, give_back, soon, take};

/// Each grant has a higher token than every one before, whichever client it goes to and however
/// the hold before it ended.
pub async fn tokens_rise_over_clients_and_expiry(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let mut last = Token::MIN;
    for round in 0..40 {
        let locks = if round % 3 == 0 { &a } else { &b };
        let guard = soon("its turn", locks.lock(&name).ttl(LONG).acquire()).await;
        let guard = guard.expect("a grant");
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        if round % 4 == 0 {
            drop(guard);
        } else {
            give_back(guard).await;
        }
    }
    if site.expires() {
        let lock = a.lock(&name).ttl(site.short()).without_renewal();
        let expired = soon("its turn", lock.acquire()).await.expect("a grant");
        assert!(expired.token() > last);
        let next = soon("its turn", b.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
        assert!(next.token() > expired.token(), "the token did not survive an expiry");
        give_back(next).await;
    }
}

/// A name nobody has used for a while, with everybody gone: its tokens go on rising.
pub async fn tokens_survive_disuse(site: &StoreUnderTest) {
    let name = site.name();
    let mut last = Token::MIN;
    for _ in 0..3 {
        let locks = site.client().await;
        let guard = take(&locks, &name).await;
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        give_back(guard).await;
        // Many other names come and go: what is swept must not take the token with it.
        for i in 0..300 {
            give_back(take(&locks, &format!("{name}/{i}")).await).await;
        }
        locks.close().await;
    }
}

/// Tokens rise over a restart of the store, held or not.
pub async fn tokens_survive_a_restart(site: &StoreUnderTest) {
    let name = site.name();
    let before = site.client().await;
    let guard = take(&before, &name).await;
    let token = guard.token();
    give_back(guard).await;
    let restart = site.suite().restart.expect("listed only with this hook");
    restart(site).await;
    let after = site.client().await;
    let guard = soon("its turn", after.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
    assert!(guard.token() > token, "the token did not survive a restart");
    give_back(guard).await;
}
