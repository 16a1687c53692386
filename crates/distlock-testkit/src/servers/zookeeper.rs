//! How private ZooKeeper servers start: one alone, or an ensemble.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Port, Program, Server};
use crate::proxy::Proxy;

mod wedge;

/// The servers' tick.
pub const ZOOKEEPER_TICK: Duration = Duration::from_millis(200);

/// What Debian's packages put on the class path.
const JARS: [&str; 12] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-nop",
    "netty-all",
    "commons-cli",
    "metrics-core",
    "snappy-java",
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "log4j-1.2",
];

/// A ZooKeeper of its own, on a free port, with a tick of 200 ms and sessions of up to a day.
#[must_use]
pub fn zookeeper() -> Program {
    zookeeper_with(&[])
}

/// The same, with these lines in its configuration besides: the last one of a kind counts.
#[must_use]
pub fn zookeeper_with(lines: &[&str]) -> Program {
    program(lines.iter().map(ToString::to_string).collect(), QUICK)
}

/// One that does not answer before what it was told is on its disk, as servers do unless told
/// otherwise: for measuring.
#[must_use]
pub fn durable_zookeeper() -> Program {
    program(Vec::new(), &[])
}

/// One that has lost the two others of its ensemble, and answers questions all the same. The ports
/// are the ones it would talk to them on.
#[must_use]
pub fn lonely_zookeeper(quorum: &Port, election: &Port) -> Program {
    let mine = format!("server.1=127.0.0.1:{}:{}", quorum.number(), election.number());
    // Nobody listens on these.
    let others = ["server.2=127.0.0.1:1:2", "server.3=127.0.0.1:3:4"].map(str::to_owned);
    let servers = [vec![mine], others.to_vec()].concat();
    let options = &["-Dzookeeper.forceSync=no", "-Dreadonlymode.enabled=true"];
    program(servers, options).file("myid", "1").probe(b"isro", &[b"ro"])
}

/// A follower may know of its leader before that one listens to followers. One that was let in by
/// the proxy and shut out again would look for a leader anew, and find none before this one has
/// given up.
const FOLLOWERS_COME_EARLY: Duration = Duration::from_secs(5);

/// Data that need not outlast the machine need not wait for its disk.
const QUICK: &[&str] = &["-Dzookeeper.forceSync=no"];

fn program(servers: Vec<String>, options: &'static [&'static str]) -> Program {
    let args = move |port: u16, dir: &Path| {
        // Its port is known only now.
        let config = dir.join("zoo.cfg");
        let _ = fs::write(&config, configuration(port, dir, &servers));
        let jars: Vec<String> = JARS.iter().map(|j| format!("/usr/share/java/{j}.jar")).collect();
        let mut args: Vec<String> = [
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Djava.net.preferIPv4Stack=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dznode.container.checkIntervalMs=2000",
            // Whoever hears nothing in an election asks again, after twice as long each time, up to
            // a minute: one that was started a moment too early would wait for that.
            "-Dzookeeper.fastleader.maxNotificationInterval=1000",
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(options.iter().map(ToString::to_string));
        args.extend(["-cp".to_owned(), jars.join(":")]);
        args.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        args.push(config.display().to_string());
        args
    };
    Program::new("java", "zookeeper", args).probe(b"srvr", &[b"Zookeeper version"])
}

fn configuration(port: u16, dir: &Path, servers: &[String]) -> String {
    let tick = ZOOKEEPER_TICK.as_millis();
    let data = dir.display();
    let mut lines = vec![
        format!("tickTime={tick}"),
        "initLimit=50".to_owned(),
        "syncLimit=10".to_owned(),
        format!("dataDir={data}"),
        format!("clientPort={port}"),
        "clientPortAddress=127.0.0.1".to_owned(),
        "admin.enableServer=false".to_owned(),
        "4lw.commands.whitelist=*".to_owned(),
        "maxClientCnxns=0".to_owned(),
        "maxSessionTimeout=86400000".to_owned(),
        "extendedTypesEnabled=true".to_owned(),
    ];
    lines.extend(servers.iter().cloned());
    lines.join("\n") + "\n"
}

/// Asks a server one of its four-letter words, and reads to the end.
///
/// # Errors
/// When it does not answer within five seconds.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub async fn four_letters(server: SocketAddr, word: &str) -> Result<String, Error> {
    let ask = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let trouble = || Error::new(Kind::Store, format!("no answer to {word}"));
    match Clock::system().timeout(Duration::from_secs(5), ask).await {
        Some(answer) => answer.map_err(|e| trouble().because(e)),
        None => Err(trouble()),
    }
}

