//! One server, or one primary wherever it moves: the connection to it, made anew when it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use distlock_core::lease::{EventSink, Wake};
use distlock_core::{BootInstant, Clock, Error, Kind, engine};
use tokio::sync::{Notify, oneshot};

use crate::address::{Address, Entry};
use crate::link::{Link, Terms};
use crate::options::RedisOptions;
use crate::primary::{PrimaryAddress, Watched};
use crate::wire::{Fault, Hears};

/// How long to wait before connecting again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often at most a server is asked whether it is still the one that was entered, and how often a
/// primary that sentinels watch is at least.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// How often one sentinel is asked where the primary is, in case its message was lost, and in how many
/// of these questions all are asked, in case that one was cut off.
const ASKED: (Duration, u32) = (Duration::from_secs(1), 5);
/// All clients have left a primary this long after another was promoted: a sentinel hears of it from
/// the others within two seconds, and all of them are asked every five.
pub(crate) const LEFT: Duration = Duration::from_secs(8);
/// How often at most the sentinels may name another primary while one connects.
const MOVES: usize = 5;

/// A shorter silence says nothing about a connection: a busy machine leaves a thread waiting as long.
const SILENCE: Duration = Duration::from_millis(400);

/// What all connections of one store share.
pub(crate) struct Shared {
    pub(crate) entry: Entry,
    pub(crate) options: RedisOptions,
    pub(crate) clock: Clock,
    pub(crate) sink: OnceLock<EventSink>,
    /// Reads what servers tell unasked.
    pub(crate) reads: fn(&[u8]) -> Option<Wake>,
    pub(crate) closed: AtomicBool,
}

impl Shared {
    fn hear(&self, wake: Wake) {
        if let Some(sink) = self.sink.get() {
            sink(wake);
        }
    }
}

/// One server.
pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    place: PrimaryAddress,
    via: String,
    /// The key of the quarantine's marker: in a cluster it depends on the slots.
    marker: Box<dyn Fn() -> Option<String> + Send + Sync>,
    cluster: bool,
    link: Mutex<Option<Arc<Link>>>,
    opening: tokio::sync::Mutex<Failed>,
    /// A task looks after the connection.
    tended: AtomicBool,
    /// A task makes a new one.
    reconnecting: AtomicBool,
}

/// The last attempt that failed: who waited for it shares its fate.
type Failed = Option<(BootInstant, Error)>;

