//! What the tests share: a server, clients of it, raw commands, and a valve in the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, FullName, Guard, Locks, Name};
use distlock_memcached::Memcached;
use distlock_testkit::servers::{Program, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) use distlock_testkit::wait::LONG;

distlock_testkit::waits!(soon: Duration::from_secs(20), limit: Duration::from_secs(300));

pub(crate) async fn start(program: Program) -> Server {
    Server::start(program).await.expect("`cargo xtask setup` installs memcached")
}

pub(crate) async fn connect(address: SocketAddr) -> Result<Locks, Error> {
    let url = StoreUrl::parse(&format!("memcached://{address}"))?;
    Memcached::connect(&url).await.map(Locks::from_store)
}

pub(crate) async fn client(address: SocketAddr) -> Locks {
    connect(address).await.expect("a client")
}

pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer").expect("a free lock")
}

pub(crate) fn full(name: &str) -> FullName {
    FullName { space: Default::default(), name: Name::new(name).expect("a name") }
}

/// Raw commands; what is answered until `end`.
pub(crate) async fn raw(address: SocketAddr, commands: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the server");
    stream.write_all(commands.as_bytes()).await.expect("commands");
    let mut answer = Vec::new();
    soon("a raw answer", async {
        while !answer.ends_with(end.as_bytes()) {
            let mut chunk = vec![0; 65536];
            let n = stream.read(&mut chunk).await.expect("an answer");
            assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..n]);
        }
    })
    .await;
    String::from_utf8(answer).expect("text")
}

/// Deletes a lock's item behind everybody's back.
pub(crate) async fn delete(address: SocketAddr, name: &str) {
    let key = distlock_memcached::lock_key(&full(name));
    raw(address, &format!("md {key}\r\n"), "HD\r\n").await;
}

/// A network that can hold back what a client sends from a certain word on, on connections that are
/// open when it is shut; later ones are not held.
pub(crate) struct Valve {
    pub(crate) addr: SocketAddr,
    shut: Arc<watch::Sender<Option<&'static str>>>,
    holds: watch::Receiver<bool>,
}

impl Valve {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let shut = Arc::new(watch::Sender::new(None));
        let (held, holds) = watch::channel(false);
        let (given, held) = (shut.clone(), Arc::new(held));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.expect("the server");
                let old = given.borrow().is_none();
                let (order, held) = (given.subscribe(), held.clone());
                tokio::spawn(async move { carry(client, server, order, held, old).await });
            }
        });
        Self { addr, shut, holds }
    }

    /// From the next time that this word is sent, nothing arrives any more.
    pub(crate) fn shut_at(&self, word: &'static str) {
        self.shut.send_replace(Some(word));
    }

    /// Waits until something is held back.
    pub(crate) async fn holds(&mut self) {
        soon("something is held back", self.holds.wait_for(|h| *h)).await.expect("the valve");
    }

    /// Lets everything through, what was held back first.
    pub(crate) fn open(&self) {
        self.shut.send_replace(None);
    }
}

async fn carry(
    client: TcpStream,
    server: TcpStream,
    mut order: watch::Receiver<Option<&'static str>>,
    held: Arc<watch::Sender<bool>>,
    old: bool,
) {
    let ((mut cr, mut cw), (mut sr, mut sw)) = (client.into_split(), server.into_split());
    tokio::spawn(async move { tokio::io::copy(&mut sr, &mut cw).await });
    let mut chunk = vec![0; 65536];
    while let Ok(n) = cr.read(&mut chunk).await {
        let word = order.borrow().filter(|_| old);
        let at = word.and_then(|w| chunk[..n].windows(w.len()).position(|p| p == w.as_bytes()));
        let (now, later) = chunk[..n].split_at(at.unwrap_or(n));
        if n == 0 || sw.write_all(now).await.is_err() {
            return;
        }
        if !later.is_empty() {
            held.send_replace(true);
            let _ = order.wait_for(Option::is_none).await;
            held.send_replace(false);
            if sw.write_all(later).await.is_err() {
                return;
            }
        }
    }
}