/// An ensemble of three. Every link between two of its servers can be cut.
pub struct Ensemble {
    servers: Vec<Server>,
    /// The links from one server to another, by their numbers.
    links: Vec<(usize, usize, Proxy)>,
    _ports: Vec<Port>,
}

impl Ensemble {
    /// Starts three servers and waits until they have a leader.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start() -> Result<Self, Error> {
        let trouble = |e| Error::new(Kind::Store, "no port for an ensemble").because(e);
        let ports: Result<Vec<Port>, _> = (0..6).map(|_| Port::claim()).collect();
        let ports = ports.map_err(trouble)?;
        let mut links = Vec::new();
        let mut programs = Vec::new();
        for me in 0..3 {
            let mut lines = Vec::new();
            for other in 0..3 {
                let mut pair = [ports[other * 2].number(), ports[other * 2 + 1].number()];
                // What a server has of another is a link of its own: it goes through a proxy.
                if me != other {
                    for (port, late) in pair.iter_mut().zip([FOLLOWERS_COME_EARLY, Duration::ZERO])
                    {
                        let there = SocketAddr::from(([127, 0, 0, 1], *port));
                        let link = Proxy::to_late(there, late).await.map_err(trouble)?;
                        *port = link.addr().port();
                        links.push((me, other, link));
                    }
                }
                lines.push(format!("server.{}=127.0.0.1:{}:{}", other + 1, pair[0], pair[1]));
            }
            programs.push(program(lines, QUICK).file("myid", (me + 1).to_string()));
        }
        let [a, b, c] = [programs.remove(0), programs.remove(0), programs.remove(0)];
        let (a, b, c) = tokio::join!(Server::start(a), Server::start(b), Server::start(c));
        Ok(Self { servers: vec![a?, b?, c?], links, _ports: ports })
    }

    /// Its servers.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Where clients connect to, with commas between.
    #[must_use]
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|s| s.addr().to_string()).collect();
        hosts.join(",")
    }

    /// Which of its servers leads.
    ///
    /// # Errors
    /// When none does within forty seconds.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn leader(&self) -> Result<usize, Error> {
        let clock = Clock::system();
        let end = clock.now().plus(Duration::from_secs(40));
        while clock.now() < end {
            for (i, server) in self.servers.iter().enumerate() {
                if server.is_running()
                    && let Ok(answer) = four_letters(server.addr(), "srvr").await
                    && answer.contains("Mode: leader")
                {
                    return Ok(i);
                }
            }
            clock.sleep(Duration::from_millis(50)).await;
        }
        Err(Error::new(Kind::Store, "the ensemble has no leader"))
    }

    /// What proves that a server of it has stopped committing writes for good, if one has: it
    /// serves, leaves a raw write unanswered, and its zxid stays. See `wedge.rs`.
    ///
    /// # Cancel safety
    /// A session may be left that ends after two seconds.
    pub async fn wedged(&self) -> Option<String> {
        for server in &self.servers {
            if let Some(proof) = wedge::wedge(server).await {
                return Some(proof);
            }
        }
        None
    }

    fn of(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        let mine = move |(a, b, _): &&(usize, usize, Proxy)| *a == server || *b == server;
        self.links.iter().filter(mine).map(|(_, _, link)| link)
    }

    /// Cuts a server off from the two others; its clients still reach it.
    pub fn cut_off(&self, server: usize) {
        self.of(server).for_each(Proxy::cut_both);
    }

    /// Ends [`Ensemble::cut_off`].
    pub fn heal(&self) {
        self.links.iter().for_each(|(_, _, link)| {
            link.heal();
            // What was held back belongs to connections that have been given up.
            link.reset();
        });
    }
}
