//! The store: the moves of the queue family.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::queue::{Entry, Joined, Keeping, Proven, Snapshot, Spot};
use distlock_core::{
    Ask, Backend, BootInstant, Clock, ClockReading, Error, EventSink, Force, Forced, FullName,
    Kept, Key, Mutex, Proof, Query, QueueDriver, QueueStore, Released, ReqId, Store, StoreInfo,
    Token, Ttl, Wake,
};
use tokio::sync::{Mutex as Turn, Semaphore};
use zookeeper_client::{Client, Error as Zk};

use crate::capability::{below_an_open_path, capability};
use crate::{
    errors::trouble, join::LOCAL_BITS, node_names, options::ZooKeeperOptions, own_entry::OwnEntry,
    read_queue::Listing, session::Session, session_pool::Pool,
};

/// How long a request that left is remembered: longer than anything sent stays under way.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Locks in a ZooKeeper ensemble.
///
/// Dropping it ends the connections; what it still has in the queue ends with its sessions.
pub struct ZooKeeper(pub(crate) Arc<Shared>);

/// What the moves share with what goes on in the background.
pub(crate) struct Shared {
    pub(crate) site: String,
    pub(crate) cluster: String,
    pub(crate) options: ZooKeeperOptions,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    pub(crate) sink: OnceLock<EventSink>,
    pub(crate) requests: Mutex<Requests>,
    /// Bounds the joins under way: a join needs more memory than a waiter.
    pub(crate) joins: Semaphore,
    /// The last long queue that was read.
    pub(crate) listing: Turn<Option<Listing>>,
    pub(crate) closed: AtomicBool,
    /// Set when the path is open to everybody, so that the access list of what is below it
    /// protects nothing.
    pub(crate) open_below: OnceLock<()>,
}

#[derive(Default)]
pub(crate) struct Requests {
    /// The session each join was last sent in, until it has left.
    sent: HashMap<ReqId, Arc<Session>>,
    finished: HashSet<ReqId>,
    forgetting: VecDeque<(BootInstant, ReqId)>,
}

impl Drop for ZooKeeper {
    /// Takes effect at once: connections end, sessions when their time is over.
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    pub(crate) fn reading(&self) -> ClockReading {
        capability().reading(&self.clock)
    }

    /// The node of a lock.
    pub(crate) fn parent(&self, lock: &FullName) -> String {
        format!("{}/{}", self.options.root, node_names::encode(lock))
    }

    /// Where clients keep the nodes they write to.
    pub(crate) fn clients(&self) -> String {
        format!("{}/{}", self.options.root, node_names::CLIENTS)
    }

    pub(crate) fn tell(&self, wake: Wake) {
        if let Some(sink) = self.sink.get()
            && !self.is_closed()
        {
            sink(wake);
        }
    }

    /// A connection for questions that belong to no session.
    pub(crate) async fn any_client(self: &Arc<Self>) -> Result<Arc<Client>, Error> {
        if let Some(client) = self.pool.any().and_then(|s| s.client().ok()) {
            return Ok(client);
        }
        let session = self.pool.session(self, Ttl::default().get()).await?;
        session.client().map_err(trouble)
    }

    /// What a waiter asks for, as long as its place can be believed in: it must hear of its end in
    /// time, and not wait for an answer first.
    pub(crate) async fn in_time<T>(
        &self,
        session: &Session,
        call: impl Future<Output = Result<T, Zk>>,
    ) -> Result<T, Zk> {
        let left = session.lease().left(self.reading());
        self.clock.timeout(left, call).await.unwrap_or(Err(Zk::Timeout))
    }

    /// A join is about to be sent.
    pub(crate) fn remember(&self, req: &ReqId, session: &Arc<Session>) {
        self.requests.lock().sent.insert(*req, session.clone());
    }

    /// The session a join was sent in.
    pub(crate) fn recall(&self, req: &ReqId) -> Option<Arc<Session>> {
        self.requests.lock().sent.get(req).cloned()
    }

    pub(crate) fn forget(&self, req: &ReqId) {
        self.requests.lock().sent.remove(req);
    }

    pub(crate) fn is_finished(&self, req: &ReqId) -> bool {
        self.requests.lock().finished.contains(req)
    }

    /// A request left: it never joins again.
    pub(crate) fn finish(&self, req: &ReqId) {
        let now = self.clock.now();
        let mut requests = self.requests.lock();
        let requests = &mut *requests;
        while requests.forgetting.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, req)) = requests.forgetting.pop_front() {
                requests.finished.remove(&req);
            }
        }
        if requests.finished.insert(*req) {
            requests.forgetting.push_back((now.plus(REMEMBERED), *req));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for session in self.pool.clear() {
            session.end();
        }
    }
}

/// What a lock's node is called, below the path of the URL: for tools that look by themselves.
#[must_use]
pub fn node(lock: &FullName) -> String {
    node_names::encode(lock)
}

impl Store for ZooKeeper {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(QueueDriver::new(self))
    }
}

impl QueueStore for ZooKeeper {
    type Place = OwnEntry;

    const LOCAL_BITS: u32 = LOCAL_BITS;

    fn info(&self) -> StoreInfo<'_> {
        let open = self.0.open_below.get().is_some();
        let capability = if open { below_an_open_path() } else { capability() };
        StoreInfo { capability, site: &self.0.site, clock: &self.0.clock }
    }

    fn token(&self, place: &OwnEntry) -> Token {
        place.0.token
    }

    /// No write of ours changes an entry once it is made, and an operator's mark does.
    fn proof(&self, place: &OwnEntry) -> Option<Proof> {
        Some(Proof { key: place.0.path.to_owned(), version: 0 })
    }

    async fn join(&self, ask: &Ask) -> Result<Joined<OwnEntry>, Error> {
        let _one = self.0.joins.acquire().await;
        Box::pin(self.0.join(ask)).await.map_err(|e| self.at(e))
    }

    async fn queue(&self, lock: &FullName, me: &OwnEntry) -> Result<Snapshot, Error> {
        self.0.queue(lock, me).await.map_err(|e| self.at(e))
    }

    async fn queue_and_proof(
        &self,
        key: &Key,
        me: &OwnEntry,
    ) -> Result<(Snapshot, Option<Proven>), Error> {
        self.0.queue_and_proof(key, me).await.map_err(|e| self.at(e))
    }

    async fn gone(&self, lock: &FullName, watch: &[Spot], _seen: u64) {
        self.0.gone(lock, watch).await;
    }

    async fn prove(&self, key: &Key, place: &OwnEntry) -> Result<Proven, Error> {
        self.0.prove(key, place).await.map_err(|e| self.at(e))
    }

    async fn keep(&self, places: &[Keeping<OwnEntry>]) -> Vec<Kept> {
        self.0.keep(places).await
    }

    async fn leave(&self, key: &Key, place: Option<&OwnEntry>) -> Result<Released, Error> {
        self.0.leave(key, place).await.map_err(|e| self.at(e))
    }

    async fn queues(&self, query: &Query) -> Result<Vec<(FullName, Snapshot)>, Error> {
        self.0.queues(query).await.map_err(|e| self.at(e))
    }

    async fn oust(&self, lock: &FullName, entry: &Entry, how: Force) -> Result<Forced, Error> {
        self.0.oust(lock, entry, how).await.map_err(|e| self.at(e))
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.0.sink.set(sink);
    }

    async fn close(&self) {
        self.0.close();
    }
}

impl ZooKeeper {
    fn at(&self, e: Error) -> Error {
        e.store(&self.0.site)
    }
}
