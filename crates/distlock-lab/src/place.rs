//! A store that runs, and what can be done to it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::capability::Capability;
use distlock::{Error, Kind, Locks};
use distlock_testkit::ProxiedRoute;
use distlock_testkit::servers::{
    Ensemble, Postgres, Server, WallClock, Wire, etcd_metric, four_letters,
};
use tempfile::TempDir;

use crate::stores::{self, Group, Servers, Setup, Store};

/// A running store. Dropping it ends its servers and removes its files.
pub(crate) struct Place {
    pub(crate) store: Store,
    url: String,
    servers: Servers,
    clocks: Vec<WallClock>,
    /// The lab's own client, which no fault at clients touches.
    pub(crate) locks: Locks,
    pub(crate) dir: TempDir,
}

/// How many roads to a cluster there were.
static ROADS: AtomicU32 = AtomicU32::new(0);

/// The host of a road to a cluster. Each has one of its own, because the ports are the same; the
/// same host comes again only after 254 others. The lab's process keeps it apart from those of
/// other labs on this machine.
fn host(process: u32, road: u32) -> IpAddr {
    let octet = |n: u32| n.to_be_bytes()[3];
    IpAddr::from([127, 2, octet(process % 250), octet(1 + road % 254)])
}

/// Connects to a store. A busy machine may not let a server answer in the time that clients give it: then
/// once more.
pub(crate) async fn connect(url: String) -> Result<Locks, Error> {
    let mut tries = 0;
    loop {
        match distlock::connect(url.as_str()).await {
            Err(e) if e.is_transient() && tries < 10 => tries += 1,
            done => return done,
        }
    }
}