impl Node {
    pub(crate) fn new(
        shared: Arc<Shared>,
        place: PrimaryAddress,
        via: String,
        marker: Box<dyn Fn() -> Option<String> + Send + Sync>,
        cluster: bool,
    ) -> Arc<Self> {
        let (link, opening) = (Mutex::new(None), tokio::sync::Mutex::new(None));
        let (tended, reconnecting) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { shared, place, via, marker, cluster, link, opening, tended, reconnecting })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        self.slot().as_ref().filter(|link| !link.wire.is_over()).cloned()
    }

    /// The connection, made if there is none.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        match self.current() {
            Some(link) => Ok(link),
            None => Box::pin(self.link_anew()).await,
        }
    }

    async fn link_anew(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        if self.shared.closed.load(Ordering::Acquire) {
            return Err(
                Error::new(Kind::Closed, "this client was closed").with_hint("connect again")
            );
        }
        let (node, (tx, rx)) = (self.clone(), oneshot::channel());
        engine::spawn(async move { drop(tx.send(node.open().await)) });
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Unreachable, "connecting was given up")))
    }

    /// The connection if there is one. If not, fails at once, and one is made in the background.
    pub(crate) fn at_once(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if self.shared.closed.load(Ordering::Acquire) {
            return Err(
                Error::new(Kind::Closed, "this client was closed").with_hint("connect again")
            );
        }
        self.reconnect();
        let last = self.opening.try_lock().ok().and_then(|failed| failed.clone());
        Err(last.map_or_else(
            || {
                Error::new(Kind::Unreachable, "not connected just now")
                    .with_hint("it is tried again in the background; see whether the server runs")
            },
            |(_, e)| e,
        ))
    }

    /// Which connection there is: another number for each, and none for none.
    pub(crate) fn number(&self) -> u64 {
        self.current().map_or(0, |link| link.number)
    }

    /// One connects; whoever asks meanwhile waits for that, and shares its failure.
    async fn open(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
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
                let before = self.slot().replace(link.clone());
                if before.is_some() {
                    // Whatever was told while nobody listened is lost: everybody asks.
                    self.shared.hear(Wake::Everybody);
                }
                self.tend();
                Ok(link)
            }
            Err(e) => {
                *failed = Some((self.shared.clock.now(), e.clone()));
                Err(e)
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        let Shared { options, clock, .. } = &*self.shared;
        let mut address = self.place.find(clock, options.timeout).await?;
        for _ in 0..MOVES {
            let link = self.enter(&address).await?;
            let PrimaryAddress::Watched(_) = self.place else { return Ok(link) };
            // A primary that died and came back is taken for one until the sentinels have told it.
            // It may have come back after they were asked, so they are asked again.
            let now = self.place.find(clock, options.timeout).await?;
            if now == address {
                return Ok(link);
            }
            address = now;
        }
        Err(Error::new(Kind::Unreachable, "the primary moves from server to server"))
    }

    async fn enter(self: &Arc<Self>, address: &Address) -> Result<Arc<Link>, Error> {
        let Shared { entry, options, clock, .. } = &*self.shared;
        let marker = (self.marker)();
        let terms = Terms {
            entry,
            options,
            clock,
            via: &self.via,
            marker: marker.as_deref(),
            cluster: self.cluster,
            watched: matches!(self.place, PrimaryAddress::Watched(_)),
            hears: self.hears(),
        };
        Link::open(address, terms).await.map(Arc::new)
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
                None => node.reconnect(),
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
            let mut pause = AGAIN.0;
            loop {
                clock.sleep(pause).await;
                pause = (pause * 2).min(AGAIN.1);
                let Some(node) = weak.upgrade() else { return };
                if node.shared.closed.load(Ordering::Acquire) {
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
    fn tend(self: &Arc<Self>) {
        if self.tended.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, clock) = (Arc::downgrade(self), self.shared.clock.clone());
        let pace = (self.shared.options.max_ttl / 2).max(LOOK.0);
        let pace = match &self.place {
            PrimaryAddress::Fixed(_) => pace,
            PrimaryAddress::Watched(watched) => {
                engine::spawn(attend(weak.clone(), watched.clone(), clock.clone()));
                pace.min(LOOK.1)
            }
        };
        engine::spawn(async move {
            loop {
                clock.sleep(pace).await;
                let Some(node) = weak.upgrade() else { return };
                if node.shared.closed.load(Ordering::Acquire) {
                    return;
                }
                if let Some(link) = node.current()
                    && !node.still_right(&link).await
                {
                    node.discard(&link);
                    node.reconnect();
                }
            }
        });
    }

    async fn still_right(&self, link: &Link) -> bool {
        let Shared { options, clock, .. } = &*self.shared;
        link.is_current().await && link.agree(options, clock).await.is_ok()
    }

    /// Leaves a primary that is none by the latest failover known.
    fn leave_unless_at(self: &Arc<Self>, address: &Address) {
        if let Some(link) = self.current()
            && link.address != *address
        {
            self.discard(&link);
            self.reconnect();
        }
    }

    /// Asks all sentinels, and leaves a primary that is none any more. If none of them answers, that
    /// is no reason to leave a primary that does.
    async fn leave_if_moved(self: &Arc<Self>) {
        let Shared { options, clock, .. } = &*self.shared;
        if let Ok(address) = self.place.find(clock, options.timeout).await {
            self.leave_unless_at(&address);
        }
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Gives up a connection; what is under way on it goes on.
    fn discard(&self, link: &Link) {
        link.wire.end();
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
    pub(crate) fn judge(self: &Arc<Self>, link: &Link, fault: &Fault) {
        if fault.ends_the_connection() {
            self.discard(link);
            self.reconnect();
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.slot().take();
    }
}

/// Follows the primary through one connection to one sentinel, which says when it has moved; through
/// the next one's when that ends. Now and then all of them are asked. Ends with the node.
async fn attend(node: Weak<Node>, watched: Arc<Watched>, clock: Clock) {
    let needed = || node.upgrade().filter(|node| !node.is_closed());
    let mut turn = 0;
    while let Some(timeout) = needed().map(|node| node.shared.options.timeout) {
        let bell = Arc::new(Notify::new());
        if let Ok(wire) = watched.listen(turn, &clock, timeout, bell.clone()).await {
            let mut asked = 0;
            // After subscribing, so that nothing falls in between.
            while !wire.is_over()
                && let Some(address) = watched.named(&wire, &clock).await
                && let Some(node) = needed()
            {
                node.leave_unless_at(&address);
                asked += 1;
                if asked % ASKED.1 == 0 {
                    node.leave_if_moved().await;
                }
                drop(node);
                clock.timeout(ASKED.0, bell.notified()).await;
            }
        }
        turn += 1;
        clock.sleep(AGAIN.1).await;
    }
}
