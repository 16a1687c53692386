//! Requests whose answers, or whose very packets, come too late.

use std::time::Duration;

use distlock_core::seam::{Attempt, Released};
use distlock_core::{Clock, Kind, Outcome};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::memcached;

use crate::kit::{LONG, Valve, ask, client, soon, start, take, until};

/// The packet of a cancelled acquire arrives after the cancel, over a connection that its client has
/// given up: the lock that nobody holds is found and removed long before its lease ends.
#[tokio::test]
async fn an_acquire_that_arrives_after_its_cancel_does_not_stay() {
    let server = start(memcached()).await;
    let mut valve = Valve::to(server.addr()).await;
    let (a, b) = (client(valve.addr).await, client(server.addr()).await);
    valve.shut_at("ms dl1::l:");
    let lock = a.lock("x").ttl(LONG);
    let asking = tokio::spawn(async move { lock.try_acquire().await });
    valve.holds().await;
    let e = soon("its error", asking).await.unwrap().expect_err("no answer");
    assert!(e.outcome() == Outcome::Unknown && e.kind() == Kind::Unreachable, "{e:?}");
    // Its cancel has gone out over a new connection once another call of this client is answered.
    assert!(a.show("x").await.unwrap().is_none());
    valve.open();
    until("the ghost", async || b.show("x").await.unwrap().is_some()).await;
    until("it is gone", async || b.show("x").await.unwrap().is_none()).await;
    let _ = take(&b, "x").await.release().await.unwrap();
}

/// The answer to a release is lost. The lock is free, and the repeated release says so.
#[tokio::test]
async fn a_release_without_answer_can_be_repeated() {
    let server = start(memcached()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let (a, b) = (client(proxy.addr()).await, client(server.addr()).await);
    let ask = ask("x");
    let granted = a.backend().acquire(&ask, None).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
    proxy.drop_replies();
    let e = a.backend().release(&ask.key(), None).await.expect_err("the answer was lost");
    assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
    assert!(b.show("x").await.unwrap().is_none(), "it took effect");
    proxy.heal();
    for _ in 0..2 {
        assert_eq!(a.backend().release(&ask.key(), None).await.unwrap(), Released::Released);
    }
}

/// The answer to an acquire is lost: asked again it is one hold, with a token above all before.
#[tokio::test]
async fn s22_a_lost_answer_is_not_a_second_entry() {
    let server = start(memcached()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let (a, b) = (client(proxy.addr()).await, client(server.addr()).await);
    let before = take(&b, "x").await;
    let last = before.token();
    let _ = before.release().await.unwrap();
    let ask = ask("x");
    proxy.drop_replies();
    let e = a.backend().acquire(&ask, None).await.expect_err("the answer was lost");
    assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
    proxy.heal();
    let granted = a.backend().acquire(&ask, None).await.unwrap();
    let Attempt::Granted(grant) = granted else { panic!("its own item is in its way") };
    let shown = b.show("x").await.unwrap().expect("it is held");
    assert_eq!((shown.holds.len(), shown.holds[0].holder.token), (1, grant.tokens.first()));
    assert!(grant.tokens.first() > last);
    assert_eq!(a.backend().release(&ask.key(), None).await.unwrap(), Released::Released);
}

/// A packet arrives twice: the second answers are found out, and no lock is answered with another's.
#[tokio::test]
async fn a_packet_that_arrives_twice_confuses_nobody() {
    let server = start(memcached()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let (a, b) = (client(proxy.addr()).await, client(server.addr()).await);
    for i in 0..20 {
        let (mine, theirs) = (format!("mine {i}"), format!("theirs {i}"));
        let held = take(&b, &theirs).await;
        proxy.duplicate(Way::Requests);
        let asked = a.lock(&theirs).ttl(LONG).try_acquire().await;
        assert!(!matches!(asked, Ok(Ok(_))), "granted what another holds");
        // Whatever the doubled packet broke, it is over after an error.
        until("a clear answer", async || match a.lock(&mine).ttl(LONG).try_acquire().await {
            Ok(Ok(guard)) => {
                b.show(&mine).await.unwrap().unwrap().holds[0].holder.token == guard.token()
            }
            _ => false,
        })
        .await;
        assert!(held.check().is_ok());
        let _ = held.release().await.unwrap();
    }
}

/// A silent server: the holder is told before its lease could end, and nothing hangs.
#[tokio::test]
async fn s04_silence_ends_a_hold_and_no_call_hangs() {
    let server = start(memcached()).await;
    let locks = client(server.addr()).await;
    let guard = locks.lock("x").ttl(Duration::from_secs(4)).await.unwrap();
    let (clock, end) = (Clock::system(), Clock::system().now().plus(Duration::from_secs(4)));
    server.pause();
    let lost = soon("the loss", guard.lost()).await;
    assert!(clock.now() < end, "told only after the lease could have ended: {lost}");
    let start = clock.now();
    let e = locks.lock("y").try_acquire().await.expect_err("no answer");
    assert!(e.kind() == Kind::Unreachable && e.hint().is_some(), "{e:?}");
    assert!(clock.now().since(start) < Duration::from_secs(8), "{:?}", clock.now().since(start));
    server.resume();
    until("it answers again", async || locks.lock("y").try_acquire().await.is_ok()).await;
}
