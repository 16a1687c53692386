//! The same owner again.

use distlock_core::{Kind, Owner};

use crate::StoreUnderTest;
use crate::wait::{LONG, all_free, busy, give_back, line_of, soon, task};

/// The owner enters a lock it holds, with the same token, and leaves in any order; the lock is
/// free when the last hold is gone. A new holder has a higher token.
pub async fn s27_the_owner_enters_again_with_the_same_token(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let me = Owner::new();
    let mine = || a.lock(&name).ttl(LONG).owner(&me);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut holds = Vec::new();
        holds.push(Some(mine().await.expect("a grant")));
        holds.push(Some(mine().await.expect("a re-entry")));
        let third = mine().try_acquire().await.expect("an answer").expect("a re-entry by try");
        holds.push(Some(third));
        let token = holds[0].as_ref().expect("held").token();
        assert!(holds.iter().flatten().all(|g| g.token() == token), "another token on re-entry");
        for i in order {
            busy(&b, &name).await;
            give_back(holds[i].take().expect("held")).await;
            assert!(holds.iter().flatten().all(|g| g.check().is_ok()));
        }
        let other = b.lock(&name).ttl(LONG).try_acquire().await.expect("an answer");
        let other = other.expect("free when the last hold is gone");
        assert!(other.token() > token);
        give_back(other).await;
    }
    let stranger = a.lock(&name).ttl(LONG).await.expect("a grant");
    assert!(mine().try_acquire().await.expect("an answer").is_err(), "same client, other owner");
    give_back(stranger).await;
}

/// Another client that was given the owner enters too.
pub async fn another_client_of_the_owner_enters(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let me = Owner::new();
    let first = a.lock(&name).ttl(LONG).owner(&me).await.expect("a grant");
    let again = b.lock(&name).ttl(LONG).owner(&me).try_acquire().await.expect("an answer");
    let again = again.expect("a re-entry from another client");
    assert_eq!(first.token(), again.token());
    give_back(first).await;
    busy(&a, &name).await;
    assert!(again.check().is_ok());
    give_back(again).await;
    all_free(&a, &name).await;
}

/// An owner that enters again while others wait does not queue behind them: it would wait for
/// itself. Asking in another mode is refused for the same reason.
pub async fn a_waiting_reentry_does_not_deadlock(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let me = Owner::new();
    let first = a.lock(&name).ttl(LONG).owner(&me).await.expect("a grant");
    let waiting = task({
        let lock = b.lock(&name).ttl(LONG);
        async move { lock.await.expect("a grant") }
    });
    if site.capability().order == distlock_core::capability::Order::Fifo {
        line_of(&a, &name, 1).await;
    }
    let again = soon("a re-entry past the line", a.lock(&name).ttl(LONG).owner(&me).acquire());
    let again = again.await.expect("a grant");
    assert_eq!(again.token(), first.token());
    if site.capability().shared {
        let e = a.lock(&name).ttl(LONG).owner(&me).shared().try_acquire().await;
        let e = e.expect_err("the same owner in another mode");
        assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{e:?}");
    }
    give_back(first).await;
    give_back(again).await;
    give_back(soon("the waiter's turn", waiting).await.expect("no panic")).await;
}

/// Two requests of one owner wait behind a holder, and the first in releases at once: the second
/// holds what it was granted, by its own place or by the first's hold, and the lock is free after
/// it. Its client holds another lock all the while, so that nothing ends with a session.
pub async fn two_waiters_of_an_owner_leave_nothing(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let other = b.lock(site.name()).ttl(LONG).await.expect("a grant");
    for _ in 0..6 {
        let me = Owner::new();
        let held = soon("a free lock", a.lock(&name).ttl(LONG).acquire()).await.expect("a grant");
        let waiter = || {
            let lock = b.lock(&name).ttl(LONG).owner(&me);
            task(async move {
                let guard = lock.await.expect("a grant");
                guard.check().expect("held when it was granted");
                give_back(guard).await;
            })
        };
        let waiting = [waiter(), waiter()];
        if site.capability().order == distlock_core::capability::Order::Fifo {
            line_of(&a, &name, 2).await;
        }
        give_back(held).await;
        for waiter in waiting {
            soon("the turn of both", waiter).await.expect("no panic");
        }
        all_free(&a, &name).await;
    }
    assert!(other.check().is_ok());
    give_back(other).await;
}
