//! What every test needs.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Busy, Clock, Error, Guard, Locks, Released, Token};
use distlock_redis::open;
use distlock_testkit::servers::{Reply, Server, Wire, raw};
use tokio::task::JoinHandle;

/// A test with its name.
pub(crate) type Named = (&'static str, fn());

/// How long an event that must come may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// No test takes longer.
const LIMIT: Duration = Duration::from_secs(50);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(within(LIMIT, "the test ends", work));
    runtime.shutdown_background();
    done
}

/// Runs a future as a task of its own.
#[allow(clippy::disallowed_methods)] // the door of the tests: their tasks end with their runtime
pub(crate) fn task<T: Send + 'static>(
    f: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(f)
}

pub(crate) async fn within<T>(d: Duration, what: &str, f: impl Future<Output = T>) -> T {
    Clock::system().timeout(d, f).await.unwrap_or_else(|| panic!("{what}: not within {d:?}"))
}

pub(crate) async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    within(SOON, what, f).await
}

/// How long something takes.
pub(crate) async fn timed<T>(f: impl Future<Output = T>) -> (Duration, T) {
    let began = Clock::system().now();
    let value = f.await;
    (Clock::system().now().since(began), value)
}

/// Asks until the answer is yes.
pub(crate) async fn until(what: &str, mut yes: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !yes().await {
            Clock::system().sleep(ms(5)).await;
        }
    })
    .await;
}

/// A client of its own, as if it were another process.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(open(StoreUrl::parse(url)?).await?))
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

pub(crate) async fn take_for(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Asks for a lock that must be busy.
pub(crate) async fn busy(locks: &Locks, name: &str) -> Busy {
    match locks.lock(name).ttl(ms(2000)).try_acquire().await.expect("an answer") {
        Ok(guard) => panic!("{name:?} should be busy, but {guard:?}"),
        Err(busy) => busy,
    }
}

/// Releases a guard that must still hold.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer to a release"), Released::Released);
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

/// Waits until so many stand in line.
pub(crate) async fn line_of(locks: &Locks, name: &str, n: usize) {
    until(&format!("{n} in line for {name:?}"), async || {
        locks.show(name).await.is_ok_and(|l| l.map_or(0, |l| l.waiters.len()) == n)
    })
    .await;
}

/// Waits until nobody holds the lock and nobody waits for it.
pub(crate) async fn all_free(locks: &Locks, name: &str) {
    until(&format!("{name:?} is free"), async || locks.show(name).await.is_ok_and(|l| l.is_none()))
        .await;
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
