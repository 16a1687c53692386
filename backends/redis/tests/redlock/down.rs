//! Nodes that die, one after the other or together.

use std::time::Duration;

use distlock_core::{Clock, Kind, LossReason};
use distlock_testkit::wait::timed;

use super::{LAWS, Nodes, ask, give_back, held_at, refused, take, until};

/// A tenth of it is what a node has to answer in, and most of it what a server has to start in.
const TTL: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn two_of_five_may_be_dead() {
    let nodes = Nodes::start(5).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    let before = take(&a, "held", LONG).await;
    nodes.0[1].kill();
    nodes.0[4].kill();
    let guard = take(&a, "x", LONG).await;
    refused(&b, "x", LONG).await;
    refused(&b, "held", LONG).await;
    before.check().unwrap();
    // One who waits is served, too.
    let waiting = super::task({
        let lock = b.lock("x").ttl(LONG);
        async move { lock.await }
    });
    until("it stands in line", async || {
        a.show("x").await.unwrap().is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let first = guard.token();
    give_back(guard).await;
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > first);
    give_back(next).await;
    give_back(before).await;
    // A client that comes now finds a majority as well.
    let late = nodes.client(LAWS).await;
    give_back(take(&late, "x", LONG).await).await;
}

pub(crate) async fn with_three_of_five_dead_nobody_is_granted_and_holders_are_told() {
    let nodes = Nodes::start(5).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    let guard = take(&a, "x", TTL).await;
    for i in [0, 2, 3] {
        nodes.0[i].kill();
    }
    let told = async {
        for name in ["x", "y"] {
            let e = b.lock(name).ttl(TTL).try_acquire().await.expect_err("no majority");
            assert_eq!(e.kind(), Kind::Unreachable);
            assert!(e.to_string().contains("of 5 nodes"), "{e}");
            assert!(e.hint().is_some_and(|h| h.contains("3 of them")), "{e:?}");
        }
        guard.lost().await
    };
    let (took, lost) = timed(told).await;
    assert!(took < TTL, "told after {took:?}");
    assert_eq!(lost.why, LossReason::Expired);
    // A majority again: free for everybody.
    for i in [0, 2, 3] {
        nodes.0[i].again().await.unwrap();
    }
    let next = b.lock("x").ttl(TTL).try_acquire_for(TTL * 2).await;
    give_back(next.unwrap().expect("granted")).await;
}

/// Acquired on three of five, and then only two renew.
pub(crate) async fn s23_of_three_that_granted_only_two_renew() {
    let nodes = Nodes::start(5).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    nodes.0[3].kill();
    nodes.0[4].kill();
    let guard = take(&a, "x", TTL).await;
    nodes.0[2].kill();
    // The two that did not grant come back, and know nothing of it.
    nodes.0[3].again().await.unwrap();
    nodes.0[4].again().await.unwrap();
    let (took, _) = timed(guard.lost()).await;
    assert!(took < TTL, "told after {took:?}");
    let next = b.lock("x").ttl(TTL).try_acquire_for(TTL * 2).await;
    let next = next.unwrap().expect("granted after the loss");
    assert!(next.token() > guard.token());
    give_back(next).await;
}

/// Nodes that forget one after the other are taken again in time, so a hold outlives them all.
pub(crate) async fn a_hold_moves_through_a_rolling_restart() {
    let nodes = Nodes::start(3).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    let (clock, ttl) = (Clock::system(), Duration::from_secs(6));
    let guard = take(&a, "x", ttl).await;
    let end = || clock.now().plus(guard.remaining());
    for server in &nodes.0 {
        server.wipe().await.unwrap();
        until("the node has it again", async || held_at(server, "x").await).await;
        // It counts from the renewal after that. The answer that it has it again may have been too
        // late: then it is the second.
        for _ in 0..2 {
            let before = end();
            until("it has counted", async || end() > before.plus(ttl / 10)).await;
        }
        guard.check().expect("held by the others meanwhile");
    }
    refused(&b, "x", ttl).await;
    give_back(guard).await;
}

/// What is taken again in a renewal does not count in it: two of three that forget at once end the
/// hold, although both could be taken again.
pub(crate) async fn two_nodes_that_forget_at_once_end_the_hold() {
    let nodes = Nodes::start(3).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    let guard = take(&a, "x", TTL).await;
    for server in &nodes.0[..2] {
        ask(server.addr(), &["FLUSHALL"]).await;
    }
    let lost = guard.lost().await;
    assert_eq!(lost.why, LossReason::Gone, "found out by the renewal");
    let next = b.lock("x").ttl(TTL).try_acquire_for(TTL * 2).await;
    give_back(next.unwrap().expect("granted")).await;
}

pub(crate) async fn a_full_node_still_renews_and_releases() {
    let nodes = Nodes::start(3).await.unwrap();
    let (a, b) = (nodes.client(LAWS).await, nodes.client(LAWS).await);
    let guard = take(&a, "x", TTL).await;
    for server in &nodes.0 {
        ask(server.addr(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    }
    let e = b.lock("y").ttl(TTL).try_acquire().await.expect_err("nothing more fits");
    assert!(e.to_string().contains("memory limit"), "{e}");
    let clock = Clock::system();
    let full = clock.now();
    until("it is held longer than its TTL", async || clock.now().since(full) > TTL).await;
    guard.check().expect("renewed on full servers");
    give_back(guard).await;
    for server in &nodes.0 {
        assert!(!held_at(server, "x").await);
    }
}
