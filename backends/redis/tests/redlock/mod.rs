//! Quorums of real servers, for the laws and for Redlock's own scenarios.
#![allow(dead_code)] // each test program uses its share
#![allow(clippy::unwrap_used)] // tests without the harness that clippy knows

pub(crate) mod down;
pub(crate) mod entry;
pub(crate) mod foreign;
pub(crate) mod restart;
pub(crate) mod undo;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::Fut;
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, Guard, Lock, Locks, Released};
use distlock_redis::{Algorithm, RedisOptions, open, redlock_capability};
use distlock_testkit::servers::{Redis, Server, Wire, raw};
use distlock_testkit::wait::{until_within, within};
use distlock_testkit::{Made, ProxiedRoute, StoreUnderTest, Suite};

/// Longer than any event takes that must come.
const SOON: Duration = Duration::from_secs(40);

/// Room for what the laws ask for, no quarantine (all servers are new), and a bound that also holds
/// while the machine runs other laws.
pub(crate) const LAWS: &str = "quarantine=off&max_ttl=1h&node_timeout=5s";

/// Several independent servers.
pub(crate) struct Nodes(pub(crate) Vec<Server>);

impl Nodes {
    /// Starts so many.
    pub(crate) async fn start(n: usize) -> Result<Arc<Self>, Error> {
        Self::of(n, &Redis::new()).await
    }

    /// Starts so many of a kind.
    async fn of(n: usize, redis: &Redis) -> Result<Arc<Self>, Error> {
        let mut servers = Vec::new();
        for _ in 0..n {
            servers.push(redis.clone().start().await?);
        }
        Ok(Arc::new(Self(servers)))
    }

    /// The URL of them all.
    pub(crate) fn url(&self, options: &str) -> String {
        url(self.0.iter().map(Server::addr), options)
    }

    /// A client of its own.
    pub(crate) async fn client(&self, options: &str) -> Locks {
        connect(&self.url(options)).await.expect("a majority answers")
    }
}

pub(crate) fn url(addrs: impl Iterator<Item = SocketAddr>, options: &str) -> String {
    let addrs: Vec<String> = addrs.map(|addr| addr.to_string()).collect();
    format!("redlock://{}?{options}", addrs.join(","))
}

pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(open(StoreUrl::parse(url)?).await?))
}

/// One command at one server.
pub(crate) async fn ask(addr: SocketAddr, command: &[&str]) -> distlock_testkit::servers::Reply {
    raw(addr, command).await.expect("an answer")
}

/// Asks until the answer is yes.
pub(crate) async fn until(what: &str, yes: impl AsyncFnMut() -> bool) {
    until_within(SOON, what, yes).await;
}

fn options(algorithm: Algorithm) -> RedisOptions {
    RedisOptions {
        algorithm,
        quarantine: false,
        max_ttl: Duration::from_secs(3600),
        ..RedisOptions::default()
    }
}

fn suite<const N: usize>(algorithm: Algorithm) -> Suite {
    Suite::by_url(
        redlock_capability(&options(algorithm)),
        match algorithm {
            Algorithm::Script => |_| Box::pin(made::<N>("script")),
            Algorithm::Plain => |_| Box::pin(made::<N>("plain")),
        },
        |url| {
            let url = url.to_owned();
            Box::pin(async move { connect(&url).await })
        },
    )
    .at_once(4)
    .road(|site| {
        Box::pin(async move {
            let nodes = site.kept::<Arc<Nodes>>().expect("servers");
            let addrs: Vec<SocketAddr> = nodes.0.iter().map(Server::addr).collect();
            ProxiedRoute::past(site.url(), &addrs).await
        })
    })
    .restart(|site| {
        Box::pin(async move {
            let nodes = site.kept::<Arc<Nodes>>().expect("servers");
            for server in &nodes.0 {
                server.restart().await.expect("it starts again");
            }
        })
    })
}

async fn made<const N: usize>(algorithm: &str) -> Result<Made, Error> {
    // With no more rights than the page asks for, also after a restart.
    let page = include_str!("../../../../docs/stores/redlock.md");
    let line = page.lines().find_map(|l| l.strip_prefix("ACL SETUSER ")).expect("an ACL line");
    let line = match algorithm {
        "plain" => line.replace("~rl:*", "~*").replace("+eval ", "+eval +pttl "),
        _ => line.to_owned(),
    };
    let redis = Redis::new().users(&["default on nopass ~* &* +@all", line.as_str()]);
    let nodes = Nodes::of(N, &redis).await?;
    let url = nodes.url(&format!("{LAWS}&algorithm={algorithm}"));
    Ok(Made::with(url.replace("redlock://", "redlock://app:secret@"), nodes))
}

/// What is left at any of the nodes.
fn leftovers(site: &StoreUnderTest) -> Fut<'_, Vec<(String, bool)>> {
    Box::pin(async move {
        let mut all = Vec::new();
        for server in &site.kept::<Arc<Nodes>>().expect("servers").0 {
            let mut wire = Wire::to(server.addr()).await.expect("a connection");
            all.extend(wire.leftovers().await.expect("its keys"));
        }
        all
    })
}

/// The laws over so many nodes.
pub(crate) fn laws<const N: usize>() -> Suite {
    suite::<N>(Algorithm::Script).leaves(leftovers, &["rl:{", "}:z", "rl:epoch"]).lose(
        |site, lock| {
            Box::pin(async move {
                let nodes = site.kept::<Arc<Nodes>>().expect("servers");
                for server in &nodes.0 {
                    let gone =
                        ask(server.addr(), &["DEL", &format!("rl:{{:{}}}", lock.name)]).await;
                    assert_eq!(gone.int(), Some(1), "the record was there");
                }
            })
        },
    )
}

/// The laws over three nodes of the classic recipe.
pub(crate) fn laws_plain() -> Suite {
    suite::<3>(Algorithm::Plain).leaves(leftovers, &["c0", "}:i", "rl:epoch"]).lose(|site, lock| {
        Box::pin(async move {
            let nodes = site.kept::<Arc<Nodes>>().expect("servers");
            for server in &nodes.0 {
                let gone = ask(server.addr(), &["DEL", lock.name.as_str()]).await;
                assert_eq!(gone.int(), Some(1), "the key was there");
            }
        })
    })
}

/// How long a record is that nobody holds.
const FREE: i64 = 51;

/// Whether a lock is held at one node.
pub(crate) async fn held_at(server: &Server, name: &str) -> bool {
    let record = ask(server.addr(), &["STRLEN", &format!("rl:{{:{name}}}")]).await;
    let len = record.int().expect("a length");
    assert!(len == 0 || len >= FREE, "a record of {len} bytes");
    len > FREE
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Asks until a lock is granted: nodes may still be connected to, or have been too slow once.
pub(crate) async fn take_in_the_end(lock: impl Fn() -> Lock) -> Guard {
    let asking = async {
        loop {
            match lock().try_acquire().await {
                Ok(Ok(guard)) => return guard,
                Ok(Err(_)) => {}
                Err(e) => assert!(e.is_transient(), "{e:?}"),
            }
            Clock::system().sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, "a grant", asking).await
}

/// Releases a guard that must still hold.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Released);
}

/// Asks for a lock that must be busy.
pub(crate) async fn refused(locks: &Locks, name: &str, ttl: Duration) {
    let got = locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer");
    assert!(got.is_err(), "granted: {got:?}");
}

/// Runs a future as a task of its own.
#[allow(clippy::disallowed_methods)] // it ends with the test's runtime
pub(crate) fn task<T: Send + 'static>(
    f: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(f)
}
