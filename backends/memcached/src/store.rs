//! The store: the moves of the lease family, each told with what it was about.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::backend::{Ask, Backend, Force, Forced, Released};
use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Run};
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::state::{Pulse, Reply};
use distlock_core::url::{Host, StoreUrl};
use distlock_core::{Clock, Error, FullName, Kind, LossReason, ReqId, Store, Token};

use crate::capability::capability;
use crate::connection::Link;
use crate::known_items::Notes;

const PORT: u16 = 11211;
/// So many acquires whose answer is missing are remembered.
const MANY: usize = 4096;

/// Locks on a memcached server. Advisory: see [`capability`].
///
/// Dropping it closes the connection after what was sent is answered.
pub struct Memcached(pub(crate) Arc<Inner>);

/// What the moves share with what goes on in the background.
pub(crate) struct Inner {
    pub(crate) site: String,
    pub(crate) address: String,
    pub(crate) clock: Clock,
    pub(crate) link: Link,
    pub(crate) notes: Notes,
    /// Acquires that may be under way still, and the connection that each went out on.
    asked: Mutex<HashMap<ReqId, u64>>,
}

impl Memcached {
    /// Connects to the server of a URL, `memcached://HOST:PORT`; the port is 11211 unless named.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a URL with anything but one host; [`Kind::Unreachable`] when nobody
    /// answers; [`Kind::Store`] when something else than memcached does; [`Kind::Unsupported`] for
    /// one before 1.6; [`Kind::Refused`] for one started with -C or -M; [`Kind::Credentials`] for
    /// one that wants a login.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(url: &StoreUrl) -> Result<Self, Error> {
        Self::connect_on(url, Clock::system()).await
    }

    /// Like [`Memcached::connect`], on a given clock. It is the one that tokens and a guard's
    /// deadlines are counted on; memcached's own cannot be held.
    ///
    /// # Errors
    /// As [`Memcached::connect`].
    ///
    /// # Cancel safety
    /// As [`Memcached::connect`].
    pub async fn connect_on(url: &StoreUrl, clock: Clock) -> Result<Self, Error> {
        let host = only_host(url)?;
        let host = Host { port: host.port.or(Some(PORT)), ..host.clone() };
        let (site, address) = (format!("memcached://{host}"), host.to_string());
        let link = Link::new(address.clone(), clock.clone());
        let (notes, asked) = (Notes::default(), Mutex::default());
        let inner = Inner { site, address, clock, link, notes, asked };
        inner.link.call(Vec::new()).await.map_err(|e| e.during("connect").store(&inner.site))?;
        Ok(Self(Arc::new(inner)))
    }
}

fn only_host(url: &StoreUrl) -> Result<&Host, Error> {
    let fault = match &url.hosts[..] {
        _ if url.user.is_some() || url.password.is_some() => "memcached:// knows no login",
        [_] if !matches!(url.path.as_str(), "" | "/") => "memcached:// has no path",
        [host] => return Ok(host),
        [] => "memcached:// needs a host",
        // Whoever has another list would look elsewhere for the same lock.
        _ => "memcached:// takes one host: locks spread over several would not exclude each other",
    };
    Err(Error::new(Kind::Usage, fault).with_hint("write memcached://HOST or memcached://HOST:PORT"))
}

impl Inner {
    fn asked(&self) -> std::sync::MutexGuard<'_, HashMap<ReqId, u64>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that an acquire goes out; the connection that the first of this request did on
    /// which has not surely arrived.
    fn asking(&self, req: ReqId) -> u64 {
        let mut asked = self.asked();
        if asked.len() >= MANY {
            asked.clear();
        }
        *asked.entry(req).or_insert_with(|| self.link.connected())
    }

    /// Whether an acquire of this request may still arrive: it went out on a connection that was
    /// lost. Asked once, when the request ends.
    pub(crate) fn may_still_arrive(&self, req: ReqId) -> bool {
        let on = self.asked().remove(&req);
        on.is_some_and(|on| on != self.link.connected())
    }
}

impl Memcached {
    pub(crate) async fn acquire(&self, ask: &Ask) -> Result<Reply, Error> {
        // Before it is sent, so that whoever drops this finds it.
        let on = self.0.asking(ask.req);
        let reply = self.0.acquire(ask).await?;
        // All that was asked before on this connection has arrived with it.
        if on == self.0.link.connected() {
            self.0.asked().remove(&ask.req);
        }
        Ok(reply)
    }
}

impl Store for Memcached {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Memcached {
    fn capability(&self) -> &Capability {
        capability()
    }

    fn site(&self) -> &str {
        &self.0.site
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// One connection for both classes: memcached answers each in microseconds.
    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::new();
        for run in Run::split(moves) {
            match run {
                Run::Acquire(ask, _) => replies.push(self.acquire(&ask).await),
                // Nobody stands in a queue here.
                Run::Heartbeat(beats) => {
                    replies.extend(beats.iter().map(|_| Ok(Reply::Pulse(Pulse::Unknown))));
                }
                Run::Renew(due) => replies.extend(self.0.renew(&due).await),
                Run::Release(key) => replies.push(self.0.release(&key).await.map(|r| match r {
                    Released::Released => Reply::Released,
                    Released::WasLost => Reply::Lost(LossReason::Gone),
                })),
                Run::Cancel(key) => {
                    replies.push(self.0.cancel(&key).await.map(|()| Reply::Cancelled));
                }
            }
        }
        replies
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.0.inspect(query).await.map_err(|e| e.during("inspect").store(&self.0.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let forced = self.0.force(lock, token, how).await;
        forced.map_err(|e| e.during("force").lock(lock).store(&self.0.site))
    }

    /// memcached tells nobody anything.
    fn listen(&self, _ears: EventSink) {}

    async fn close(&self) {
        self.0.link.quit().await;
    }
}
