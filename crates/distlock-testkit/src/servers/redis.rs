//! How a private redis-server starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use distlock_core::{Error, Kind};

use super::{Port, Program, Reply, Server, WallClock, raw};

mod disk;

/// What a redis that is up says to `PING`: also that it wants a password first.
const UP: &[&[u8]] = &[b"+PONG", b"-NOAUTH", b"-NOPERM"];
/// The socket's name in the data directory.
const SOCKET: &str = "redis.sock";
const USERS: &str = "users.acl";

/// A redis-server that keeps nothing on disk, on a port of its own.
#[must_use]
pub fn redis() -> Program {
    Redis::new().program()
}

/// A redis-server to be started: volatile, open to everybody and alone, unless told otherwise.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Redis {
    options: Vec<[String; 2]>,
    lists: Vec<Vec<String>>,
    users: Option<String>,
    config: Option<String>,
    env: Vec<(String, std::ffi::OsString)>,
    tls: bool,
    /// Claimed for as long as the server may start again.
    bus: Option<Arc<Port>>,
}

impl Redis {
    /// A redis that keeps nothing on disk.
    pub fn new() -> Self {
        Self::default().arg("save", "").arg("appendonly", "no")
    }

    /// Every write is on disk before it is answered.
    pub fn durable(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// Writes are put on disk once a second: a power cut loses the last of them.
    pub fn everysec(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "everysec")
    }

    /// Whoever connects must say this first.
    pub fn password(self, password: &str) -> Self {
        self.arg("requirepass", password)
    }

    /// The users of its access list, each as in an ACL file without the word `user`, e.g.
    /// `app on >secret ~dl:* &* +@all`. Name `default` as well to change what strangers may.
    pub fn users(mut self, users: &[&str]) -> Self {
        self.users = Some(users.iter().map(|u| format!("user {u}\n")).collect());
        self.arg("aclfile", USERS)
    }

    /// Listens on a Unix socket too; [`Redis::socket`] says where.
    pub fn unix_socket(self) -> Self {
        self.arg("unixsocket", SOCKET)
    }

    /// Where a server started with [`Redis::unix_socket`] or TLS has its Unix socket.
    #[must_use]
    pub fn socket(server: &Server) -> PathBuf {
        server.dir().join(SOCKET)
    }

    /// Its memory limit and what it does there, e.g. `noeviction` or `allkeys-lru`.
    pub fn maxmemory(self, bytes: u64, policy: &str) -> Self {
        self.arg("maxmemory", &bytes.to_string()).arg("maxmemory-policy", policy)
    }

    /// Refuses writes while fewer replicas than these are at most `lag` seconds behind.
    pub fn min_replicas(self, n: u32, lag: u32) -> Self {
        self.arg("min-replicas-to-write", &n.to_string())
            .arg("min-replicas-max-lag", &lag.to_string())
    }

    /// Follows another redis. It is up before it has the other's data.
    pub fn replica_of(mut self, primary: SocketAddr) -> Self {
        let (host, port) = (primary.ip().to_string(), primary.port().to_string());
        self.lists.push(vec!["--replicaof".to_owned(), host, port]);
        self
    }

    /// Any other option, without its dashes. The latest value of an option counts.
    pub fn arg(mut self, option: &str, value: &str) -> Self {
        self.options.retain(|[o, _]| o != option);
        self.options.push([option.to_owned(), value.to_owned()]);
        self
    }

    /// Begins with a configuration file of this text, which the server may rewrite.
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, key: &str, value: impl Into<std::ffi::OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Goes by this wall clock.
    pub fn clock(self, clock: &WallClock) -> Self {
        clock.env().into_iter().fold(self, |redis, (k, v)| redis.env(k, v))
    }

    /// Speaks TLS on its port, and plainly on its Unix socket.
    pub(super) fn only_tls(mut self) -> Self {
        self.tls = true;
        self.unix_socket()
    }

    /// A node of a cluster, with a port of its own to talk to the others: by itself it would take one
    /// that the kernel may have given to somebody.
    ///
    /// # Errors
    /// When every port is taken.
    pub fn cluster_node(mut self) -> Result<Self, Error> {
        let trouble =
            |e| Error::new(Kind::Store, "a cluster node has no port for its bus").because(e);
        let bus = Arc::new(Port::claim().map_err(trouble)?);
        self = self.arg("cluster-enabled", "yes").arg("cluster-port", &bus.number().to_string());
        self.bus = Some(bus);
        Ok(self)
    }

    /// Makes the account that a store's page tells people to make, at a server that is up: the line
    /// `ACL SETUSER …` of the page's text. The page's example of names that are locks becomes all.
    ///
    /// # Errors
    /// When the page has no such line, or the server refuses it.
    ///
    /// # Cancel safety
    /// The account may be there.
    pub async fn account(at: SocketAddr, page: &str) -> Result<(), Error> {
        let trouble = |e| Error::new(Kind::Store, "no account").because(e);
        let line = page.lines().find_map(|l| l.strip_prefix("ACL SETUSER "));
        let line = line.ok_or_else(|| Error::new(Kind::Usage, "the page has no ACL line"))?;
        let line = line.replace("~orders/*", "~*");
        let command: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(line.split(' ')).collect();
        let told = raw(at, &command).await.and_then(Reply::ok);
        told.map(drop).map_err(trouble)
    }

    /// The program with these options.
    #[must_use]
    pub fn program(self) -> Program {
        let Self { options, lists, users, config, env, tls, bus } = self;
        let has_config = config.is_some();
        let args = move |port: u16, dir: &std::path::Path| {
            let _claimed = &bus;
            let mut args: Vec<String> =
                if has_config { vec!["redis.conf".to_owned()] } else { Vec::new() };
            let mut put = |option: &str, value: &str| {
                args.extend([format!("--{option}"), value.to_owned()]);
            };
            let port = port.to_string();
            put("port", if tls { "0" } else { &port });
            if tls {
                put("tls-port", &port);
            }
            put("bind", "127.0.0.1");
            put("dir", &dir.display().to_string());
            // A primary that waits five seconds for more replicas makes every test wait.
            put("repl-diskless-sync-delay", "0");
            for [option, value] in &options {
                put(option, value);
            }
            args.extend(lists.iter().flatten().cloned());
            args
        };
        let mut program = Program::new("redis-server", "redis-server", args).probe(b"PING\r\n", UP);
        if tls {
            program = program.probe_socket(SOCKET);
        }
        for (name, text) in [(USERS, users), ("redis.conf", config)] {
            if let Some(text) = text {
                program = program.file(name, text);
            }
        }
        env.into_iter().fold(program, |p, (k, v)| p.env(&k, v))
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start(self) -> Result<Server, Error> {
        Server::start(self.program()).await
    }
}

#[cfg(test)]
mod tests;
