//! One server, or one primary wherever it moves: the connection to it, made anew when it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Event, EventSink, Kind, Mutex, Wake, engine};
use tokio::sync::{Notify, oneshot};

use crate::address::{Address, Credentials};
use crate::checked_connection::{CheckedConnection, Terms};
use crate::connection::{Fault, Hears};
use crate::options::RedisOptions;
use crate::primary::{PrimaryAddress, Watched};

/// How long to wait before connecting again, at first and at most.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often at most a server is asked whether it is still the one that was entered, and how often a
/// primary that sentinels watch is at least.
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// How often one sentinel is asked where the primary is, in case its message was lost, and in how many
/// of these questions all are asked, in case that one was cut off.
const SENTINEL_POLL: (Duration, u32) = (Duration::from_secs(1), 5);
/// All clients have left a primary this long after another was promoted: a sentinel hears of it from
/// the others within two seconds, and all of them are asked every five.
pub(crate) const LEFT: Duration = Duration::from_secs(8);
/// How often at most the sentinels may name another primary while one connects.
const MAX_MOVES: usize = 5;

/// A shorter silence says nothing about a connection: a busy machine leaves a thread waiting as long.
const SILENCE: Duration = Duration::from_millis(400);

/// What all connections of one store share.
pub(crate) struct Shared {
    pub(crate) credentials: Credentials,
    pub(crate) options: RedisOptions,
    pub(crate) clock: Clock,
    pub(crate) sink: OnceLock<EventSink>,
    /// Reads what servers tell unasked.
    pub(crate) reads: fn(&[u8]) -> Option<Wake>,
    pub(crate) closed: AtomicBool,
}

impl Shared {
    /// Of a store that is about to connect.
    pub(crate) fn new(
        credentials: Credentials,
        options: RedisOptions,
        reads: fn(&[u8]) -> Option<Wake>,
    ) -> Arc<Self> {
        let (clock, sink, closed) = (Clock::system(), OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { credentials, options, clock, sink, reads, closed })
    }

    fn hear(&self, wake: Wake) {
        if let Some(sink) = self.sink.get() {
            sink(wake);
        }
    }
}

/// One server.
pub(crate) struct Reconnecting {
    pub(crate) shared: Arc<Shared>,
    primary: PrimaryAddress,
    via: String,
    /// The key of the quarantine's marker: in a cluster it depends on the slots.
    marker: Box<dyn Fn() -> Option<String> + Send + Sync>,
    cluster: bool,
    link: Mutex<Option<Arc<CheckedConnection>>>,
    opening: tokio::sync::Mutex<Failed>,
    /// A task looks after the connection.
    checking: AtomicBool,
    /// A task makes a new one.
    reconnecting: AtomicBool,
}

/// The last failed attempt to connect: callers that waited for it share its error.
type Failed = Option<(BootInstant, Error)>;

