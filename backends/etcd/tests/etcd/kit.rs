//! What every test needs.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Busy, Error, Locks};
use distlock_etcd::Etcd;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Server, etcd};

pub(crate) use distlock_testkit::wait::{LONG, give_back, take_for as take, task, timed, within};

distlock_testkit::waits!(soon: Duration::from_secs(30), limit: Duration::from_secs(300));

pub(crate) use distlock_testkit::Named;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A private server.
pub(crate) async fn server() -> Server {
    Server::start(etcd().unwrap()).await.unwrap()
}

/// A private server, and a way to it that can be cut.
pub(crate) async fn scene() -> (Server, Proxy) {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

/// A client of its own, as if it were another process.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(Etcd::connect(StoreUrl::parse(url)?).await?))
}

pub(crate) async fn client(server: &Server) -> Locks {
    connect(&format!("etcd://{}", server.addr())).await.unwrap()
}

/// A client whose tasks all stand in the queue of the cluster: none hands the lock to the next.
pub(crate) async fn strict(url: &str) -> Locks {
    let store = Etcd::connect(StoreUrl::parse(url).unwrap()).await.unwrap();
    Locks::options().strict_order().open(store).unwrap()
}

/// A client whose calls end soon.
pub(crate) async fn hasty(addr: SocketAddr) -> Locks {
    connect(&format!("etcd://{addr}?timeout=400ms")).await.unwrap()
}

/// Asks for a lock that must be busy.
pub(crate) async fn busy(locks: &Locks, name: &str) -> Busy {
    match locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer") {
        Ok(guard) => panic!("{name:?} should be busy, but {guard:?}"),
        Err(busy) => busy,
    }
}
