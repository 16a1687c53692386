//! Requests whose answers, or whose very packets, come too late.

use std::time::Duration;

use distlock_core::{Clock, Kind, Outcome};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::memcached;

use crate::kit::{LONG, Valve, client, soon, start, take, until};

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
