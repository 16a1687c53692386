//! Where each store is measured: private servers or files, and the raw calls beside them.

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;

use distlock::{Error, Kind};
use distlock_testkit::servers::{self, Cluster, Redis, Sentinels, Server};

use crate::peer::Peer;
use crate::raw::{self, Raw};

/// What can be measured.
pub(crate) const STORES: [&str; 12] = [
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
];

/// A store and the raw calls beside it. What keeps it alive ends with it.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) raw: Raw,
    /// The one redis server, where there is one: it is asked what the scripts cost it.
    pub(crate) redis: Option<SocketAddr>,
    /// Another crate's lock on the same servers, where it serves them.
    pub(crate) peer: Option<Peer>,
    _keep: Box<dyn Any>,
}

impl Place {
    /// Starts what the store needs.
    pub(crate) async fn open(store: &str, dir: &Path, names: usize) -> Result<Self, Error> {
        let of =
            |url: String, raw: Raw| Self { url, raw, redis: None, peer: None, _keep: Box::new(()) };
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
                let peer = (store == "redis").then(|| Peer::open(&[at]));
                Self { redis: Some(at), peer, _keep: Box::new(server), ..of(url, Raw::redis(raw)) }
            }
            "redis-sentinel" => {
                let set = Sentinels::start().await?;
                let at = set.primary().await?.addr();
                let raw = raw::redis::Redis::open(vec![vec![at]; names]).await?;
                let hosts: Vec<String> = set.addrs().iter().map(ToString::to_string).collect();
                let service = Sentinels::SERVICE;
                let url = format!("redis+sentinel://{}/{service}?{off}", hosts.join(","));
                // It knows nothing of sentinels: it is given the primary's address.
                let peer = Some(Peer::open(&[at]));
                Self { redis: Some(at), peer, _keep: Box::new(set), ..of(url, Raw::redis(raw)) }
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
                let peer = Some(Peer::cluster(&set.addrs())?);
                Self { peer, _keep: Box::new(set), ..of(url, Raw::redis(raw)) }
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
                let peer = (store != "redlock-plain").then(|| Peer::open(&at));
                Self { peer, _keep: Box::new(nodes), ..of(url, Raw::redis(raw)) }
            }
            "memory" => of("memory:".to_owned(), Raw::memory(names)),
            other => {
                return Err(Error::new(Kind::Usage, format!("no store {other:?} to measure"))
                    .with_hint(format!("one of: {}", STORES.join(", "))));
            }
        })
    }
}