impl Place {
    /// Starts a store.
    pub(crate) async fn start(store: Store, setup: Setup) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("distlock-lab-").tempdir();
        let dir = dir.map_err(|e| trouble("no directory for the lab").because(e))?;
        let started = stores::start(store, setup, dir.path()).await?;
        let locks = connect(started.url.clone()).await?;
        let stores::Started { url, servers, clocks } = started;
        Ok(Self { store, url, servers, clocks, locks, dir })
    }

    /// Where clients connect to.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What the store promises.
    pub(crate) fn capability(&self) -> &Capability {
        self.locks.capability()
    }

    /// A way to the store through proxies, for one client; none where nothing can stand between.
    pub(crate) async fn road(&self) -> Result<Option<ProxiedRoute>, Error> {
        Ok(match &self.servers {
            Servers::Files | Servers::Sentinels(_) => None,
            Servers::One(server) | Servers::Pair(server, _) => {
                Some(ProxiedRoute::past(&self.url, &[server.addr()]).await?)
            }
            Servers::Nodes(_) | Servers::Etcd(_) | Servers::Zookeeper(_) => {
                let at: Vec<_> = self.nodes().into_iter().map(Server::addr).collect();
                Some(ProxiedRoute::past(&self.url, &at).await?)
            }
            Servers::Cluster(set) => {
                let host = host(std::process::id(), ROADS.fetch_add(1, Ordering::Relaxed));
                Some(ProxiedRoute::at_host(host, &self.url, &set.addrs()).await?)
            }
        })
    }

    /// Whether something can stand between a client and the store.
    pub(crate) fn has_roads(&self) -> bool {
        !matches!(self.servers, Servers::Files | Servers::Sentinels(_))
    }

    /// The servers of a store that has one, or several independent ones.
    pub(crate) fn nodes(&self) -> Vec<&Server> {
        match &self.servers {
            Servers::Files => vec![],
            Servers::One(server) => vec![server],
            Servers::Pair(primary, standby) => vec![primary, standby],
            Servers::Nodes(nodes) => nodes.iter().collect(),
            Servers::Etcd(set) => set.nodes().iter().collect(),
            Servers::Zookeeper(set) => set.servers().iter().collect(),
            Servers::Sentinels(set) => set.nodes().iter().collect(),
            Servers::Cluster(set) => set.nodes().iter().collect(),
        }
    }

    /// The wall clock of one server.
    pub(crate) fn clock(&self, server: usize) -> Option<&WallClock> {
        self.clocks.get(server)
    }

    /// How many servers' clocks can be moved.
    pub(crate) fn clocks(&self) -> usize {
        self.clocks.len()
    }

    /// Which server a lock is at now.
    pub(crate) async fn serving(&self, lock: &str) -> Result<usize, Error> {
        match &self.servers {
            Servers::Sentinels(set) => {
                let at = set.primary().await?.addr();
                Ok(set.nodes().iter().position(|n| n.addr() == at).unwrap_or(0))
            }
            Servers::Cluster(set) => set.serving(set.slot(&format!("dl:{{:{lock}}}")).await?).await,
            Servers::Etcd(set) => set.leader().await,
            Servers::Zookeeper(set) => set.leader().await,
            _ => Ok(0),
        }
    }

    /// What the primary accepts from now on reaches no replica.
    pub(crate) async fn cut_replicas(&self) -> Result<(), Error> {
        match &self.servers {
            Servers::Sentinels(set) => set.cut_replicas().await,
            // Ended, not paused: what is in its socket already would reach it later.
            Servers::Pair(_, standby) => {
                standby.stop();
                Ok(())
            }
            _ => Err(trouble("this store has no replicas to be cut off")),
        }
    }

    /// Kills the server that a lock is at and waits until another has taken over.
    pub(crate) async fn fail_over(&self, lock: &str) -> Result<(), Error> {
        match &self.servers {
            Servers::Sentinels(set) => {
                let primary = set.primary().await?;
                primary.kill();
                set.failed_over(primary.addr()).await.map(drop)
            }
            Servers::Cluster(set) => {
                let slot = set.slot(&format!("dl:{{:{lock}}}")).await?;
                let node = set.serving(slot).await?;
                set.nodes()[node].kill();
                set.failed_over(slot, node).await.map(drop)
            }
            Servers::Pair(primary, standby) => {
                primary.kill();
                standby.again().await?;
                Postgres::sql(standby, "SELECT pg_promote(true, 30)").await.map(drop)
            }
            Servers::Etcd(set) => {
                set.nodes()[set.leader().await?].kill();
                set.leader().await.map(drop)
            }
            Servers::Zookeeper(set) => {
                set.servers()[set.leader().await?].kill();
                set.leader().await.map(drop)
            }
            _ => Err(trouble("this store has nobody to take over")),
        }
    }

    /// Brings back who was killed, and waits until the servers agree.
    pub(crate) async fn mend(&self) -> Result<(), Error> {
        for server in self.nodes() {
            server.resume();
        }
        match &self.servers {
            Servers::Files => {}
            Servers::Sentinels(set) => {
                let dead: Vec<_> = set.nodes().iter().filter(|n| !n.is_running()).collect();
                for node in &dead {
                    node.again().await?;
                }
                set.heal().await?;
                for node in dead {
                    if set.primary().await?.addr() != node.addr() {
                        set.demote(node).await?;
                    }
                }
                set.settled().await?;
            }
            Servers::Cluster(set) => {
                for node in set.nodes().iter().filter(|n| !n.is_running()) {
                    node.again().await?;
                }
                set.settled().await?;
            }
            Servers::Pair(..) => {}
            Servers::Etcd(set) => {
                for node in set.nodes().iter().filter(|n| !n.is_running()) {
                    node.again().await?;
                }
                set.settled().await?;
            }
            Servers::Zookeeper(set) => {
                for node in set.servers().iter().filter(|n| !n.is_running()) {
                    node.again().await?;
                }
                set.leader().await?;
            }
            Servers::One(server) => {
                if !server.is_running() {
                    server.again().await?;
                }
            }
            Servers::Nodes(nodes) => {
                for node in nodes.iter().filter(|n| !n.is_running()) {
                    node.again().await?;
                }
            }
        }
        Ok(())
    }

    /// What locks left at redis servers that never ends by itself; others' rows are swept.
    pub(crate) async fn endless(&self) -> Result<Vec<String>, Error> {
        let lost = |e| trouble("a server does not say what it keeps").because(e);
        let mut endless = Vec::new();
        if matches!(self.store.group, Group::Redis | Group::Redlock) {
            for server in self.nodes() {
                let mut wire = Wire::to(server.addr()).await.map_err(lost)?;
                let keys = wire.leftovers().await.map_err(lost)?;
                let ours = |key: &String| !key.contains("epoch");
                endless.extend(keys.into_iter().filter(|(k, ends)| !ends && ours(k)).map(|k| k.0));
            }
        }
        Ok(endless)
    }

    /// Whether it can be used for another story: not with another primary than its URL names, and
    /// not with clocks that were moved.
    pub(crate) fn as_new(&self) -> bool {
        let moved = self.clocks.iter().any(|c| c.shifted() != 0);
        !moved && !matches!(self.servers, Servers::Pair(..))
    }

    /// The servers that agree, where links between them can be cut.
    pub(crate) fn ensemble(&self) -> Option<&Ensemble> {
        match &self.servers {
            Servers::Zookeeper(set) => Some(set),
            _ => None,
        }
    }

    /// The servers that ended by themselves, and how.
    pub(crate) fn crashes(&self) -> Vec<(usize, String)> {
        let nodes = self.nodes().into_iter().enumerate();
        nodes.filter_map(|(i, server)| Some((i, server.crash()?))).collect()
    }

    /// Why the servers cannot be used any more, where they themselves have stopped committing writes.
    pub(crate) async fn wedged(&self) -> Option<String> {
        let proof = self.ensemble()?.wedged().await?;
        Some(format!("ensemble wedged: see ZOOKEEPER-4712; replaced ({proof})"))
    }

    /// How often servers have told somebody that something changed; none where they do not count.
    pub(crate) async fn notices(&self) -> Result<Option<u64>, Error> {
        let mut all = 0;
        for server in self.nodes() {
            all += match self.store.group {
                Group::Etcd => {
                    let told = etcd_metric(server, "etcd_debugging_mvcc_events_total").await;
                    // A whole number, whatever its type.
                    told.ok_or_else(|| trouble("etcd does not say what it told"))? as u64
                }
                Group::Zookeeper => {
                    let said = four_letters(server.addr(), "mntr").await?;
                    let kinds = ["deleted", "changed", "created", "children"]
                        .map(|kind| format!("zk_sum_node_{kind}_watch_count"));
                    let of = |line: &str| {
                        let (name, number) = line.split_once(char::is_whitespace)?;
                        kinds
                            .iter()
                            .any(|k| k == name)
                            .then(|| number.trim().parse::<u64>().ok())?
                    };
                    said.lines().filter_map(of).sum()
                }
                _ => return Ok(None),
            };
        }
        Ok(Some(all))
    }

    /// Where clients of the standby connect to.
    pub(crate) fn standby_url(&self) -> Option<String> {
        let Servers::Pair(primary, standby) = &self.servers else { return None };
        Some(self.url.replace(&primary.addr().to_string(), &standby.addr().to_string()))
    }

    /// A TTL that the store grants.
    pub(crate) fn ttl(&self, wish: Duration) -> Duration {
        let wish = distlock::Ttl::new(wish).expect("a TTL within bounds");
        self.capability().grantable(wish).expect("a TTL the store grants")
    }
}

pub(crate) fn trouble(what: &str) -> Error {
    Error::new(Kind::Store, what.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn roads_that_are_open_together_have_different_hosts() {
        let hosts: Vec<_> = (0..2_000).map(|road| host(4_711, road)).collect();
        for open in hosts.windows(200) {
            assert_eq!(open.iter().collect::<HashSet<_>>().len(), open.len());
        }
    }
}
