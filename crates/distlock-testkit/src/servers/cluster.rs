//! A Redis Cluster: primaries that share the slots, with or without replicas.
//!
//! Built by the commands themselves and not by redis-cli: it asks questions, prints tables, and
//! would be one more thing to install.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};

use super::eventually::eventually;
use super::{Redis, Reply, Server, raw};

mod migration;

pub use migration::Migration;

const SLOTS: u16 = 16_384;
const PRIMARIES: usize = 3;
/// How long the nodes have to meet before they are introduced again.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Three primaries, each with a third of the slots. Dropping it ends all its servers.
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts three primaries without replicas and waits until each serves its slots.
    ///
    /// # Errors
    /// As [`Server::start`], and when they do not become a cluster.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start() -> Result<Self, Error> {
        Self::with(0, |redis| redis).await
    }

    /// As [`Cluster::start`], with so many replicas of each primary and with options for every
    /// node. Slots are served also while others are not; `cluster-require-full-coverage` is the
    /// option that changes it. The test itself asks without a password, so that none may be set.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn with(replicas: usize, options: impl Fn(Redis) -> Redis) -> Result<Self, Error> {
        let mut cluster = Self { nodes: Vec::new(), ids: Vec::new() };
        for _ in 0..PRIMARIES * (1 + replicas) {
            let node = node(&options)?.start().await?;
            cluster.ids.push(tell(&node, &["CLUSTER", "MYID"]).await?.to_string());
            cluster.nodes.push(node);
        }
        cluster.share_slots().await?;
        cluster.meet().await?;
        for (i, node) in cluster.nodes.iter().enumerate().skip(PRIMARIES) {
            tell(node, &["CLUSTER", "REPLICATE", &cluster.ids[i % PRIMARIES]]).await?;
        }
        cluster.settled().await?;
        Ok(cluster)
    }

    /// The addresses of all nodes; the primaries of the beginning come first.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Server::addr).collect()
    }

    /// The nodes: the primaries of the beginning, then a replica of each in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The slot of a key, hash tags included.
    ///
    /// # Errors
    /// When no node answers.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn slot(&self, key: &str) -> Result<u16, Error> {
        let slot = tell(self.any()?, &["CLUSTER", "KEYSLOT", key]).await?;
        slot.int().and_then(|n| u16::try_from(n).ok()).ok_or_else(|| odd("KEYSLOT", &slot))
    }

    /// Which node serves a slot: the one that runs and says so itself.
    ///
    /// # Errors
    /// When none does.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn serving(&self, slot: u16) -> Result<usize, Error> {
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.is_running()) {
            if self.owner(node, slot).await? == Some(i) {
                return Ok(i);
            }
        }
        Err(Error::new(Kind::Store, format!("no node of the cluster serves slot {slot}"))
            .with_hint("its node was killed: bring it back, or give the primaries replicas"))
    }

    /// Waits until every node that runs knows that another than this serves a slot, and which:
    /// a replica that took over knows it first.
    ///
    /// # Errors
    /// When nobody takes over.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn failed_over(&self, slot: u16, from: usize) -> Result<usize, Error> {
        eventually("a replica takes over", async || {
            let next = self.serving(slot).await.map_err(|e| e.to_string())?;
            for node in self.nodes.iter().filter(|n| n.is_running()) {
                let owner = self.owner(node, slot).await.map_err(|e| e.to_string())?;
                if next == from || owner != Some(next) {
                    return Err(format!("node {next} serves, and one knows of {owner:?}"));
                }
            }
            has(&self.nodes[next], &["CLUSTER", "INFO"], "cluster_state:ok").await?;
            Ok(next)
        })
        .await
    }

    /// Who serves a slot in the eyes of one node.
    async fn owner(&self, node: &Server, slot: u16) -> Result<Option<usize>, Error> {
        let slots = tell(node, &["CLUSTER", "SLOTS"]).await?;
        let port = slots.list().iter().find_map(|range| {
            let [first, last, owner, ..] = range.list() else { return None };
            let has = (first.int()?..=last.int()?).contains(&i64::from(slot));
            owner.list().get(1)?.int().filter(|_| has)
        });
        Ok(self.nodes.iter().position(|n| Some(i64::from(n.addr().port())) == port))
    }

    /// Moves a slot and its keys to another node, as an operator does who makes room.
    ///
    /// # Errors
    /// When a node refuses a step.
    ///
    /// # Cancel safety
    /// The slot may stay half moved.
    pub async fn migrate(&self, slot: u16, to: usize) -> Result<(), Error> {
        let migration = self.begin(slot, to).await?;
        migration.move_keys().await?;
        migration.finish().await
    }

    /// Begins to move a slot: from now on its node answers `ASK` for keys that it does not have.
    ///
    /// # Errors
    /// When a node refuses a step.
    ///
    /// # Cancel safety
    /// The slot may stay half moved.
    pub async fn begin(&self, slot: u16, to: usize) -> Result<Migration<'_>, Error> {
        Migration::begin(self, slot, to).await
    }

    /// Kills a node and waits until the others have noticed.
    ///
    /// # Errors
    /// When they do not.
    ///
    /// # Cancel safety
    /// It may be dead.
    pub async fn kill(&self, node: usize) -> Result<(), Error> {
        self.nodes[node].kill();
        eventually("the others notice that a node is dead", async || {
            self.all_see(node, |line| line.contains("fail") && !line.contains("fail?")).await
        })
        .await
    }

    /// Starts a killed node again, with what it has on disk, and waits until the cluster has it.
    ///
    /// # Errors
    /// When it does not come up, or the cluster does not become whole.
    ///
    /// # Cancel safety
    /// It may run.
    pub async fn again(&self, node: usize) -> Result<(), Error> {
        self.nodes[node].again().await?;
        self.settled().await
    }

    /// Waits until every node that runs says that the cluster is well, knows every other as it
    /// is, and, as a replica, has its primary's data.
    ///
    /// # Errors
    /// When that does not happen.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn settled(&self) -> Result<(), Error> {
        eventually("the cluster is whole", async || {
            for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.is_running()) {
                has(node, &["CLUSTER", "INFO"], "cluster_state:ok").await?;
                self.all_see(i, |line| !line.contains("fail") && !line.contains("handshake"))
                    .await?;
                let info = raw(node.addr(), &["INFO", "replication"]).await;
                let info = info.map_err(|e| e.to_string())?.to_string();
                if info.contains("master_link_status:down") {
                    return Err(format!("a replica has no data: {info}"));
                }
                if self.replicas_known_to(node).await? != self.nodes.len() - PRIMARIES {
                    return Err("a node does not know all replicas as such".to_owned());
                }
            }
            Ok(())
        })
        .await
    }

    async fn replicas_known_to(&self, node: &Server) -> Result<usize, String> {
        let nodes = raw(node.addr(), &["CLUSTER", "NODES"]).await.map_err(|e| e.to_string())?;
        Ok(nodes.to_string().lines().filter(|l| l.contains("slave")).count())
    }

    /// Whether each node that runs sees node `i`, in a line of `CLUSTER NODES`, as it should be.
    async fn all_see(&self, i: usize, fine: impl Fn(&str) -> bool) -> Result<(), String> {
        for node in self.nodes.iter().filter(|n| n.is_running()) {
            let nodes = raw(node.addr(), &["CLUSTER", "NODES"]).await.map_err(|e| e.to_string())?;
            let nodes = nodes.to_string();
            let line = nodes.lines().find(|l| l.starts_with(&self.ids[i]));
            if !line.is_some_and(&fine) {
                return Err(format!("a node sees another as {line:?}"));
            }
        }
        Ok(())
    }

    async fn share_slots(&self) -> Result<(), Error> {
        let ends = |i: usize| i * usize::from(SLOTS) / PRIMARIES;
        for (i, node) in self.nodes.iter().enumerate().take(PRIMARIES) {
            // Without epochs of their own they would spend a while on telling each other apart.
            tell(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).await?;
            let (first, last) = (ends(i).to_string(), (ends(i + 1) - 1).to_string());
            tell(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
        }
        Ok(())
    }

    /// Makes every node known to every other.
    async fn meet(&self) -> Result<(), Error> {
        let clock = Clock::system();
        let mut met = None;
        eventually("the nodes meet", async || {
            // A handshake that takes longer than a node's timeout is forgotten, and begun anew.
            if met.is_none_or(|at| clock.now().since(at) > HANDSHAKE) {
                self.introduce().await.map_err(|e| e.to_string())?;
                met = Some(clock.now());
            }
            for i in 0..self.nodes.len() {
                self.all_see(i, |line| !line.contains("handshake")).await?;
            }
            Ok(())
        })
        .await
    }

    async fn introduce(&self) -> Result<(), Error> {
        for node in &self.nodes[1..] {
            let bus = tell(node, &["CONFIG", "GET", "cluster-port"]).await?;
            let bus = bus.list().get(1).map(ToString::to_string).unwrap_or_default();
            let port = node.addr().port().to_string();
            tell(&self.nodes[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        Ok(())
    }

    fn any(&self) -> Result<&Server, Error> {
        self.nodes
            .iter()
            .find(|n| n.is_running())
            .ok_or_else(|| Error::new(Kind::Store, "no node of the cluster runs"))
    }
}

fn node(options: &impl Fn(Redis) -> Redis) -> Result<Redis, Error> {
    let redis = Redis::new()
        .arg("cluster-config-file", "nodes.conf")
        .arg("cluster-node-timeout", "1000")
        .arg("cluster-require-full-coverage", "no")
        .arg("cluster-announce-ip", "127.0.0.1");
    options(redis).cluster_node()
}

async fn has(node: &Server, command: &[&str], line: &str) -> Result<(), String> {
    let said = raw(node.addr(), command).await.map_err(|e| e.to_string())?.to_string();
    said.contains(line).then_some(()).ok_or_else(|| format!("no {line} in {said}"))
}

async fn tell(node: &Server, command: &[&str]) -> Result<Reply, Error> {
    let trouble = || Error::new(Kind::Store, format!("a node refused {}", command.join(" ")));
    raw(node.addr(), command).await.and_then(Reply::ok).map_err(|e| trouble().because(e))
}

fn odd(command: &str, reply: &Reply) -> Error {
    Error::new(Kind::Store, format!("a node answered {command} with {reply}"))
}

#[cfg(test)]
mod tests;
