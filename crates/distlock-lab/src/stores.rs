//! The stores of the lab. To add one: a line in [`ALL`], and an arm in [`start`] that starts its
//! servers and says where clients connect to.

use std::net::SocketAddr;
use std::path::Path;

use distlock::capability::Family;
use distlock::{Error, Kind};
use distlock_testkit::servers::{
    self, Cluster, Ensemble, EtcdCluster, Mariadb, Postgres, Redis, Sentinels, Server, WallClock,
};

/// A store that the lab knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    /// What its servers are.
    pub(crate) group: Group,
}

/// What kind of servers a store has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Group {
    Files,
    Redis,
    Replicated,
    Redlock,
    Memcached,
    Mysql,
    Postgres,
    Etcd,
    Zookeeper,
}

const fn store(name: &'static str, family: Family, group: Group) -> Store {
    Store { name, family, group }
}

/// Every store, in the order of the report.
pub(crate) const ALL: &[Store] = &[
    store("sqlite", Family::Lease, Group::Files),
    store("file", Family::Session, Group::Files),
    store("redis", Family::Lease, Group::Redis),
    store("redis-volatile", Family::Lease, Group::Redis),
    store("redis-plain", Family::Lease, Group::Redis),
    store("sentinel", Family::Lease, Group::Replicated),
    store("cluster", Family::Lease, Group::Replicated),
    store("redlock3", Family::Quorum, Group::Redlock),
    store("redlock5", Family::Quorum, Group::Redlock),
    store("memcached", Family::Lease, Group::Memcached),
    store("mysql", Family::Lease, Group::Mysql),
    store("mysql-row-lock", Family::Session, Group::Mysql),
    store("mysql-version", Family::Lease, Group::Mysql),
    store("postgres", Family::Lease, Group::Postgres),
    store("postgres-advisory", Family::Session, Group::Postgres),
    store("postgres-row-lock", Family::Session, Group::Postgres),
    store("postgres-version", Family::Lease, Group::Postgres),
    store("etcd", Family::Queue, Group::Etcd),
    store("etcd3", Family::Queue, Group::Etcd),
    store("zookeeper", Family::Queue, Group::Zookeeper),
    store("zookeeper3", Family::Queue, Group::Zookeeper),
];

impl Store {
    /// The store of this name.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        ALL.iter().find(|s| s.name == name).copied().ok_or_else(|| {
            let all: Vec<_> = ALL.iter().map(|s| s.name).collect();
            Error::new(Kind::Usage, format!("the lab has no store {name:?}"))
                .with_hint(format!("one of: {}", all.join(", ")))
        })
    }

    /// How much longer a run at it takes than at others, about.
    pub(crate) fn weight(self) -> u32 {
        match self.group {
            Group::Replicated => 4,
            Group::Etcd | Group::Zookeeper if self.is_ensemble() => 3,
            _ => 1,
        }
    }

    /// Whether it is three servers that agree.
    pub(crate) fn is_ensemble(self) -> bool {
        ["etcd3", "zookeeper3"].contains(&self.name)
    }

    /// Whether its leases run on a server's wall clock, which somebody may step.
    pub(crate) fn by_wall_clock(self) -> bool {
        match self.group {
            // Those that agree count their leases on clocks that nobody steps.
            Group::Files | Group::Memcached | Group::Etcd | Group::Zookeeper => false,
            // A session's lock ends with the session.
            Group::Mysql | Group::Postgres => self.family == Family::Lease,
            Group::Redis | Group::Replicated | Group::Redlock => true,
        }
    }
}

/// How the servers of a story are set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setup {
    /// Nothing is granted after data may have been lost, until every lease has ended.
    pub(crate) quarantine: bool,
    /// Servers that can keep their data on disk do.
    pub(crate) durable: bool,
    /// PostgreSQL has a standby.
    pub(crate) standby: bool,
    /// No lease is longer, in seconds; a quarantine lasts as long.
    pub(crate) max_ttl: u64,
}

impl Setup {
    pub(crate) const USUAL: Setup =
        Setup { quarantine: true, durable: true, standby: false, max_ttl: 6 };
    /// Servers forget everything when they are restarted.
    pub(crate) const VOLATILE: Setup = Setup { durable: false, max_ttl: 4, ..Self::USUAL };
}

/// What runs for a store.
pub(crate) enum Servers {
    /// Nothing: files in a directory.
    Files,
    /// One server.
    One(Server),
    /// A primary and the standby that may follow it in office.
    Pair(Server, Server),
    /// A primary, replicas and sentinels.
    Sentinels(Sentinels),
    /// A Redis Cluster.
    Cluster(Cluster),
    /// Independent servers.
    Nodes(Vec<Server>),
    /// Three that agree.
    Etcd(EtcdCluster),
    /// Three that agree.
    Zookeeper(Ensemble),
}

/// A store that was started: where clients connect to, and the servers behind it.
pub(crate) struct Started {
    pub(crate) url: String,
    pub(crate) servers: Servers,
    /// The wall clocks of the servers, where they can be moved: one each.
    pub(crate) clocks: Vec<WallClock>,
}

