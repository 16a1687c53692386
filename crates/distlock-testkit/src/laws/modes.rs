//! Held together with others.

use std::num::NonZeroU32;

use distlock_core::capability::Order;
use distlock_core::{Kind, Mode};

use crate::StoreUnderTest;
use crate::wait::{LONG, all_free, busy, give_back, line_of, soon, task};

/// Readers share, writers do not, and a writer in line is not starved by readers that come later.
pub async fn shared_holders_share_and_writers_do_not(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let read = || a.lock(&name).ttl(LONG).shared();
    let one = read().await.expect("a grant");
    let two = b.lock(&name).ttl(LONG).shared().try_acquire().await.expect("an answer");
    let two = two.expect("readers share");
    assert!(two.token() > one.token());
    busy(&b, &name).await;
    let shown = b.show(&name).await.expect("an answer").expect("it is held");
    assert!(shown.holds.len() == 2 && shown.holds.iter().all(|h| h.mode == Mode::Shared));
    let lock = b.lock(&name).ttl(LONG);
    let writer = task(async move { lock.await.expect("a grant") });
    if site.capability().order == Order::Fifo {
        line_of(&a, &name, 1).await;
        let late = read().try_acquire().await.expect("an answer");
        assert!(late.is_err(), "a later reader passed a waiting writer");
    }
    give_back(one).await;
    give_back(two).await;
    let writer = soon("the writer's turn", writer).await.expect("no panic");
    assert!(read().try_acquire().await.expect("an answer").is_err(), "a reader beside a writer");
    give_back(writer).await;
    give_back(read().await.expect("a grant")).await;
    all_free(&a, &name).await;
}

/// `n` permits are `n` holds, no more; everybody must mean the same `n`.
pub async fn permits_are_counted(site: &StoreUnderTest) {
    let (a, b, name) = (site.client().await, site.client().await, site.name());
    let three = NonZeroU32::new(3).expect("not zero");
    let ask = |i: usize| [&a, &b][i % 2].lock(&name).ttl(LONG).permits(three);
    let mut held = Vec::new();
    for i in 0..3 {
        held.push(ask(i).try_acquire().await.expect("an answer").expect("a permit"));
    }
    assert!(held.is_sorted_by(|x, y| x.token() < y.token()));
    assert!(ask(0).try_acquire().await.expect("an answer").is_err(), "a fourth of three");
    let e = a.lock(&name).permits(NonZeroU32::new(4).expect("not zero")).try_acquire().await;
    let e = e.expect_err("another number of permits");
    assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{e:?}");
    assert!(e.message().contains('3'), "the number in use is not named: {e:?}");
    let lock = ask(1);
    let fourth = task(async move { lock.await.expect("a permit") });
    give_back(held.remove(1)).await;
    held.push(soon("the freed permit", fourth).await.expect("no panic"));
    assert!(ask(0).try_acquire().await.expect("an answer").is_err(), "the number grew");
    for guard in held {
        give_back(guard).await;
    }
    all_free(&a, &name).await;
}

/// What a store does not serve it refuses, and says where to look.
pub async fn an_unserved_mode_is_refused(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let two = NonZeroU32::new(2).expect("not zero");
    let capability = site.capability();
    for (served, mode) in
        [(capability.shared, Mode::Shared), (capability.permits, Mode::Permit(two))]
    {
        if !served {
            let e = locks.lock(&name).mode(mode).try_acquire().await.expect_err("not served");
            assert!(e.kind() == Kind::Unsupported && e.hint().is_some(), "{e:?}");
        }
    }
}
