//! What every test needs.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Busy, Clock, Error, Guard, Locks, Released};
use distlock_etcd::Etcd;
use distlock_testkit::servers::{Server, etcd};
use tokio::task::JoinHandle;

/// A test with its name.
pub(crate) type Named = (&'static str, fn());

/// How long an event that must come may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// No test takes longer.
const LIMIT: Duration = Duration::from_secs(200);
/// A TTL that nothing here outlives: what becomes free under it was given back.
pub(crate) const LONG: Duration = Duration::from_secs(600);

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

/// A private server.
pub(crate) async fn server() -> Server {
    Server::start(etcd().unwrap()).await.unwrap()
}

/// A client of its own, as if it were another process.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(Etcd::connect(StoreUrl::parse(url)?).await?))
}

pub(crate) async fn client(server: &Server) -> Locks {
    connect(&format!("etcd://{}", server.addr())).await.unwrap()
}

/// A client whose calls end soon.
pub(crate) async fn hasty(addr: SocketAddr) -> Locks {
    connect(&format!("etcd://{addr}?timeout=400ms")).await.unwrap()
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Asks for a lock that must be busy.
pub(crate) async fn busy(locks: &Locks, name: &str) -> Busy {
    match locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer") {
        Ok(guard) => panic!("{name:?} should be busy, but {guard:?}"),
        Err(busy) => busy,
    }
}

/// Releases a guard that must still hold.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer to a release"), Released::Released);
}

/// Has a lease of this TTL made, so that the next acquire is one call.
pub(crate) async fn warm(locks: &Locks, ttl: Duration) {
    give_back(take(locks, "warm", ttl).await).await;
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
