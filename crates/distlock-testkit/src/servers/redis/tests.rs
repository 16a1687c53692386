use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::{Server, Wire, raw};
use super::*;
use crate::proxy::{Proxy, Way};
use crate::wait::until;

/// One command and the first line of its answer; `None` when none comes in time.
async fn ask(addr: SocketAddr, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
    let mut buffer = [0; 256];
    let read = stream.read(&mut buffer);
    let n = Clock::system().timeout(Duration::from_millis(500), read).await?.ok()?;
    let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
    text.lines().next().map(str::to_owned)
}

async fn says(addr: SocketAddr, command: &str, answer: &str) {
    let mut said = None;
    until(command, async || {
        said = ask(addr, command).await;
        said.is_some()
    })
    .await;
    assert_eq!(said.as_deref(), Some(answer), "{command}");
}

#[tokio::test]
async fn a_real_redis_is_paused_killed_and_wiped() {
    let server = Server::start(redis()).await.expect("`cargo xtask setup` installs redis");
    says(server.addr(), "SET k v", "+OK").await;
    server.pause();
    assert_eq!(ask(server.addr(), "EXISTS k").await, None);
    server.resume();
    says(server.addr(), "EXISTS k", ":1").await;
    server.kill();
    assert_eq!(ask(server.addr(), "PING").await, None);
    server.wipe().await.expect("it starts empty");
    says(server.addr(), "EXISTS k", ":0").await;
}

#[tokio::test]
async fn a_real_redis_behind_a_proxy_loses_answers_and_hears_twice() {
    let server = Server::start(redis()).await.expect("`cargo xtask setup` installs redis");
    let proxy = Proxy::to(server.addr()).await.expect("a free port");
    says(proxy.addr(), "INCR n", ":1").await;
    proxy.drop_replies();
    assert_eq!(ask(proxy.addr(), "INCR n").await, None);
    says(server.addr(), "GET n", "$1").await;
    proxy.heal();
    says(proxy.addr(), "INCR n", ":3").await; // the one without an answer took effect
    proxy.duplicate(Way::Requests);
    says(proxy.addr(), "INCR n", ":4").await;
    says(proxy.addr(), "INCR n", ":6").await;
    proxy.cut_both();
    assert_eq!(ask(proxy.addr(), "PING").await, None);
}

async fn said(addr: SocketAddr, command: &[&str]) -> String {
    raw(addr, command).await.expect("an answer").to_string()
}

#[tokio::test]
async fn what_is_durable_outlives_a_kill_and_what_is_not_does_not() {
    let kept = Redis::new().durable().start().await.unwrap();
    let lost = Redis::new().start().await.unwrap();
    for server in [&kept, &lost] {
        assert_eq!(said(server.addr(), &["SET", "k", "v"]).await, "OK");
        server.kill();
        server.again().await.unwrap();
    }
    assert_eq!(said(kept.addr(), &["GET", "k"]).await, "v");
    assert_eq!(said(lost.addr(), &["GET", "k"]).await, "nil");
    let lazy = Redis::new().everysec().start().await.unwrap();
    let fsync = said(lazy.addr(), &["CONFIG", "GET", "append*"]).await;
    assert!(fsync.contains("appendonly yes") && fsync.contains("appendfsync everysec"), "{fsync}");
}

#[tokio::test]
async fn a_password_and_users_are_asked_for() {
    let server = Redis::new().password("open sesame").start().await.unwrap();
    assert!(said(server.addr(), &["GET", "k"]).await.starts_with("-NOAUTH"));
    let mut wire = Wire::to(server.addr()).await.unwrap();
    assert_eq!(wire.call(&["AUTH", "open sesame"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["GET", "k"]).await.unwrap().to_string(), "nil");

    let users = ["default off", "app on >pw ~dl:* &* +@all", "shy on nopass ~* -@all"];
    let server = Redis::new().users(&users).start().await.unwrap();
    server.wipe().await.unwrap(); // the list is written again
    let mut wire = Wire::to(server.addr()).await.unwrap();
    assert!(wire.call(&["AUTH", "app", "no"]).await.unwrap().to_string().starts_with("-WRONGPASS"));
    assert_eq!(wire.call(&["AUTH", "app", "pw"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["SET", "dl:k", "v"]).await.unwrap().to_string(), "OK");
    assert!(wire.call(&["SET", "k", "v"]).await.unwrap().to_string().starts_with("-NOPERM"));
}

#[tokio::test]
async fn a_unix_socket_reaches_the_same_server() {
    let server = Redis::new().unix_socket().start().await.unwrap();
    let mut wire = Wire::to_socket(Redis::socket(&server)).await.unwrap();
    assert_eq!(wire.call(&["SET", "k", "v"]).await.unwrap().to_string(), "OK");
    assert_eq!(said(server.addr(), &["GET", "k"]).await, "v");
}

#[tokio::test]
async fn a_full_memory_refuses_or_evicts_as_told() {
    let full = Redis::new().maxmemory(1, "noeviction").start().await.unwrap();
    assert!(said(full.addr(), &["SET", "k", "v"]).await.starts_with("-OOM"));
    let lossy = Redis::new().maxmemory(64 << 20, "allkeys-lru").start().await.unwrap();
    let policy = said(lossy.addr(), &["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(policy, "[maxmemory-policy allkeys-lru]");
}

#[tokio::test]
async fn a_replica_follows_refuses_writes_and_is_counted() {
    let primary = Redis::new().min_replicas(1, 10).start().await.unwrap();
    assert!(said(primary.addr(), &["SET", "k", "v"]).await.starts_with("-NOREPLICAS"));
    let replica = Redis::new().replica_of(primary.addr()).arg("hz", "100").start().await.unwrap();
    until("the replica counts", async || said(primary.addr(), &["SET", "k", "v"]).await == "OK")
        .await;
    let mut wire = Wire::to(primary.addr()).await.unwrap();
    assert_eq!(wire.call(&["SET", "k", "v"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["WAIT", "1", "0"]).await.unwrap().int(), Some(1)); // for its own write
    assert_eq!(said(replica.addr(), &["GET", "k"]).await, "v");
    assert!(said(replica.addr(), &["SET", "k", "w"]).await.starts_with("-READONLY"));
}
