//! What every test needs.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::seam::Ask;
use distlock_core::url::StoreUrl;
use distlock_core::{
    Clock, Error, FullName, Guard, Label, Locks, Mode, Name, Owner, Patience, Released, ReqId,
    engine,
};
use distlock_testkit::servers::{Server, zookeeper};
use distlock_zookeeper::{ZooKeeper, node};
use tokio::task::JoinHandle;
use zookeeper_client::Client;

/// A test with its name.
pub(crate) type Named = (&'static str, fn());

/// How long an event that must come may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(80);
/// No test takes longer.
const LIMIT: Duration = Duration::from_secs(180);
/// A TTL that nothing here outlives: what becomes free under it was given back.
pub(crate) const LONG: Duration = ms(600_000);

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
            Clock::system().sleep(ms(10)).await;
        }
    })
    .await;
}

static SERVER: Mutex<Option<Server>> = Mutex::new(None);
static SITE: AtomicU32 = AtomicU32::new(0);

/// The server that all tests share which do nothing to it.
pub(crate) fn server() -> SocketAddr {
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || engine::block_on(Server::start(zookeeper())).unwrap();
    server.get_or_insert_with(start).addr()
}

pub(crate) fn stop() {
    SERVER.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// A path of its own at a server, by whichever address.
pub(crate) struct Site(pub(crate) String);

impl Site {
    pub(crate) fn new() -> Self {
        Self(format!("/site-{}", SITE.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn url(&self, hosts: impl std::fmt::Display) -> String {
        format!("zookeeper://{hosts}{}?tick=200ms", self.0)
    }

    pub(crate) async fn client(&self, hosts: impl std::fmt::Display) -> Locks {
        connect(&self.url(hosts)).await.unwrap()
    }

    pub(crate) async fn store(&self, hosts: impl std::fmt::Display) -> ZooKeeper {
        ZooKeeper::connect(&StoreUrl::parse(&self.url(hosts)).unwrap()).await.unwrap()
    }

    /// The node of a lock.
    pub(crate) fn node(&self, name: &str) -> String {
        format!("{}/{}", self.0, node(&full(name)))
    }
}

pub(crate) fn full(name: &str) -> FullName {
    FullName { space: Default::default(), name: Name::new(name).unwrap() }
}

pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    ZooKeeper::connect(&StoreUrl::parse(url)?).await.map(Locks::from_store)
}

/// A client that knows nothing of locks.
pub(crate) async fn raw(server: SocketAddr) -> Client {
    Client::connect(&server.to_string()).await.unwrap()
}

pub(crate) fn ask(name: &str, ttl: Duration) -> Ask {
    Ask {
        lock: full(name),
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl,
        patience: Patience::Forever,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("test"),
        block: std::num::NonZeroU32::MIN,
    }
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Releases a guard that must still hold.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer to a release"), Released::Released);
}

/// How many hold or wait.
pub(crate) async fn crowd(locks: &Locks, name: &str) -> usize {
    let info = locks.show(name).await.ok().flatten();
    info.map_or(0, |l| l.holds.len() + l.waiters.len())
}

/// Waits until so many hold or wait.
pub(crate) async fn crowd_of(locks: &Locks, name: &str, n: usize) {
    until(&format!("{n} in line for {name:?}"), async || crowd(locks, name).await == n).await;
}
