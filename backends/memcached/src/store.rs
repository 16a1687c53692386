//! The store: the moves of the lease family, each told with what it was about.

use std::collections::HashMap;
use std::sync::Arc;

use distlock_core::state::Pulse;
use distlock_core::{
    Ask, Backend, Class, Clock, Error, EventSink, Force, Forced, FullName, LeaseDriver, LeaseStore,
    LockInfo, LossReason, Move, Mutex, Query, Released, Replies, Reply, ReqId, Run, Store,
    StoreInfo, Token,
};

use crate::capability::capability;
use crate::connection::Link;
use crate::known_items::KnownItems;

/// Max acquires without an answer that are remembered.
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
    pub(crate) known: KnownItems,
    /// Acquires that may be under way still, and the connection that each went out on.
    pub(crate) asked: Mutex<HashMap<ReqId, u64>>,
}

impl Inner {
    /// Remembers that an acquire goes out; the connection that the first of this request did on
    /// which has not surely arrived.
    fn asking(&self, req: ReqId) -> u64 {
        let mut asked = self.asked.lock();
        if asked.len() >= MANY {
            asked.clear();
        }
        *asked.entry(req).or_insert_with(|| self.link.connected())
    }

    /// Whether an acquire of this request may still arrive: it went out on a connection that was
    /// lost. Asked once, when the request ends.
    pub(crate) fn may_still_arrive(&self, req: ReqId) -> bool {
        let on = self.asked.lock().remove(&req);
        on.is_some_and(|on| on != self.link.connected())
    }
}

impl Memcached {
    pub(crate) async fn acquire(&self, ask: &Ask) -> Result<Reply, Error> {
        // On record before it is sent, so that a drop of this future finds it.
        let on = self.0.asking(ask.req);
        let reply = self.0.acquire(ask).await?;
        // All that was asked before on this connection has arrived with it.
        if on == self.0.link.connected() {
            self.0.asked.lock().remove(&ask.req);
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
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: capability(), site: &self.0.site, clock: &self.0.clock }
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

    /// memcached has no notifications.
    fn listen(&self, _ears: EventSink) {}

    async fn close(&self) {
        self.0.link.quit().await;
    }
}
