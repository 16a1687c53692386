//! How a private etcd starts, alone or as one of three.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::eventually::eventually;
use super::{Certs, Port, Program, Server};

const PACKAGE: &str = "etcd-server";
const HEALTH: &[u8] = b"GET /health HTTP/1.0\r\n\r\n";

/// What an etcd is started with.
#[derive(Clone)]
struct Member {
    name: String,
    peer: Arc<Port>,
    cluster: String,
    tls: Vec<String>,
    /// Further options.
    more: Vec<String>,
}

impl Member {
    fn program(self) -> Program {
        let plain = self.tls.is_empty();
        let program = Program::new("etcd", PACKAGE, move |port, dir| self.args(port, dir));
        // One that speaks TLS has no plain port to ask; that it listens must do.
        if plain { program.probe(HEALTH, &[b"HTTP/1.0 200"]) } else { program }
    }

    fn args(&self, port: u16, dir: &Path) -> Vec<String> {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let (client, peer) = (
            format!("{scheme}://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{}", self.peer.number()),
        );
        let data = dir.join("data").display().to_string();
        let mut args: Vec<String> = [
            ("name", self.name.as_str()),
            ("data-dir", &data),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &self.cluster),
            ("initial-cluster-state", "new"),
            // Passwords of tests need no strong hash, and a strong one takes the server's processor.
            ("bcrypt-cost", "4"),
            ("heartbeat-interval", "50"),
            ("election-timeout", "500"),
            ("logger", "zap"),
            ("log-outputs", "stderr"),
        ]
        .into_iter()
        .flat_map(|(key, value)| [format!("--{key}"), value.to_owned()])
        .collect();
        args.extend(self.tls.iter().cloned());
        args.extend(self.more.iter().cloned());
        args
    }
}

fn no_port(e: std::io::Error) -> Error {
    Error::new(Kind::Store, "the test server etcd has no port").because(e)
}

fn alone(tls: Vec<String>, more: Vec<String>) -> Result<Program, Error> {
    let peer = Arc::new(Port::claim().map_err(no_port)?);
    let cluster = format!("n0=http://127.0.0.1:{}", peer.number());
    Ok(Member { name: "n0".to_owned(), peer, cluster, tls, more }.program())
}

/// An etcd of one member.
///
/// # Errors
/// When no port is free for its peers, of which it has none.
pub fn etcd() -> Result<Program, Error> {
    alone(Vec::new(), Vec::new())
}

/// An etcd of one member whose logins are JSON Web Tokens that end after so many seconds, signed with
/// the secret in a file.
///
/// # Errors
/// As [`etcd`].
pub fn etcd_jwt(secret: &Path, seconds: u32) -> Result<Program, Error> {
    let secret = secret.display();
    let jwt = format!("jwt,sign-method=HS256,priv-key={secret},ttl={seconds}s");
    alone(Vec::new(), vec![format!("--auth-token={jwt}")])
}

/// An etcd of one member that speaks TLS with these certificates; `clients` says whether it lets in
/// only those with a certificate of the same authority.
///
/// # Errors
/// As [`etcd`].
pub fn etcd_tls(certs: &Certs, clients: bool) -> Result<Program, Error> {
    let mut files = vec![("cert-file", certs.server_cert()), ("key-file", certs.server_key())];
    if clients {
        // To name an authority of clients is to ask for their certificates.
        files.push(("trusted-ca-file", certs.ca()));
    }
    let arg =
        |(option, path): &(&str, std::path::PathBuf)| format!("--{option}={}", path.display());
    alone(files.iter().map(arg).collect(), Vec::new())
}

/// Three etcds that are one cluster. Dropping it ends them.
pub struct EtcdCluster {
    nodes: Vec<Server>,
}

impl EtcdCluster {
    /// Starts three and waits until all of them say that they are well.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start() -> Result<Self, Error> {
        let peers: Vec<_> = (0..3)
            .map(|_| Port::claim().map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(no_port)?;
        let all: Vec<_> = peers
            .iter()
            .enumerate()
            .map(|(i, p)| format!("n{i}=http://127.0.0.1:{}", p.number()))
            .collect();
        let cluster = all.join(",");
        let member = |i: usize| {
            let (name, peer, cluster) = (format!("n{i}"), peers[i].clone(), cluster.clone());
            let (tls, more) = (Vec::new(), Vec::new());
            Server::start(Member { name, peer, cluster, tls, more }.program())
        };
        // At once: none of them is well before two of them are there.
        let (a, b, c) = tokio::join!(member(0), member(1), member(2));
        Ok(Self { nodes: vec![a?, b?, c?] })
    }

