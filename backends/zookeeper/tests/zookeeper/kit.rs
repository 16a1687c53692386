//! What every test needs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::backend::Ask;
use distlock_core::url::StoreUrl;
use distlock_core::{Error, FullName, Label, Locks, Mode, Name, Owner, Patience, ReqId, engine};
use distlock_testkit::servers::{Server, zookeeper};
use distlock_zookeeper::{ZooKeeper, node};
use zookeeper_client::Client;

pub(crate) use distlock_testkit::wait::{LONG, give_back, take_for as take, task, timed, within};

distlock_testkit::waits!(soon: Duration::from_secs(80), limit: Duration::from_secs(300));

pub(crate) use distlock_testkit::Named;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
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

    /// A client whose tasks all stand in the queue of the servers: none hands the lock to the next.
    pub(crate) async fn strict(&self, hosts: impl std::fmt::Display) -> Locks {
        Locks::options().strict_order().open(self.store(hosts).await).unwrap()
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

/// How many hold or wait.
pub(crate) async fn crowd(locks: &Locks, name: &str) -> usize {
    let info = locks.show(name).await.ok().flatten();
    info.map_or(0, |l| l.holds.len() + l.waiters.len())
}

/// Waits until so many hold or wait.
pub(crate) async fn crowd_of(locks: &Locks, name: &str, n: usize) {
    until(&format!("{n} in line for {name:?}"), async || crowd(locks, name).await == n).await;
}
