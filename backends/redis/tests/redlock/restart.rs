//! Nodes that forget, and nodes whose clock is wrong.

use std::time::Duration;

use distlock_core::{Locks, Token};
use distlock_testkit::servers::{Redis, Server, WallClock};

use super::{LAWS, Nodes, connect, give_back, take, take_in_the_end, url};

const TTL: Duration = Duration::from_secs(10);

/// A holds by two of three; one of the two and the third start anew, empty. What B gets, and
/// whether A still believes in its hold then.
async fn forgotten(ttl: Duration, more: &str) -> (Nodes, Locks, Result<Token, ()>, bool) {
    let nodes = Nodes::start(3).await.unwrap();
    let options = format!("max_ttl={}s&node_timeout=5s{more}", ttl.as_secs());
    let a = nodes.client(&options).await;
    let b = nodes.client(&options).await;
    // All servers are new: a first grant is when their own quarantine is over.
    let first = a.lock("x").ttl(ttl).try_acquire_for(Duration::from_secs(15)).await;
    give_back(first.unwrap().expect("granted in the end")).await;
    nodes.0[2].kill();
    let guard = take_in_the_end(|| a.lock("x").ttl(ttl).without_renewal()).await;
    nodes.0[2].again().await.unwrap();
    nodes.0[1].wipe().await.unwrap();
    let next = b.lock("x").ttl(ttl).try_acquire_for(Duration::from_secs(15)).await.unwrap();
    let (token, both) = (next.as_ref().map(|n| n.token()).map_err(drop), guard.check().is_ok());
    drop(next);
    let nodes = std::sync::Arc::into_inner(nodes).expect("nobody else has them");
    (nodes, a, token, both)
}

pub(crate) async fn s25_a_node_restarted_empty_lets_nobody_in() {
    let (_nodes, _a, token, both) = forgotten(Duration::from_secs(5), "").await;
    token.expect("granted once the quarantine is over");
    assert!(!both, "two holders at once");
}

/// The control: without the quarantine the same story ends with two holders.
pub(crate) async fn without_the_quarantine_it_would() {
    // Long enough for two servers to start while A believes.
    let ttl = Duration::from_secs(20);
    let (_nodes, _a, token, both) = forgotten(ttl, "&quarantine=off").await;
    token.expect("granted");
    assert!(both, "the story does not show what the quarantine is for");
}

pub(crate) async fn a_clock_that_jumps_leaves_the_fence_in_order() {
    let clocks: Vec<WallClock> = (0..3).map(|_| WallClock::new().unwrap()).collect();
    let mut servers: Vec<Server> = Vec::new();
    for clock in &clocks {
        servers.push(Redis::new().clock(clock).start().await.unwrap());
    }
    let url = url(servers.iter().map(Server::addr), LAWS);
    let a = connect(&url).await.unwrap();
    let mut last = take(&a, "x", TTL).await.token();
    let hour = Duration::from_secs(3600);
    let jumps: [&dyn Fn(); 6] = [
        &|| clocks[0].forward(hour),
        &|| clocks[0].back(hour),
        &|| clocks[..2].iter().for_each(|c| c.forward(hour)),
        &|| clocks[..2].iter().for_each(|c| c.back(hour)),
        &|| clocks.iter().for_each(|c| c.back(hour)),
        &|| clocks[2].forward(2 * hour),
    ];
    for (i, jump) in jumps.into_iter().enumerate() {
        jump();
        // One who has seen all tokens, and one who has seen none.
        for locks in [&a, &connect(&url).await.unwrap()] {
            for _ in 0..3 {
                let lock = locks.lock("x").ttl(TTL);
                let guard = lock.try_acquire_for(TTL * 2).await.unwrap();
                let guard = guard.unwrap_or_else(|busy| panic!("after jump {i}: {busy}"));
                assert!(guard.token() > last, "{:?} after {last:?}, jump {i}", guard.token());
                last = guard.token();
                // Given back or not, as the clock has it: a lease may have run out by the jump.
                let _ = guard.release().await.unwrap();
            }
        }
    }
}
