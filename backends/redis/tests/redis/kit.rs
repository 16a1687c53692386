//! What every test needs.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Busy, Error, Guard, Locks, Token};
use distlock_redis::open;
use distlock_testkit::servers::{Reply, Server, Wire, raw};
use tokio::task::JoinHandle;

pub(crate) use distlock_testkit::wait::{give_back, take_for, task, timed, within};

distlock_testkit::waits!(soon: Duration::from_secs(20), limit: Duration::from_secs(300));

pub(crate) use distlock_testkit::Named;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of its own, as if it were another process.
/// Every waiter in the queue of the store, which is what is looked at here.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Locks::options().strict_order().open(open(StoreUrl::parse(url)?).await?)
}

/// A client of a server; the query without its question mark.
pub(crate) async fn client(server: &Server, query: &str) -> Locks {
    client_at(server.addr(), query).await
}

pub(crate) async fn client_at(addr: SocketAddr, query: &str) -> Locks {
    connect(&format!("redis://{addr}?{query}")).await.unwrap()
}

/// An answer of the server to a command, as text.
pub(crate) async fn said(server: &Server, command: &[&str]) -> String {
    raw(server.addr(), command).await.unwrap().to_string()
}

/// Every key of a server and what is left of it in milliseconds; negative for one without an end.
pub(crate) async fn keys(server: &Server) -> Vec<(String, i64)> {
    Wire::to(server.addr()).await.unwrap().keys().await.unwrap()
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Asks for a lock that must be busy.
pub(crate) async fn busy(locks: &Locks, name: &str) -> Busy {
    match locks.lock(name).ttl(ms(2000)).try_acquire().await.expect("an answer") {
        Ok(guard) => panic!("{name:?} should be busy, but {guard:?}"),
        Err(busy) => busy,
    }
}

/// Waits for a lock in a task; the token with which it was held, given back at once.
pub(crate) fn waiter(locks: &Locks, name: &str, ttl: Duration) -> JoinHandle<Token> {
    let lock = locks.lock(name).ttl(ttl);
    task(async move {
        let guard = lock.acquire().await.expect("a turn");
        let token = guard.token();
        give_back(guard).await;
        token
    })
}

/// The lines of `CLIENT LIST` of clients that are distlock's.
pub(crate) async fn ours(server: &Server) -> Vec<String> {
    let Reply::Text(all) = raw(server.addr(), &["CLIENT", "LIST"]).await.unwrap() else {
        panic!("CLIENT LIST is text")
    };
    // Not the one that asks, nor a primary or replica of the server.
    let others = ["cmd=client|list", " flags=M ", " flags=S "];
    let ours = |line: &&str| !others.iter().any(|other| line.contains(other));
    all.lines().filter(ours).map(str::to_owned).collect()
}
