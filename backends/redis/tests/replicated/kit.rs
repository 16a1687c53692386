//! What the tests share: clients by URL, names by node, and waiting for events.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{BootInstant, Clock, Error, Guard, Locks, Released};
use distlock_redis::open;
use distlock_testkit::servers::{Cluster, Program, Redis, Sentinels, Server};

pub(crate) use distlock_testkit::wait::{task, timed, within};

distlock_testkit::waits!(soon: Duration::from_secs(40), limit: Duration::from_secs(300));

/// A test and its name.
pub(crate) type Trials = &'static [(&'static str, fn() -> Result<(), Error>)];

/// Runs a test.
pub(crate) fn play(test: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let done = runtime.block_on(test);
    runtime.shutdown_background();
    done
}

pub(crate) fn now() -> BootInstant {
    Clock::system().now()
}

/// A client of its own.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(open(StoreUrl::parse(url)?).await?))
}

fn hosts(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

pub(crate) fn sentinel_url(set: &Sentinels, query: &str) -> String {
    sentinel_url_at(&set.addrs(), query)
}

pub(crate) fn sentinel_url_at(sentinels: &[SocketAddr], query: &str) -> String {
    format!("redis+sentinel://{}/{}?{query}", hosts(sentinels), Sentinels::SERVICE)
}

pub(crate) fn cluster_url(cluster: &Cluster, query: &str) -> String {
    format!("redis+cluster://{}?{query}", hosts(&cluster.addrs()))
}

/// The slot of a lock.
pub(crate) async fn slot_of(cluster: &Cluster, name: &str) -> Result<u16, Error> {
    cluster.slot(&format!("dl:{{:{name}}}")).await
}

/// A name of this beginning whose lock the given node keeps.
pub(crate) async fn name_at(cluster: &Cluster, node: usize, begin: &str) -> Result<String, Error> {
    for n in 0.. {
        let name = format!("{begin}-{n}");
        if cluster.serving(slot_of(cluster, &name).await?).await? == node {
            return Ok(name);
        }
    }
    unreachable!("every node has slots")
}

/// Asks, whatever trouble there is, until the lock is granted.
pub(crate) async fn take_in_the_end(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    let ask = async || match locks.lock(name).ttl(ttl).try_acquire().await {
        Ok(Ok(guard)) => Some(guard),
        Ok(Err(_)) | Err(_) => None,
    };
    soon(&format!("{name} granted"), async {
        loop {
            match ask().await {
                Some(guard) => return guard,
                None => Clock::system().sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str, ttl: Duration) -> Result<Guard, Error> {
    Ok(locks.lock(name).ttl(ttl).try_acquire().await?.expect("a free lock"))
}

pub(crate) async fn give_back(guard: Guard) -> Result<(), Error> {
    assert_eq!(guard.release().await?, Released::Released);
    Ok(())
}

/// A server that is nobody's primary, and a sentinel that says it is.
pub(crate) async fn stale_sentinel() -> Result<(Server, Server), Error> {
    let other = Redis::new().start().await?;
    let (name, at) = (Sentinels::SERVICE, other.addr());
    let config = format!("sentinel monitor {name} {} {} 1\n", at.ip(), at.port());
    let stale = Program::new("redis-server", "redis-server", |port, dir| {
        let (port, dir) = (port.to_string(), dir.display().to_string());
        ["stale.conf", "--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--sentinel"]
            .map(str::to_owned)
            .to_vec()
    });
    let stale = stale.file("stale.conf", config).probe(b"PING\r\n", &[b"+PONG"]);
    let stale = Server::start(stale).await?;
    Ok((other, stale))
}
