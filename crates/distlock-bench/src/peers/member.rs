//! A contender's program in Rust: ours, raw calls, and the peers that are Rust crates.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use distlock::backend::{BootInstant, Clock, engine};
use distlock::{Connect, Error, Kind, Locks};
use sqlx::postgres::PgAdvisoryLock;
use sqlx::{Connection, PgConnection};
use tokio::sync::{Mutex, mpsc};

use super::contender::{OURS, RAW, STRICT};
use super::protocol::{Histogram, Measured, Ready};
use crate::peer::Peer;
use crate::raw::{Raw, etcd, redis, sql, zookeeper};
use crate::scenes::spawn;

/// How many cycles a task goes through at most.
const MAX_CYCLES: u64 = 5_000_000;
/// How long the program may take besides warming up and its run.
const PATIENCE: Duration = Duration::from_secs(60);

fn fail(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, "a contender failed").because(e)
}

fn usage(what: &str) -> Error {
    Error::new(Kind::Usage, format!("a contender was started with {what}"))
}

/// The arguments of the protocol.
struct Task {
    server: SocketAddr,
    tasks: usize,
    names: usize,
    warm: Duration,
    run: Duration,
    prefix: String,
}

/// Something that takes a lock and gives it back.
#[derive(Clone)]
enum Contender {
    Ours(Locks),
    Raw(Raw),
    Peer(Peer),
    /// A connection for each task: a wait for an advisory lock occupies its connection.
    Sqlx(Arc<Vec<Mutex<PgConnection>>>),
}

/// Where ours finds a server.
pub(super) fn url(store: &str, server: SocketAddr) -> String {
    match store {
        // A fresh server has a quarantine to wait out; what is measured comes after it.
        "redis" => format!("redis://{server}?quarantine=off&max_ttl=1h"),
        "postgres" => postgres(server),
        other => format!("{other}://{server}"),
    }
}

fn postgres(server: SocketAddr) -> String {
    format!("postgres://postgres@{server}/postgres")
}

impl Contender {
    /// Connects. `who` is `STORE:NAME`.
    async fn connect(who: &str, task: &Task) -> Result<(Self, String), Error> {
        let (store, name) = who.split_once(':').ok_or_else(|| usage(who))?;
        let (server, tasks) = (task.server, task.tasks);
        if name == OURS || name == STRICT {
            let url = url(store, server);
            let locks = match name {
                STRICT => Locks::options().strict_order().connect(&url).await?,
                _ => distlock::connect(&url).await?,
            };
            return Ok((Self::Ours(locks), format!("distlock {}", env!("CARGO_PKG_VERSION"))));
        }
        if name == RAW {
            return Ok((Self::Raw(raw(store, server, task.names).await?), RAW.to_owned()));
        }
        Ok(match name {
            "rslock" => (Self::Peer(Peer::rslock(&[server])), version("rslock")),
            "PgAdvisoryLock" => {
                let mut open = Vec::new();
                for _ in 0..tasks {
                    let connection = PgConnection::connect(&postgres(server)).await;
                    open.push(Mutex::new(connection.map_err(fail)?));
                }
                (Self::Sqlx(Arc::new(open)), version("sqlx"))
            }
            "lock service" => {
                let client = etcd::Etcd::open(server, tasks).await?;
                (Self::Peer(Peer::Service(client)), "v3lock of the server".to_owned())
            }
            "zookeeper-client" => {
                (Self::Peer(Peer::zookeeper(server).await?), version("zookeeper-client"))
            }
            other => return Err(usage(other)),
        })
    }

    /// Takes and gives back; answers when it was granted.
    async fn cycle(&self, name: &str, task: usize, clock: &Clock) -> Result<BootInstant, Error> {
        let mut granted = None;
        let mut grant = || granted = Some(clock.now());
        match self {
            Self::Ours(locks) => {
                let guard = locks.lock(name).await?;
                grant();
                let _ = guard.release().await?;
            }
            // A name of its own for each task: raw calls exclude nobody.
            Self::Raw(raw) => raw.cycle(task).await,
            Self::Peer(peer) => peer.timed_cycle(name, task, grant).await?,
            Self::Sqlx(connections) => {
                let mut connection = connections[task].lock().await;
                let lock = PgAdvisoryLock::new(name);
                let guard = lock.acquire(&mut *connection).await.map_err(fail)?;
                grant();
                guard.release_now().await.map_err(fail)?;
            }
        }
        Ok(granted.unwrap_or_else(|| clock.now()))
    }
}

