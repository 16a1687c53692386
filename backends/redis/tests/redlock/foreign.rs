//! Other languages' Redlock clients, as they speak: raw commands.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_testkit::servers::{Reply, Server};

use super::{LAWS, Nodes, ask, give_back, refused, take, take_in_the_end, until};

const TTL: Duration = Duration::from_secs(20);
const DELETE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                      return redis.call('del',KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                      return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";

/// What a foreign client does at each node; how many said yes.
async fn foreign(servers: &[Server], each: impl AsyncFn(SocketAddr) -> bool) -> usize {
    let mut yes = 0;
    for server in servers {
        yes += usize::from(each(server.addr()).await);
    }
    yes
}

async fn set(servers: &[Server], name: &str) -> usize {
    let ok = Reply::Status("OK".to_owned());
    foreign(servers, async |at| {
        ask(at, &["SET", name, "foreign-value", "NX", "PX", "20000"]).await == ok
    })
    .await
}

async fn delete(servers: &[Server], name: &str, value: &str) -> usize {
    foreign(servers, async |at| ask(at, &["EVAL", DELETE, "1", name, value]).await.int() == Some(1))
        .await
}

pub(crate) async fn classic_clients_and_we_exclude_each_other() {
    let nodes = Nodes::start(3).await.unwrap();
    let ours = nodes.client(&format!("{LAWS}&algorithm=plain")).await;
    // They hold it: we do not get it, and leave nothing.
    assert_eq!(set(&nodes.0, "orders").await, 3);
    refused(&ours, "orders", TTL).await;
    let extended = foreign(&nodes.0, async |at| {
        ask(at, &["EVAL", EXTEND, "1", "orders", "foreign-value", "30000"]).await.int() == Some(1)
    });
    assert_eq!(extended.await, 3, "their value was touched");
    assert_eq!(delete(&nodes.0, "orders", "foreign-value").await, 3);
    // We hold it: they do not get it, cannot delete it by accident, and see a key that ends.
    let guard = take(&ours, "orders", TTL).await;
    for server in &nodes.0 {
        // A majority had it at once; a node that was connected late gets it by a renewal.
        until("every node has it", async || {
            ask(server.addr(), &["EXISTS", "orders"]).await.int() == Some(1)
        })
        .await;
    }
    assert_eq!(set(&nodes.0, "orders").await, 0);
    assert_eq!(delete(&nodes.0, "orders", "foreign-value").await, 0);
    for server in &nodes.0 {
        let left = ask(server.addr(), &["PTTL", "orders"]).await.int().unwrap();
        assert!((1..=20_000).contains(&left), "{left}");
    }
    guard.check().unwrap();
    give_back(guard).await;
    assert_eq!(set(&nodes.0, "orders").await, 3, "free for them at once");
    // One of ours that waits gets in when they leave, by asking again.
    let waiting = super::task({
        let lock = ours.lock("orders").ttl(TTL);
        async move { lock.await }
    });
    assert_eq!(delete(&nodes.0, "orders", "foreign-value").await, 3);
    give_back(waiting.await.unwrap().unwrap()).await;
}

pub(crate) async fn a_foreign_minority_stops_nobody() {
    let nodes = Nodes::start(5).await.unwrap();
    let ours = nodes.client(&format!("{LAWS}&algorithm=plain")).await;
    assert_eq!(set(&nodes.0[..2], "x").await, 2);
    // All the others are needed for it, and a client is open as soon as it has a majority.
    let guard = take_in_the_end(|| ours.lock("x").ttl(TTL)).await;
    give_back(guard).await;
    assert_eq!(delete(&nodes.0[..2], "x", "foreign-value").await, 2, "theirs are theirs");
    assert_eq!(set(&nodes.0[2..], "x").await, 3, "ours are gone");
    refused(&ours, "x", TTL).await;
    for server in &nodes.0[..2] {
        let left = ask(server.addr(), &["EXISTS", "x"]).await;
        assert_eq!(left.int(), Some(0), "a refused attempt left its key at {}", server.addr());
    }
}

/// A name that cannot be a key is the caller's to mend, and leaves nothing to be told to nodes.
pub(crate) async fn a_name_among_our_own_keys_is_refused() {
    let nodes = Nodes::start(3).await.unwrap();
    let a = nodes.client(&format!("{LAWS}&algorithm=plain")).await;
    let e = a.lock("dl:x").ttl(TTL).try_acquire().await.expect_err("refused");
    assert_eq!(e.kind(), distlock_core::Kind::Usage, "{e}");
    assert!(e.hint().is_some_and(|h| h.contains("dl:")), "{e:?}");
    give_back(take(&a, "x", TTL).await).await;
}