impl Reconnecting {
    pub(crate) fn new(
        shared: Arc<Shared>,
        primary: PrimaryAddress,
        via: String,
        marker: Box<dyn Fn() -> Option<String> + Send + Sync>,
        cluster: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            primary,
            via,
            marker,
            cluster,
            link: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            checking: AtomicBool::default(),
            reconnecting: AtomicBool::default(),
        })
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<CheckedConnection>> {
        self.link.lock().as_ref().filter(|link| !link.wire.is_over()).cloned()
    }

    /// The connection, made if there is none.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Arc<CheckedConnection>, Error> {
        match self.current() {
            Some(link) => Ok(link),
            None => Box::pin(self.link_anew()).await,
        }
    }

    async fn link_anew(self: &Arc<Self>) -> Result<Arc<CheckedConnection>, Error> {
        self.open_yet()?;
        let (node, (tx, rx)) = (self.clone(), oneshot::channel());
        engine::spawn(async move { drop(tx.send(node.open().await)) });
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Unreachable, "connecting was given up")))
    }

    /// The connection if there is one. If not, fails at once, and one is made in the background.
    pub(crate) fn at_once(self: &Arc<Self>) -> Result<Arc<CheckedConnection>, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        self.open_yet()?;
        self.reconnect();
        let last = self.opening.try_lock().ok().and_then(|failed| failed.clone());
        let not_yet = || {
            Error::new(Kind::Unreachable, "not connected just now")
                .with_hint("it is tried again in the background; see whether the server runs")
        };
        Err(last.map_or_else(not_yet, |(_, e)| e))
    }

    /// Which connection there is: another number for each, and none for none.
    pub(crate) fn number(&self) -> u64 {
        self.current().map_or(0, |link| link.number)
    }

    /// Single flight: one caller connects, the others wait for that and share its error.
    async fn open(self: &Arc<Self>) -> Result<Arc<CheckedConnection>, Error> {
        let asked = self.shared.clock.now();
        let mut failed = self.opening.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some((at, e)) = &*failed
            && *at >= asked
        {
            return Err(e.clone());
        }
        match self.connect().await {
            Ok(link) => {
                *failed = None;
                let before = self.link.lock().replace(link.clone());
                if before.is_some() {
                    // Whatever was told while nobody listened is lost: everybody asks.
                    self.shared.hear(Wake::Everybody);
                }
                self.keep_checking();
                Ok(link)
            }
            Err(e) => {
                *failed = Some((self.shared.clock.now(), e.clone()));
                Err(e)
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<CheckedConnection>, Error> {
        let Shared { options, clock, .. } = &*self.shared;
        let mut address = self.primary.find(clock, options.timeout).await?;
        for _ in 0..MAX_MOVES {
            let link = self.enter(&address).await?;
            let PrimaryAddress::Watched(_) = self.primary else { return Ok(link) };
            // A primary that died and came back is taken for one until the sentinels have told it.
            // It may have come back after they were asked, so they are asked again.
            let now = self.primary.find(clock, options.timeout).await?;
            if now == address {
                return Ok(link);
            }
            address = now;
        }
        Err(Error::new(Kind::Unreachable, "the primary moves from server to server"))
    }

    async fn enter(self: &Arc<Self>, address: &Address) -> Result<Arc<CheckedConnection>, Error> {
        let terms = Terms {
            shared: &self.shared,
            via: &self.via,
            marker: (self.marker)(),
            cluster: self.cluster,
            watched: matches!(self.primary, PrimaryAddress::Watched(_)),
            hears: self.hears(),
        };
        CheckedConnection::open(address, terms).await.map(Arc::new)
    }

    fn hears(self: &Arc<Self>) -> Hears {
        let node = Arc::downgrade(self);
        Arc::new(move |message| {
            let Some(node) = node.upgrade() else { return };
            match message {
                Some(message) => {
                    if let Some(wake) = (node.shared.reads)(message) {
                        node.shared.hear(wake);
                    }
                }
                None => {
                    // Nobody tells its holders that somebody waits.
                    node.shared.hear(Wake::Event(Event::Missed));
                    node.reconnect();
                }
            }
        })
    }

    /// Connects again in the background: a waiter whose client does not listen is passed over.
    fn reconnect(self: &Arc<Self>) {
        if self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, clock) = (Arc::downgrade(self), self.shared.clock.clone());
        engine::spawn(async move {
            let mut pause = RECONNECT_PAUSE.0;
            loop {
                clock.sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_PAUSE.1);
                let Some(node) = weak.upgrade() else { return };
                if node.is_closed() {
                    return;
                }
                // Before the look, so that a connection that ends right after it is not missed.
                node.reconnecting.store(false, Ordering::Release);
                if node.open().await.is_ok() || node.reconnecting.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// Looks from time to time whether the server is still the one that was entered, and agrees with
    /// its other clients again.
    fn keep_checking(self: &Arc<Self>) {
        if self.checking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, clock) = (Arc::downgrade(self), self.shared.clock.clone());
        let pace = (self.shared.options.max_ttl / 2).max(CHECK_INTERVAL.0);
        let pace = match &self.primary {
            PrimaryAddress::Fixed(_) => pace,
            PrimaryAddress::Watched(watched) => {
                engine::spawn(follow_sentinels(weak.clone(), watched.clone(), clock.clone()));
                pace.min(CHECK_INTERVAL.1)
            }
        };
        engine::spawn(async move {
            loop {
                clock.sleep(pace).await;
                let Some(node) = weak.upgrade() else { return };
                if node.is_closed() {
                    return;
                }
                if let Some(link) = node.current()
                    && !node.is_still_usable(&link).await
                {
                    node.discard(&link);
                }
            }
        });
    }

    async fn is_still_usable(&self, link: &CheckedConnection) -> bool {
        let Shared { options, clock, .. } = &*self.shared;
        link.is_current().await && link.agree(options, clock).await.is_ok()
    }

    /// Leaves a primary that is none by the latest failover known.
    fn leave_unless_at(self: &Arc<Self>, address: &Address) {
        if let Some(link) = self.current()
            && link.address != *address
        {
            self.discard(&link);
        }
    }

    /// Asks all sentinels, and leaves a primary that is none any more. If none of them answers, that
    /// is no reason to leave a primary that does.
    async fn leave_if_moved(self: &Arc<Self>) {
        let Shared { options, clock, .. } = &*self.shared;
        if let Ok(address) = self.primary.find(clock, options.timeout).await {
            self.leave_unless_at(&address);
        }
    }

    fn open_yet(&self) -> Result<(), Error> {
        if self.is_closed() {
            let closed = Error::new(Kind::Closed, "this client was closed");
            return Err(closed.with_hint("connect again"));
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Gives up a connection, and makes a new one; what is under way on it goes on.
    fn discard(self: &Arc<Self>, link: &CheckedConnection) {
        link.wire.end();
        self.reconnect();
    }

    /// Takes note of a call that has waited so long, since `sent`: a connection on which nothing
    /// else was heard either is of no more use.
    pub(crate) fn suspect(self: &Arc<Self>, sent: BootInstant, waited: Duration) {
        if waited >= SILENCE
            && let Some(link) = self.current()
            && link.wire.heard() < sent
        {
            self.judge(&link, &Fault::Silent(waited));
        }
    }

    /// Takes note of a call that failed.
    pub(crate) fn judge(self: &Arc<Self>, link: &CheckedConnection, fault: &Fault) {
        if fault.ends_the_connection() {
            self.discard(link);
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.link.lock().take();
    }
}

/// Follows the primary through one connection to one sentinel, which says when it has moved; through
/// the next one's when that ends. Now and then all of them are asked. Ends with the node.
async fn follow_sentinels(node: Weak<Reconnecting>, watched: Arc<Watched>, clock: Clock) {
    let needed = || node.upgrade().filter(|node| !node.is_closed());
    let mut turn = 0;
    while let Some(timeout) = needed().map(|node| node.shared.options.timeout) {
        let moved = Arc::new(Notify::new());
        if let Ok(wire) = watched.listen(turn, &clock, timeout, moved.clone()).await {
            let mut asked = 0;
            // After subscribing, so that nothing falls in between.
            while !wire.is_over()
                && let Some(address) = watched.named(&wire, &clock).await
                && let Some(node) = needed()
            {
                node.leave_unless_at(&address);
                asked += 1;
                if asked % SENTINEL_POLL.1 == 0 {
                    node.leave_if_moved().await;
                }
                drop(node);
                clock.timeout(SENTINEL_POLL.0, moved.notified()).await;
            }
        }
        turn += 1;
        clock.sleep(RECONNECT_PAUSE.1).await;
    }
}
