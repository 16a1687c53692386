//! A primary, two replicas and the three sentinels that watch them.
//!
//! Nothing stands between these servers, because sentinels put right whoever follows an address
//! that is not the primary's own. A cut is made with access rights instead: replicas and sentinels
//! come as users of their own, and a primary that no longer lets one of them in is a primary that
//! they cannot reach, while clients still can.

use std::io;
use std::net::SocketAddr;

use distlock_core::{Error, Kind};

use super::eventually::eventually;
use super::{Program, Redis, Reply, Server, Wire};

const MAJORITY: usize = 2;
/// Users of each server: for replicas, for sentinels, and for the test itself.
const STAFF: [&str; 3] = [
    "follower on >follower ~* &* +@all",
    "watcher on >watcher ~* &* +@all",
    "tester on >tester ~* &* +@all",
];

/// Six servers: a primary, two replicas and three sentinels. Dropping it ends them all.
pub struct Sentinels {
    nodes: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// The name under which the sentinels know the primary.
    pub const SERVICE: &str = "mymaster";

    /// Starts them and waits until every sentinel knows the others and the replicas.
    ///
    /// # Errors
    /// As [`Server::start`], and when they do not find each other.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start() -> Result<Self, Error> {
        Self::with("nopass", |redis| redis).await
    }

    /// As [`Sentinels::start`], with options for the primary and the replicas. Clients log in as
    /// `default`, by `nopass` or by a password in the words of an ACL file, e.g. `>secret`.
    ///
    /// # Errors
    /// As [`Sentinels::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn with(login: &str, options: impl Fn(Redis) -> Redis) -> Result<Self, Error> {
        let default = format!("default on {login} ~* &* +@all");
        let users: Vec<&str> = STAFF.into_iter().chain([default.as_str()]).collect();
        // In a file and not among the arguments, because a promoted replica that starts again is
        // to go by what the sentinels made it, and they make it rewrite its file.
        let config = "masteruser follower\nmasterauth follower\n";
        let start = async |more: &str| {
            let redis = Redis::new().users(&users).config(&format!("{config}{more}"));
            options(redis).start().await
        };
        let primary = start("").await?;
        let at = primary.addr();
        let follow = format!("replicaof {} {}\n", at.ip(), at.port());
        let (one, two) = tokio::try_join!(start(&follow), start(&follow))?;
        let mut set = Self { nodes: vec![primary, one, two], sentinels: Vec::new() };
        set.replicated().await?;
        let watch = || Server::start(sentinel(at));
        let (a, b, c) = tokio::try_join!(watch(), watch(), watch())?;
        set.sentinels = vec![a, b, c];
        set.settled().await?;
        Ok(set)
    }

    /// The addresses of the sentinels.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::addr).collect()
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The primary and the replicas; who is which changes with a failover.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Asks one of the nodes as the test's own user, whom no cut and no password keeps out.
    ///
    /// # Errors
    /// As [`Wire::call`].
    ///
    /// # Cancel safety
    /// The command may have taken effect.
    pub async fn ask(&self, node: &Server, command: &[&str]) -> io::Result<Reply> {
        let mut wire = Wire::to(node.addr()).await?;
        wire.call(&["AUTH", "tester", "tester"]).await?.ok()?;
        wire.call(command).await
    }

    /// The primary that a majority of the sentinels names now.
    ///
    /// # Errors
    /// When they do not agree.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn primary(&self) -> Result<&Server, Error> {
        let mut votes = Vec::new();
        for sentinel in self.sentinels.iter().filter(|s| s.is_running()) {
            votes.extend(named_by(sentinel).await.ok());
        }
        let elected =
            |n: &&Server| votes.iter().filter(|port| **port == n.addr().port()).count() >= MAJORITY;
        self.nodes.iter().find(elected).ok_or_else(|| {
            Error::new(Kind::Store, "the sentinels name no primary together")
                .with_hint(format!("the ports they name: {votes:?}"))
        })
    }

    /// The nodes that are not the primary.
    ///
    /// # Errors
    /// As [`Sentinels::primary`].
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn replicas(&self) -> Result<Vec<&Server>, Error> {
        let primary = self.primary().await?.addr();
        Ok(self.nodes.iter().filter(|n| n.addr() != primary).collect())
    }

    /// Makes every sentinel watch the primary under another name too, at an address that leads to
    /// it. They find no fault with it for an hour, and take none of its replicas away.
    ///
    /// # Errors
    /// When a sentinel refuses.
    ///
    /// # Cancel safety
    /// Some may do so.
    pub async fn watch(&self, name: &str, at: SocketAddr) -> Result<(), Error> {
        let (host, port, quorum) = (at.ip().to_string(), at.port().to_string(), "2");
        let hour = "3600000";
        let times = ["down-after-milliseconds", hour, "failover-timeout", hour];
        let login = ["auth-user", "watcher", "auth-pass", "watcher"];
        for sentinel in &self.sentinels {
            let monitor = ["SENTINEL", "MONITOR", name, &host, &port, quorum];
            let set = [&["SENTINEL", "SET", name][..], &times, &login].concat();
            for command in [&monitor[..], &set] {
                let said = super::raw(sentinel.addr(), command).await.and_then(Reply::ok);
                said.map_err(|e| Error::new(Kind::Store, "a sentinel refused").because(e))?;
            }
        }
        Ok(())
    }

    /// Cuts the primary off from its replicas, not from sentinels and clients: what it accepts
    /// from now on is lost if it fails. Sentinels promote none that was cut off ten seconds ago.
    ///
    /// # Errors
    /// When the primary cannot be asked.
    ///
    /// # Cancel safety
    /// The cut may be made.
    pub async fn cut_replicas(&self) -> Result<(), Error> {
        let primary = self.primary().await?;
        self.tell(primary, &["ACL", "SETUSER", "follower", "off"]).await?;
        self.tell(primary, &["CLIENT", "KILL", "TYPE", "replica"]).await?;
        eventually("the primary is alone", async || {
            let info = self.ask(primary, &["INFO", "replication"]).await;
            yes(info, "connected_slaves:0")
        })
        .await
    }

    /// Cuts the primary off from its replicas and from the sentinels, which will name another. It
    /// lives on, takes itself for the primary, and serves the clients that it has.
    ///
    /// # Errors
    /// When the primary cannot be asked.
    ///
    /// # Cancel safety
    /// The cut may be made in part.
    pub async fn isolate_primary(&self) -> Result<(), Error> {
        let primary = self.primary().await?;
        self.cut_replicas().await?;
        // Without a right to PING the sentinels are answered, but not as by a server that lives.
        self.tell(primary, &["ACL", "SETUSER", "watcher", "-@all"]).await
    }

    /// Ends every cut. The sentinels make a former primary a replica, ten to twenty seconds
    /// later; [`Sentinels::demote`] does not wait for them.
    ///
    /// # Errors
    /// When a node that runs cannot be asked.
    ///
    /// # Cancel safety
    /// Some cuts may last.
    pub async fn heal(&self) -> Result<(), Error> {
        for node in self.nodes.iter().filter(|n| n.is_running()) {
            self.tell(node, &["ACL", "SETUSER", "follower", "on"]).await?;
            self.tell(node, &["ACL", "SETUSER", "watcher", "+@all"]).await?;
        }
        Ok(())
    }

    /// Makes a former primary follow the present one, as the sentinels would in time.
    ///
    /// # Errors
    /// When it cannot be asked, or the sentinels do not agree on a primary.
    ///
    /// # Cancel safety
    /// It may be done.
    pub async fn demote(&self, former: &Server) -> Result<(), Error> {
        let at = self.primary().await?.addr();
        let (host, port) = (at.ip().to_string(), at.port().to_string());
        self.tell(former, &["REPLICAOF", &host, &port]).await
    }

    /// Waits until every sentinel that runs names another primary than this one, and that one
    /// says itself that it is.
    ///
    /// # Errors
    /// When no failover happens.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn failed_over(&self, from: SocketAddr) -> Result<&Server, Error> {
        eventually("a failover", async || {
            let primary = self.primary().await.map_err(|e| format!("{e:?}"))?;
            for sentinel in self.sentinels.iter().filter(|s| s.is_running()) {
                let named = named_by(sentinel).await.map_err(|e| e.to_string())?;
                if named == from.port() || named != primary.addr().port() {
                    return Err(format!("one sentinel still names {named}"));
                }
            }
            yes(self.ask(primary, &["INFO", "replication"]).await, "role:master")?;
            Ok(primary)
        })
        .await
    }

    /// Waits until every sentinel sees the two others and two replicas that follow the primary:
    /// only then does a failover work as it should.
    ///
    /// # Errors
    /// When that does not happen, because one was killed for instance.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn settled(&self) -> Result<(), Error> {
        eventually("the sentinels know each other", async || {
            for sentinel in &self.sentinels {
                let mut wire = Wire::to(sentinel.addr()).await.map_err(|e| e.to_string())?;
                // One that stood still for seconds does nothing for half a minute.
                let info = wire.call(&["INFO", "sentinel"]).await.map_err(|e| e.to_string())?;
                if !info.to_string().contains("sentinel_tilt:0") {
                    return Err(format!("a sentinel does nothing just now: {info}"));
                }
                let master = wire.call(&["SENTINEL", "MASTER", Self::SERVICE]).await;
                let master = master.map_err(|e| e.to_string())?;
                let known = ["flags master]", "num-slaves 2]", "num-other-sentinels 2]"];
                let all = pairs(&master);
                if let Some(amiss) = known.iter().find(|k| !all.contains(**k)) {
                    return Err(format!("not {amiss} in {all}"));
                }
                for (list, fine) in [("REPLICAS", "master-link-status ok]"), ("SENTINELS", "")] {
                    let list = wire.call(&["SENTINEL", list, Self::SERVICE]).await;
                    let list = list.map_err(|e| e.to_string())?;
                    let bad = |one: &&Reply| {
                        let one = pairs(one);
                        let down = ["_down", "disconnected"].iter().any(|d| one.contains(d));
                        down || !one.contains(fine)
                    };
                    if let Some(one) = list.list().iter().find(bad) {
                        return Err(format!("not well: {}", pairs(one)));
                    }
                }
            }
            Ok(())
        })
        .await
    }

    async fn replicated(&self) -> Result<(), Error> {
        eventually("the replicas have the primary's data", async || {
            for node in &self.nodes[1..] {
                yes(self.ask(node, &["INFO", "replication"]).await, "master_link_status:up")?;
            }
            Ok(())
        })
        .await
    }

    async fn tell(&self, node: &Server, command: &[&str]) -> Result<(), Error> {
        let said = self.ask(node, command).await.and_then(Reply::ok);
        let trouble = || Error::new(Kind::Store, format!("a node refused {}", command.join(" ")));
        said.map(drop).map_err(|e| trouble().because(e))
    }
}