    /// The members.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Where clients connect to, with commas between, as in a URL.
    #[must_use]
    pub fn hosts(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(|n| n.addr().to_string()).collect();
        all.join(",")
    }

    /// Which member leads.
    ///
    /// # Errors
    /// When there is none for long.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn leader(&self) -> Result<usize, Error> {
        eventually("etcd has a leader", async || {
            for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.is_running()) {
                let Some(said) = gateway(node.addr(), "/v3/maintenance/status").await else {
                    continue;
                };
                let status: serde_json::Value =
                    serde_json::from_str(&said).map_err(|e| e.to_string())?;
                if status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
                {
                    return Ok(i);
                }
            }
            Err("nobody says that it leads".to_owned())
        })
        .await
    }

    /// Waits until all members that run say that they are well.
    ///
    /// # Errors
    /// When that does not happen.
    ///
    /// # Cancel safety
    /// Asks only.
    pub async fn settled(&self) -> Result<(), Error> {
        eventually("every member of etcd is well", async || {
            for node in self.nodes.iter().filter(|n| n.is_running()) {
                let said = http(node.addr(), "GET", "/health", "").await.unwrap_or_default();
                if !said.contains("true") {
                    return Err(format!("{} says {said:?}", node.addr()));
                }
            }
            Ok(())
        })
        .await
    }
}

/// A number that a server tells about itself: one line of its `/metrics`.
///
/// # Cancel safety
/// Asks only.
pub async fn etcd_metric(server: &Server, name: &str) -> Option<f64> {
    let of_name = |line: &&str| line.split([' ', '{']).next() == Some(name);
    metric(server, of_name).await
}

/// How many calls of a method a server was sent.
///
/// # Cancel safety
/// Asks only.
pub async fn etcd_calls(server: &Server, method: &str) -> Option<f64> {
    let method = format!("grpc_method=\"{method}\"");
    let of_method =
        |line: &&str| line.starts_with("grpc_server_started_total{") && line.contains(&method);
    metric(server, of_method).await
}

async fn metric(server: &Server, line: impl Fn(&&str) -> bool) -> Option<f64> {
    // A busy server takes its time for it.
    let mut said = None;
    for _ in 0..5 {
        said = http(server.addr(), "GET", "/metrics", "").await;
        if said.is_some() {
            break;
        }
    }
    let said = said?;
    let line = said.lines().find(line)?;
    line.rsplit(' ').next()?.trim().parse().ok()
}

/// `etcdctl` with these arguments at a server, to its end; what it says.
///
/// # Errors
/// When it is not installed, or fails; with what it says.
///
/// # Cancel safety
/// Dropping the future kills it.
pub async fn etcdctl(server: &Server, args: &[&str]) -> Result<String, Error> {
    let trouble = |what: String| Error::new(Kind::Store, what);
    let output = etcdctl_command(server, args).output().await.map_err(|e| {
        Error::new(Kind::Unsupported, "etcdctl does not start")
            .because(e)
            .with_hint("apt-get install etcd-client (`cargo xtask setup` does it)")
    })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(trouble(format!("etcdctl: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// `etcdctl` with these arguments at a server, not yet started: for what goes on for a while.
#[must_use]
pub fn etcdctl_command(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").kill_on_drop(true);
    command.arg(format!("--endpoints=http://{}", server.addr())).args(args);
    command
}

async fn gateway(addr: SocketAddr, path: &str) -> Option<String> {
    http(addr, "POST", path, "{}").await
}

/// The body of an answer.
async fn http(addr: SocketAddr, method: &str, path: &str, body: &str) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        let length = body.len();
        let question =
            format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(question.as_bytes()).await.ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await.ok()?;
        said.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    };
    Clock::system().timeout(Duration::from_secs(2), ask).await.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_starts_forgets_and_starts_again() {
        let server = Server::start(etcd().unwrap()).await.unwrap();
        etcdctl(&server, &["put", "a", "1"]).await.unwrap();
        server.kill();
        server.again().await.unwrap();
        assert_eq!(etcdctl(&server, &["get", "a"]).await.unwrap(), "a\n1\n");
        server.wipe().await.unwrap();
        assert_eq!(etcdctl(&server, &["get", "a"]).await.unwrap(), "");
        assert!(etcd_metric(&server, "etcd_server_has_leader").await == Some(1.0));
    }

    #[tokio::test]
    async fn three_agree_on_a_leader_and_on_another_after_it() {
        let cluster = EtcdCluster::start().await.unwrap();
        let first = cluster.leader().await.unwrap();
        cluster.nodes()[first].kill();
        let second = cluster.leader().await.unwrap();
        assert_ne!(first, second);
        cluster.nodes()[first].again().await.unwrap();
        cluster.settled().await.unwrap();
    }
}
