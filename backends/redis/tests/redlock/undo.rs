//! Attempts that fail, and answers that come late.

use std::time::Duration;

use distlock_core::{Clock, Kind};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::wait::within;

use super::{LAWS, Nodes, connect, give_back, held_at, take, task, until, url};

const LONG: Duration = Duration::from_secs(600);

/// Servers, and a proxy before each.
async fn behind_proxies(n: usize) -> (std::sync::Arc<Nodes>, Vec<Proxy>) {
    let nodes = Nodes::start(n).await.unwrap();
    let mut proxies = Vec::new();
    for server in &nodes.0 {
        proxies.push(Proxy::to(server.addr()).await.unwrap());
    }
    (nodes, proxies)
}

/// The servers take the request and no answer comes back: the acquire fails, and what it left is
/// removed everywhere as soon as they can be told.
pub(crate) async fn s24_a_failed_acquire_leaves_nothing() {
    let (nodes, proxies) = behind_proxies(5).await;
    let options = "quarantine=off&max_ttl=1h&node_timeout=200ms&timeout=1s";
    let a = connect(&url(proxies.iter().map(Proxy::addr), options)).await.unwrap();
    proxies[..3].iter().for_each(Proxy::drop_replies);
    let e = a.lock("x").ttl(LONG).try_acquire().await.expect_err("two answers are too few");
    assert_eq!(e.kind(), Kind::Unreachable, "{e}");
    proxies.iter().for_each(Proxy::heal);
    for server in &nodes.0 {
        until("nothing is left at a node", async || !held_at(server, "x").await).await;
    }
    let b = nodes.client(LAWS).await;
    give_back(take(&b, "x", LONG).await).await;
}

/// Won without the slowest node, and given back before that one has heard of it: it is told too.
pub(crate) async fn s24_stragglers_of_an_early_win_are_given_back() {
    let (nodes, proxies) = behind_proxies(5).await;
    let a = connect(&url(proxies.iter().map(Proxy::addr), LAWS)).await.unwrap();
    // Every node has seen the scripts: a call is then one message.
    give_back(take(&a, "warm", LONG).await).await;
    until("all have given back", async || !held_at(&nodes.0[4], "warm").await).await;
    proxies[4].cut(Way::Requests);
    let guard = take(&a, "x", LONG).await;
    assert!(!held_at(&nodes.0[4], "x").await, "it has not heard of it");
    proxies[4].heal();
    until("the straggler arrives", async || held_at(&nodes.0[4], "x").await).await;
    give_back(guard).await;
    for server in &nodes.0 {
        until("nothing is left at a node", async || !held_at(server, "x").await).await;
    }
    // And one that arrives only after the release.
    proxies[4].cut(Way::Requests);
    give_back(take(&a, "y", LONG).await).await;
    proxies[4].heal();
    until("the node has heard of it", async || {
        let key = super::ask(nodes.0[4].addr(), &["EXISTS", "rl:{:y}:z0"]).await;
        key.int() == Some(1)
    })
    .await;
    assert!(!held_at(&nodes.0[4], "y").await, "it came back after its end");
}

/// What the answers took is not there to be used; an answer that takes too long is none.
pub(crate) async fn a_slow_majority_eats_the_validity() {
    let (nodes, proxies) = behind_proxies(3).await;
    let a = connect(&url(proxies.iter().map(Proxy::addr), LAWS)).await.unwrap();
    let (ttl, slow) = (Duration::from_secs(30), Duration::from_millis(150));
    proxies[..2].iter().for_each(|p| p.delay(slow));
    let clock = Clock::system();
    let before = clock.now();
    let guard = take(&a, "x", ttl).await;
    let took = clock.now().since(before);
    assert!(took >= 2 * slow, "a majority was slow, but it took {took:?}");
    let margin = a.capability().margin(ttl);
    let most = ttl - margin - 2 * slow;
    assert!(guard.remaining() <= most, "{:?} of at most {most:?}", guard.remaining());
    give_back(guard).await;
    // Slower than a tenth of the TTL: not waited for.
    let e = a.lock("y").ttl(Duration::from_secs(1)).try_acquire().await;
    assert_eq!(e.expect_err("too slow to count").kind(), Kind::Unreachable);
    proxies.iter().for_each(Proxy::heal);
    for server in &nodes.0 {
        until("nothing is left at a node", async || !held_at(server, "y").await).await;
    }
}

/// A connection that swallows everything is given up although no call waits long for its answer.
pub(crate) async fn a_silent_connection_is_made_anew() {
    let (_nodes, proxies) = behind_proxies(3).await;
    let options = "quarantine=off&max_ttl=1h&node_timeout=20ms&timeout=400ms";
    let a = connect(&url(proxies.iter().map(Proxy::addr), options)).await.unwrap();
    let before = proxies[2].accepted();
    proxies[2].cut_both();
    until("it is connected to again", async || {
        if let Ok(Ok(guard)) = a.lock("x").ttl(LONG).try_acquire().await {
            let _ = guard.release().await;
        }
        proxies[2].accepted() > before
    })
    .await;
}

pub(crate) async fn sixteen_contenders_finish() {
    let nodes = Nodes::start(5).await.unwrap();
    let mut tasks = Vec::new();
    for i in 0..16 {
        let locks = nodes.client(LAWS).await;
        tasks.push(task(async move {
            let mut tokens = Vec::new();
            for _ in 0..5 {
                // Half of them wait in line, half try again and again.
                let guard = loop {
                    let lock = locks.lock("x").ttl(LONG);
                    let got = match i % 2 {
                        0 => lock.await.map(Ok),
                        _ => lock.try_acquire_for(Duration::from_millis(200)).await,
                    };
                    match got {
                        Ok(Ok(guard)) => break guard,
                        Ok(Err(_)) => {}
                        // Nodes may seem silent on a machine that stood still.
                        Err(e) => assert!(e.is_transient(), "{e:?}"),
                    }
                };
                tokens.push(guard.token());
                give_back(guard).await;
            }
            tokens
        }));
    }
    let all = async {
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.extend(task.await.unwrap());
        }
        tokens
    };
    let mut tokens = within(Duration::from_secs(60), "they finish", all).await;
    let count = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!((count, tokens.len()), (80, 80), "every grant has a token of its own");
}