/// Starts what a store needs.
pub(crate) async fn start(store: Store, setup: Setup, dir: &Path) -> Result<Started, Error> {
    let path = |name: &str| dir.join(name).display().to_string();
    let files = |url: String| Started { url, servers: Servers::Files, clocks: vec![] };
    let quarantine = if setup.quarantine { "on" } else { "off" };
    let redis_query = format!("max_ttl={}s&timeout=1s&quarantine={quarantine}", setup.max_ttl);
    let redis = |durable: bool, clock: &WallClock| {
        let redis = Redis::new().clock(clock);
        if durable { redis.durable() } else { redis }
    };
    Ok(match store.name {
        "sqlite" => files(format!("sqlite:{}", path("locks.db"))),
        "file" => files(format!("file:{}", path("locks"))),
        "memcached" => {
            let server = Server::start(servers::memcached()).await?;
            let url = format!("memcached://{}", server.addr());
            Started { url, servers: Servers::One(server), clocks: vec![] }
        }
        "redis" | "redis-volatile" | "redis-plain" => {
            let clock = WallClock::new()?;
            let durable = setup.durable && store.name != "redis-volatile";
            let server = redis(durable, &clock).start().await?;
            let algorithm = if store.name == "redis-plain" { "&algorithm=plain" } else { "" };
            let url = format!("redis://{}?{redis_query}{algorithm}", server.addr());
            Started { url, servers: Servers::One(server), clocks: vec![clock] }
        }
        "sentinel" => {
            let durable = |r: Redis| if setup.durable { r.durable() } else { r };
            let set = Sentinels::with("nopass", durable).await?;
            let (at, service) = (hosts(&set.addrs()), Sentinels::SERVICE);
            let url = format!("redis+sentinel://{at}/{service}?{redis_query}");
            Started { url, servers: Servers::Sentinels(set), clocks: vec![] }
        }
        "cluster" => {
            let options = |r: Redis| {
                let r = if setup.durable { r.durable() } else { r };
                // Clients find every node at the host where they found the first, and so each
                // client can have proxies of its own.
                r.arg("cluster-preferred-endpoint-type", "unknown-endpoint")
            };
            let set = Cluster::with(1, options).await?;
            let url = format!("redis+cluster://{}?{redis_query}", hosts(&set.addrs()));
            Started { url, servers: Servers::Cluster(set), clocks: vec![] }
        }
        "redlock3" | "redlock5" => {
            let (mut nodes, mut clocks) = (Vec::new(), Vec::new());
            for _ in 0..if store.name == "redlock3" { 3 } else { 5 } {
                let clock = WallClock::new()?;
                nodes.push(redis(setup.durable, &clock).start().await?);
                clocks.push(clock);
            }
            let at: Vec<_> = nodes.iter().map(Server::addr).collect();
            let url = format!("redlock://{}?{redis_query}&node_timeout=500ms", hosts(&at));
            Started { url, servers: Servers::Nodes(nodes), clocks }
        }
        "mysql" | "mysql-row-lock" | "mysql-version" => {
            let clock = WallClock::new()?;
            let server = Mariadb::new().clock(&clock).start().await?;
            let url = with_algorithm(Mariadb::url(&server), store.name, "mysql-");
            Started { url, servers: Servers::One(server), clocks: vec![clock] }
        }
        "postgres" | "postgres-advisory" | "postgres-row-lock" | "postgres-version" => {
            let clock = WallClock::new()?;
            let server = Postgres::new().clock(&clock).start().await?;
            let url = format!("postgres://postgres@{}/postgres", server.addr());
            let url = with_algorithm(url, store.name, "postgres-");
            let servers = if setup.standby {
                let standby = Postgres::new().clock(&clock).standby_of(&server).start().await?;
                Servers::Pair(server, standby)
            } else {
                Servers::One(server)
            };
            Started { url, servers, clocks: vec![clock] }
        }
        "etcd" => {
            let server = Server::start(servers::etcd()?).await?;
            let url = format!("etcd://{}", server.addr());
            Started { url, servers: Servers::One(server), clocks: vec![] }
        }
        "etcd3" => {
            let set = EtcdCluster::start().await?;
            let url = format!("etcd://{}", set.hosts());
            Started { url, servers: Servers::Etcd(set), clocks: vec![] }
        }
        "zookeeper" => {
            let server = Server::start(servers::zookeeper()).await?;
            let url = format!("zookeeper://{}", server.addr());
            Started { url, servers: Servers::One(server), clocks: vec![] }
        }
        "zookeeper3" => {
            let set = Ensemble::start().await?;
            let url = format!("zookeeper://{}", set.hosts());
            Started { url, servers: Servers::Zookeeper(set), clocks: vec![] }
        }
        other => return Err(Error::new(Kind::Usage, format!("the lab cannot start {other:?}"))),
    })
}

fn hosts(at: &[SocketAddr]) -> String {
    at.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn with_algorithm(url: String, store: &str, prefix: &str) -> String {
    match store.strip_prefix(prefix) {
        Some(algorithm) => format!("{url}?algorithm={algorithm}"),
        None => url,
    }
}