async fn raw(store: &str, server: SocketAddr, names: usize) -> Result<Raw, Error> {
    Ok(match store {
        "redis" => Raw::redis(redis::Redis::open(vec![vec![server]; names]).await?),
        "postgres" => Raw::sql(sql::Sql::postgres(&postgres(server), names).await?),
        "etcd" => Raw::etcd(etcd::Etcd::open(server, 1).await?),
        "zookeeper" => Raw::zookeeper(zookeeper::ZooKeeper::open(server, names).await?),
        other => return Err(usage(other)),
    })
}

/// A crate and its version in the workspace's lock file.
fn version(package: &str) -> String {
    let mut lines = include_str!("../../../../Cargo.lock").lines();
    let name = format!("name = \"{package}\"");
    let version = lines.find(|line| *line == name).and_then(|_| lines.next());
    let version = version.and_then(|line| line.split('"').nth(1)).unwrap_or_default();
    format!("{package} {version}")
}

/// Takes and gives back with so many tasks for so long.
async fn run(contender: &Contender, task: &Task, length: Duration) -> Result<Measured, Error> {
    let clock = Clock::system();
    let start = clock.now();
    let end = start.plus(length);
    let (tx, mut done) = mpsc::unbounded_channel();
    for number in 0..task.tasks {
        let name = format!("{}-{}", task.prefix, number % task.names);
        let (contender, clock, tx) = (contender.clone(), clock.clone(), tx.clone());
        spawn(async move {
            let (mut wait, mut cycle) = (Histogram::default(), Histogram::default());
            let mut grants = 0;
            let mut now = clock.now();
            while now < end && grants < MAX_CYCLES {
                let begun = now;
                match contender.cycle(&name, number, &clock).await {
                    Ok(granted) => wait.add(granted.since(begun)),
                    Err(e) => return drop(tx.send(Err(e))),
                }
                now = clock.now();
                cycle.add(now.since(begun));
                grants += 1;
            }
            drop(tx.send(Ok((number, grants, wait, cycle))));
        });
    }
    let mut all = Measured { grants: vec![0; task.tasks], ..Measured::default() };
    for _ in 0..task.tasks {
        let closed = || Error::new(Kind::Store, "a task ended early");
        let (number, grants, wait, cycle) = done.recv().await.ok_or_else(closed)??;
        all.grants[number] = grants;
        all.wait.merge(&wait);
        all.cycle.merge(&cycle);
    }
    all.seconds = clock.now().since(start).as_secs_f64();
    Ok(all)
}

fn parse<T: FromStr>(text: &str) -> Result<T, Error> {
    text.parse().map_err(|_| usage(text))
}

fn say(line: &impl serde::Serialize) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(line).map_err(fail)?;
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(fail)
}

/// Plays a contender: one process of a scene.
pub(crate) async fn member(args: &[String]) -> Result<(), Error> {
    let [who, server, tasks, names, warm, length, prefix] = args else {
        return Err(usage("the wrong number of arguments"));
    };
    let task = Task {
        server: parse(server)?,
        tasks: parse(tasks)?,
        names: parse(names)?,
        warm: Duration::from_millis(parse(warm)?),
        run: Duration::from_millis(parse(length)?),
        prefix: prefix.clone(),
    };
    let play = async {
        let (contender, version) = Contender::connect(who, &task).await?;
        run(&contender, &task, task.warm).await?;
        say(&Ready { ready: version })?;
        let mut lines = lines()?;
        if lines.recv().await.is_none() {
            return Ok(());
        }
        tokio::select! {
            measured = run(&contender, &task, task.run) => say(&measured?)?,
            _ = lines.recv() => return Ok(()),
        }
        while lines.recv().await.is_some() {}
        Ok(())
    };
    let bound = task.warm + task.run + PATIENCE;
    let late = || Error::new(Kind::Store, "a contender took too long");
    Clock::system().timeout(bound, play).await.unwrap_or_else(|| Err(late()))
}

/// The lines of the standard input; ends when it does.
fn lines() -> Result<mpsc::UnboundedReceiver<()>, Error> {
    let (tx, rx) = mpsc::unbounded_channel();
    engine::thread("input", move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || tx.send(()).is_err() {
                return;
            }
        }
    })
    .map_err(fail)?;
    Ok(rx)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_of_a_peer_is_the_locked_one() {
        assert!(super::version("rslock").starts_with("rslock 0."), "{}", super::version("rslock"));
    }
}