/// The same program as the server's, so that nothing else needs to be installed.
fn sentinel(primary: SocketAddr) -> Program {
    let name = Sentinels::SERVICE;
    let config = format!(
        "sentinel monitor {name} {} {} {MAJORITY}\n\
         sentinel down-after-milliseconds {name} 1000\n\
         sentinel failover-timeout {name} 3000\n\
         sentinel parallel-syncs {name} 2\n\
         sentinel auth-user {name} watcher\n\
         sentinel auth-pass {name} watcher\n",
        primary.ip(),
        primary.port()
    );
    Program::new("redis-server", "redis-server", |port, dir| {
        let (port, dir) = (port.to_string(), dir.display().to_string());
        ["sentinel.conf", "--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--sentinel"]
            .map(str::to_owned)
            .to_vec()
    })
    .file("sentinel.conf", config)
    .probe(b"PING\r\n", &[b"+PONG"])
}

async fn named_by(sentinel: &Server) -> io::Result<u16> {
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::SERVICE];
    let addr = super::raw(sentinel.addr(), &command).await?;
    let port = addr.list().get(1).and_then(Reply::int).and_then(|p| u16::try_from(p).ok());
    port.ok_or_else(|| io::Error::other(format!("no address: {addr}")))
}

fn yes(info: io::Result<Reply>, line: &str) -> Result<(), String> {
    let info = info.map_err(|e| e.to_string())?.to_string();
    info.contains(line).then_some(()).ok_or_else(|| format!("no {line} in {info}"))
}

/// A flat list of names and values as `[name value] [name value] …`.
fn pairs(list: &Reply) -> String {
    list.list().chunks(2).map(|p| Reply::List(p.to_vec()).to_string()).collect()
}

#[cfg(test)]
mod tests;
