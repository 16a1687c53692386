//! A TCP proxy as a value: it stands between a client and a server and misbehaves on command.
//!
//! Commands take effect at once, on connections that are open as well as on new ones.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{BootInstant, Clock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::wait::task;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

#[derive(Clone, Copy, Default)]
struct Weather {
    delay: Duration,
    cut: [bool; 2],
    drop: [bool; 2],
    resets: u64,
    /// How often connections were stranded, and how often what they had sent arrived.
    strands: u64,
    arrivals: u64,
    gone: bool,
}

/// A proxy between clients and one server. Dropping it closes every connection through it.
pub struct Proxy {
    addr: SocketAddr,
    weather: watch::Sender<Weather>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// How many chunks each way are still to be sent twice.
    twice: [AtomicUsize; 2],
    /// How many connections were accepted.
    accepted: AtomicUsize,
    /// The requests that are held back, by connection.
    held: Mutex<HashMap<usize, Vec<u8>>>,
}

impl State {
    fn held(&self) -> MutexGuard<'_, HashMap<usize, Vec<u8>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxy {
    /// Listens on a free port of this machine and forwards to a server.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), server).await
    }

    /// The same at an address of its own: servers that tell each other's ports but not their hosts
    /// are then all behind proxies for whoever comes by another host of this machine, such as
    /// 127.0.0.2.
    ///
    /// # Errors
    /// When the address is taken.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn at(here: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        Self::make(here, server, Duration::ZERO).await
    }

    /// The same for a server that may not listen yet: whoever comes is kept for so long. A real
    /// network would refuse them, and they would try again; to be let in and shut out is
    /// something else.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn to_late(server: SocketAddr, patience: Duration) -> io::Result<Self> {
        Self::make(SocketAddr::from(([127, 0, 0, 1], 0)), server, patience).await
    }

    async fn make(here: SocketAddr, server: SocketAddr, patience: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(here).await?;
        let addr = listener.local_addr()?;
        let (weather, state) = (watch::Sender::new(Weather::default()), Arc::<State>::default());
        let (forecast, shared) = (weather.subscribe(), state.clone());
        task(async move {
            let mut gone = forecast.clone();
            loop {
                let client = tokio::select! {
                    _ = gone.wait_for(|w| w.gone) => return,
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) => client,
                        Err(_) => return,
                    },
                };
                // Before it counts: whoever saw it counted may reset it, also while the server is
                // still being reached.
                let (resets, strands) = (forecast.borrow().resets, forecast.borrow().strands);
                let id = shared.accepted.fetch_add(1, Ordering::AcqRel);
                let (forecast, state) = (forecast.clone(), shared.clone());
                task(async move {
                    let reached = Clock::system().now().plus(patience);
                    let Some(server) = reach(server, reached).await else { return };
                    carry((id, client), server, (resets, strands), forecast, state).await;
                });
            }
        });
        Ok(Self { addr, weather, state })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Acquire)
    }

    /// Every chunk, both ways, is this late from now on.
    pub fn delay(&self, d: Duration) {
        self.weather.send_modify(|w| w.delay = d);
    }

    /// Holds bytes back one way, without closing anything: what a firewall that drops packets
    /// looks like. They arrive after [`Proxy::heal`].
    pub fn cut(&self, way: Way) {
        self.weather.send_modify(|w| w.cut[way as usize] = true);
    }

    /// [`Proxy::cut`] both ways.
    pub fn cut_both(&self) {
        self.weather.send_modify(|w| w.cut = [true; 2]);
    }

    /// Swallows what the server answers from now on: it never arrives, and connections that lost
    /// something are reset by [`Proxy::heal`].
    pub fn drop_replies(&self) {
        self.weather.send_modify(|w| w.drop[Way::Replies as usize] = true);
    }

    /// Sends the next chunk that goes this way twice.
    pub fn duplicate(&self, way: Way) {
        self.state.twice[way as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Resets every open connection; new ones are accepted.
    pub fn reset(&self) {
        self.weather.send_modify(|w| w.resets += 1);
    }

    /// Whether a request that contains this is held back by a [`Proxy::cut`], or is stranded and the
    /// server has not yet ended its connection.
    #[must_use]
    pub fn holds(&self, needle: &[u8]) -> bool {
        self.state.held().values().any(|bytes| bytes.windows(needle.len()).any(|w| w == needle))
    }

    /// Resets the clients of every open connection and ends cuts. The requests that were held back
    /// stay under way, as in a network that delays them; they reach the server by [`Proxy::arrive`].
    pub fn strand(&self) {
        self.weather.send_modify(|w| {
            w.strands += 1;
            w.cut = [false; 2];
        });
    }

    /// Lets the server have what was stranded, and then the end of each of those connections.
    pub fn arrive(&self) {
        self.weather.send_modify(|w| w.arrivals = w.strands);
    }

    /// Ends delays, cuts and drops.
    pub fn heal(&self) {
        self.weather.send_modify(|w| {
            let Weather { resets, strands, arrivals, gone, .. } = *w;
            *w = Weather { resets, strands, arrivals, gone, ..Weather::default() };
        });
    }
}

impl Drop for Proxy {
    /// Takes effect at once: the port and every connection are closed.
    fn drop(&mut self) {
        self.weather.send_modify(|w| w.gone = true);
    }
}

/// A connection to a server, which may be made until a moment.
async fn reach(server: SocketAddr, until: BootInstant) -> Option<TcpStream> {
    let clock = Clock::system();
    loop {
        match TcpStream::connect(server).await {
            Ok(stream) => return Some(stream),
            Err(_) if clock.now() >= until => return None,
            Err(_) => clock.sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn carry(
    (id, client): (usize, TcpStream),
    server: TcpStream,
    (resets, strands): (u64, u64),
    mut forecast: watch::Receiver<Weather>,
    state: Arc<State>,
) {
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let ((mut cr, mut cw), (mut sr, mut sw)) = (client.into_split(), server.into_split());
    let ended = {
        let there = pump((Way::Requests, id), &mut cr, &mut sw, forecast.clone(), &state);
        let back = pump((Way::Replies, id), &mut sr, &mut cw, forecast.clone(), &state);
        let mut stranded = forecast.clone();
        tokio::select! {
            // First: what was held back when a reset came must not slip out after it.
            biased;
            _ = forecast.wait_for(|w| w.gone || w.resets != resets) => false,
            _ = stranded.wait_for(|w| w.strands != strands) => false,
            end = async { tokio::try_join!(there, back) } => end.is_ok(),
        }
    };
    let late = state.held().get(&id).cloned();
    if let Some(late) = late
        && forecast.borrow().strands != strands
    {
        let _ = cr.as_ref().set_zero_linger();
        cw.forget();
        drop(cr);
        // However the server ends it.
        let _ = strand(&late, strands, &mut sr, &mut sw, forecast).await;
        state.held().remove(&id);
        return;
    }
    state.held().remove(&id);
    if !ended {
        // Closing is to be a reset, which is what a crashed machine's peer sees: no farewell, and
        // nothing is waited for.
        for half in [&cr, &sr] {
            let _ = half.as_ref().set_zero_linger();
        }
        cw.forget();
        sw.forget();
    }
}

/// Gives the server what a client had sent that is gone, when told to, and waits for the end.
async fn strand(
    late: &[u8],
    strands: u64,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut forecast: watch::Receiver<Weather>,
) -> io::Result<()> {
    let arrives = |w: &Weather| w.gone || w.arrivals > strands;
    match forecast.wait_for(arrives).await.map(|w| w.gone) {
        Ok(false) => {}
        _ => return Ok(()),
    }
    to.write_all(late).await?;
    to.shutdown().await?;
    while from.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

async fn pump(
    (way, id): (Way, usize),
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut forecast: watch::Receiver<Weather>,
    state: &State,
) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    let mut lost = false;
    loop {
        let mut later = forecast.clone();
        let n = tokio::select! {
            biased;
            // No network loses something in the midst of a connection that goes on.
            _ = later.wait_for(|w| !w.drop[way as usize]), if lost => {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            // One that was reset has ended, and its other side must hear of it.
            n = from.read(&mut chunk) => n.unwrap_or(0),
        };
        let delay = forecast.borrow().delay;
        if !delay.is_zero() {
            Clock::system().sleep(delay).await;
        }
        if way == Way::Requests && forecast.borrow().cut[way as usize] {
            state.held().insert(id, chunk[..n].to_vec());
        }
        if forecast.wait_for(|w| !w.cut[way as usize]).await.is_err() || n == 0 {
            return to.shutdown().await;
        }
        if way == Way::Requests {
            state.held().remove(&id);
        }
        if forecast.borrow().drop[way as usize] {
            lost = true;
            continue;
        }
        to.write_all(&chunk[..n]).await?;
        let once_more = |left: usize| left.checked_sub(1);
        let twice = &state.twice[way as usize];
        if twice.fetch_update(Ordering::AcqRel, Ordering::Acquire, once_more).is_ok() {
            to.write_all(&chunk[..n]).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{soon, until};

    /// Answers each byte with itself, and counts what it got.
    async fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let got = Arc::<AtomicUsize>::default();
        let count = got.clone();
        task(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let count = count.clone();
                task(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        count.fetch_add(1, Ordering::AcqRel);
                        if stream.write_all(&byte).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (addr, got)
    }

    async fn start() -> (Proxy, TcpStream, Arc<AtomicUsize>) {
        let (server, got) = echo().await;
        let proxy = Proxy::to(server).await.unwrap();
        let client = TcpStream::connect(proxy.addr()).await.unwrap();
        (proxy, client, got)
    }

    async fn pong(client: &mut TcpStream) -> u8 {
        let mut byte = [0];
        soon("an answer", client.read_exact(&mut byte)).await.unwrap();
        byte[0]
    }

    async fn silent(client: &mut TcpStream) -> bool {
        let mut byte = [0];
        let wait = Duration::from_millis(60);
        Clock::system().timeout(wait, client.peek(&mut byte)).await.is_none()
    }

    #[tokio::test]
    async fn carries_both_ways_and_delays() {
        let (proxy, mut client, _) = start().await;
        client.write_all(b"a").await.unwrap();
        assert_eq!(pong(&mut client).await, b'a');
        proxy.delay(Duration::from_millis(40));
        let start = Clock::system().now();
        client.write_all(b"b").await.unwrap();
        assert_eq!(pong(&mut client).await, b'b');
        let took = Clock::system().now().since(start);
        assert!(took >= Duration::from_millis(80), "40 ms each way, but {took:?}");
        assert_eq!(proxy.accepted(), 1);
    }

    #[tokio::test]
    async fn a_cut_holds_bytes_back_until_it_heals() {
        let (proxy, mut client, got) = start().await;
        proxy.cut(Way::Requests);
        client.write_all(b"a").await.unwrap();
        assert!(silent(&mut client).await && got.load(Ordering::Acquire) == 0);
        proxy.heal();
        assert_eq!(pong(&mut client).await, b'a');
        proxy.cut(Way::Replies);
        client.write_all(b"b").await.unwrap();
        until("the server got it", async || got.load(Ordering::Acquire) == 2).await;
        assert!(silent(&mut client).await);
        proxy.cut_both();
        client.write_all(b"c").await.unwrap();
        proxy.heal();
        assert_eq!((pong(&mut client).await, pong(&mut client).await), (b'b', b'c'));
    }

    #[tokio::test]
    async fn dropped_replies_never_arrive() {
        let (proxy, mut client, got) = start().await;
        proxy.drop_replies();
        client.write_all(b"a").await.unwrap();
        until("the server got it", async || got.load(Ordering::Acquire) == 1).await;
        assert!(silent(&mut client).await);
        proxy.heal();
        // What comes next would be taken for the answer that was lost.
        let end = soon("its end", client.read(&mut [0])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        client.write_all(b"b").await.unwrap();
        assert_eq!(pong(&mut client).await, b'b');
    }

    #[tokio::test]
    async fn a_chunk_can_arrive_twice() {
        let (proxy, mut client, got) = start().await;
        proxy.duplicate(Way::Requests);
        client.write_all(b"a").await.unwrap();
        assert_eq!((pong(&mut client).await, pong(&mut client).await), (b'a', b'a'));
        assert_eq!(got.load(Ordering::Acquire), 2);
        proxy.duplicate(Way::Replies);
        client.write_all(b"b").await.unwrap();
        assert_eq!((pong(&mut client).await, pong(&mut client).await), (b'b', b'b'));
        assert_eq!(got.load(Ordering::Acquire), 3);
    }

    #[tokio::test]
    async fn a_reset_ends_connections_and_lets_new_ones_in() {
        let (proxy, mut client, _) = start().await;
        client.write_all(b"a").await.unwrap();
        pong(&mut client).await;
        proxy.reset();
        let mut byte = [0];
        let end = soon("the end", client.read(&mut byte)).await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        client.write_all(b"b").await.unwrap();
        assert_eq!(pong(&mut client).await, b'b');
        let addr = proxy.addr();
        drop(proxy);
        until("the port closes", async || TcpStream::connect(addr).await.is_err()).await;
    }

    #[tokio::test]
    async fn a_stranded_request_arrives_when_its_client_is_long_gone() {
        let (proxy, mut client, got) = start().await;
        proxy.cut(Way::Requests);
        client.write_all(b"abc").await.unwrap();
        until("it is held back", async || proxy.holds(b"bc")).await;
        proxy.strand();
        let end = soon("the end", client.read(&mut [0])).await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        client.write_all(b"d").await.unwrap();
        assert_eq!(pong(&mut client).await, b'd');
        assert_eq!((got.load(Ordering::Acquire), proxy.holds(b"abc")), (1, true));
        proxy.arrive();
        until("it has arrived", async || !proxy.holds(b"abc")).await;
        assert_eq!(got.load(Ordering::Acquire), 4);
    }

    /// One that was accepted while its server was not reached yet is open, too.
    #[tokio::test]
    async fn a_reset_ends_a_connection_that_is_only_being_made() {
        let port = crate::servers::Port::claim().unwrap();
        let late = port.addr();
        let proxy = Proxy::to_late(late, Duration::from_secs(60)).await.unwrap();
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        until("it is accepted", async || proxy.accepted() == 1).await;
        proxy.reset();
        // Now there is somebody to be reached, who says nothing.
        let _listener = TcpListener::bind(late).await.unwrap();
        let end = soon("the end", client.read(&mut [0])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
}
