//! Where each store is measured: private servers or files, and the raw calls beside them.

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;

use distlock::{Error, Kind};
use distlock_testkit::servers::{self, Cluster, Mariadb, Postgres, Redis, Sentinels, Server};

use crate::peer::Peer;
use crate::raw::sql::Sql;
use crate::raw::{self, Raw};

/// What can be measured.
pub(crate) const STORES: [&str; 21] = [
    "memory",
    "sqlite",
    "sqlite-normal",
    "file",
    "redis",
    "redis-plain",
    "redis-sentinel",
    "redis-cluster",
    "redlock-3",
    "redlock-5",
    "redlock-plain",
    "memcached",
    "mysql",
    "mysql-row-lock",
    "mysql-version",
    "postgres",
    "postgres-advisory",
    "postgres-row-lock",
    "postgres-version",
    "etcd",
    "zookeeper",
];

/// A store and the raw calls beside it. What keeps it alive ends with it.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) raw: Raw,
    /// The one redis server, where there is one: it is asked what the scripts cost it.
    pub(crate) redis: Option<SocketAddr>,
    /// Others' locks on the same servers, where they serve them.
    pub(crate) peers: Vec<Peer>,
    _keep: Box<dyn Any>,
}

impl Place {
    /// Starts what the store needs.
    pub(crate) async fn open(store: &str, dir: &Path, names: usize) -> Result<Self, Error> {
        let of = |url: String, raw: Raw| Self {
            url,
            raw,
            redis: None,
            peers: vec![],
            _keep: Box::new(()),
        };
        let path = |name: &str| dir.join(name).display().to_string();
        // A fresh server has a quarantine to wait out; what is measured comes after it.
        let off = "quarantine=off&max_ttl=1h";
        Ok(match store {
            "sqlite" => {
                of(format!("sqlite:{}", path("locks.db")), Raw::sqlite(dir, names, "FULL")?)
            }
            "sqlite-normal" => of(
                format!("sqlite:{}?synchronous=normal", path("locks.db")),
                Raw::sqlite(dir, names, "NORMAL")?,
            ),
            "file" => of(format!("file:{}", path("locks")), Raw::files(dir, names)?),
            "memcached" => {
                let server = Server::start(servers::memcached()).await?;
                let raw = Raw::memcached(server.addr(), names)?;
                let url = format!("memcached://{}", server.addr());
                Self { _keep: Box::new(server), ..of(url, raw) }
            }
            "redis" | "redis-plain" => {
                let server = Redis::new().start().await?;
                let at = server.addr();
                let raw = raw::redis::Redis::open(vec![vec![at]; names]).await?;
                let algorithm = if store == "redis" { "" } else { "&algorithm=plain" };
                let url = format!("redis://{at}?{off}{algorithm}");
                let peers = (store == "redis").then(|| Peer::rslock(&[at])).into_iter().collect();
                Self { redis: Some(at), peers, _keep: Box::new(server), ..of(url, Raw::redis(raw)) }
            }
            "redis-sentinel" => {
                let set = Sentinels::start().await?;
                let at = set.primary().await?.addr();
                let raw = raw::redis::Redis::open(vec![vec![at]; names]).await?;
                let hosts: Vec<String> = set.addrs().iter().map(ToString::to_string).collect();
                let service = Sentinels::SERVICE;
                let url = format!("redis+sentinel://{}/{service}?{off}", hosts.join(","));
                // It knows nothing of sentinels: it is given the primary's address.
                let peers = vec![Peer::rslock(&[at])];
                Self { redis: Some(at), peers, _keep: Box::new(set), ..of(url, Raw::redis(raw)) }
            }
            "redis-cluster" => {
                let set = Cluster::start().await?;
                let mut places = Vec::new();
                for name in 0..names {
                    let slot = set.slot(&raw::redis::key(name)).await?;
                    places.push(vec![set.addrs()[set.serving(slot).await?]]);
                }
                let raw = raw::redis::Redis::open(places).await?;
                let hosts: Vec<String> = set.addrs().iter().map(ToString::to_string).collect();
                let url = format!("redis+cluster://{}?{off}", hosts.join(","));
                let peers = vec![Peer::rslock_cluster(&set.addrs())?];
                Self { peers, _keep: Box::new(set), ..of(url, Raw::redis(raw)) }
            }
            "redlock-3" | "redlock-5" | "redlock-plain" => {
                let count = if store == "redlock-5" { 5 } else { 3 };
                let mut nodes = Vec::new();
                for _ in 0..count {
                    nodes.push(Redis::new().start().await?);
                }
                let at: Vec<SocketAddr> = nodes.iter().map(Server::addr).collect();
                let raw = raw::redis::Redis::open(vec![at.clone(); names]).await?;
                let hosts: Vec<String> = at.iter().map(ToString::to_string).collect();
                let algorithm = if store == "redlock-plain" { "&algorithm=plain" } else { "" };
                let url = format!("redlock://{}?{off}{algorithm}", hosts.join(","));
                let peers =
                    (store != "redlock-plain").then(|| Peer::rslock(&at)).into_iter().collect();
                Self { peers, _keep: Box::new(nodes), ..of(url, Raw::redis(raw)) }
            }
            "mysql" | "mysql-row-lock" | "mysql-version" => {
                let server = Mariadb::new().durable().start().await?;
                let url = Mariadb::url(&server);
                let raw = Sql::mysql(&url, names).await?;
                let peers = vec![Peer::Own(Sql::mysql_again(&url))];
                let url = with_algorithm(url, store, "mysql-");
                Self { peers, _keep: Box::new(server), ..of(url, Raw::sql(raw)) }
            }
            "postgres" | "postgres-advisory" | "postgres-row-lock" | "postgres-version" => {
                let server = Postgres::new().durable().start().await?;
                let url = format!("postgres://postgres@{}/postgres", server.addr());
                let raw = Sql::postgres(&url, names).await?;
                let again = Sql::postgres_again(&url);
                let peers = vec![Peer::Own(again.clone()), Peer::Sqlx(again)];
                let url = with_algorithm(url, store, "postgres-");
                Self { peers, _keep: Box::new(server), ..of(url, Raw::sql(raw)) }
            }
            "etcd" => {
                let server = Server::start(servers::etcd()?).await?;
                let raw = raw::etcd::Etcd::open(server.addr(), names).await?;
                let url = format!("etcd://{}", server.addr());
                let peers = vec![Peer::Service(raw.clone())];
                Self { peers, _keep: Box::new(server), ..of(url, Raw::etcd(raw)) }
            }
            "zookeeper" => {
                let server = Server::start(servers::durable_zookeeper()).await?;
                let raw = raw::zookeeper::ZooKeeper::open(server.addr(), names).await?;
                let peers = vec![Peer::zookeeper(server.addr()).await?];
                let url = format!("zookeeper://{}", server.addr());
                Self { peers, _keep: Box::new(server), ..of(url, Raw::zookeeper(raw)) }
            }
            "memory" => of("memory:".to_owned(), Raw::memory(names)),
            other => {
                return Err(Error::new(Kind::Usage, format!("no store {other:?} to measure"))
                    .with_hint(format!("one of: {}", STORES.join(", "))));
            }
        })
    }
}

/// The URL with the algorithm that the store's name ends with.
fn with_algorithm(url: String, store: &str, family: &str) -> String {
    match store.strip_prefix(family) {
        Some(algorithm) => format!("{url}?algorithm={algorithm}"),
        None => url,
    }
}
