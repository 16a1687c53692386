//! The store: the moves of the line family.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Force, Forced, Kept, Key, Released};
use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::{EventSink, Wake};
use distlock_core::queue::{Entry, Joined, Keeping, Line, Proven, QueueDriver, QueueStore, Spot};
use distlock_core::url::StoreUrl;
use distlock_core::{
    BootInstant, Clock, ClockReading, Error, FullName, Kind, Proof, ReqId, Store, Token, Ttl,
};
use tokio::sync::{Mutex as Turn, Semaphore};
use zookeeper_client::{Acl as Grant, Client, Error as Zk, Permission};

use crate::capability::{below_an_open_path, capability};
use crate::errors::trouble;
use crate::node_names;
use crate::options::ZooKeeperOptions;
use crate::own_entry::OwnEntry;
use crate::read_queue::Listing;
use crate::session::Session;
use crate::session_pool::Pool;

/// How long a request that left is remembered: longer than anything sent stays under way.
const REMEMBERED: Duration = Duration::from_secs(60);

const JOINS: usize = 32;

/// Locks in a ZooKeeper ensemble.
///
/// Dropping it ends the connections; what it still has in line ends with its sessions.
pub struct ZooKeeper(Arc<Shared>);

/// What the moves share with what goes on in the background.
pub(crate) struct Shared {
    pub(crate) site: String,
    pub(crate) cluster: String,
    pub(crate) options: ZooKeeperOptions,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    sink: OnceLock<EventSink>,
    requests: Mutex<Requests>,
    /// So many join at once: what each needs meanwhile is more than it needs to wait.
    joins: Semaphore,
    /// The last long line that was read.
    pub(crate) listing: Turn<Option<Listing>>,
    closed: AtomicBool,
    /// Set when the path is open to everybody, so that the access list of what is below it
    /// protects nothing.
    open_below: OnceLock<()>,
}

#[derive(Default)]
struct Requests {
    /// The session each join was last sent in, until it has left.
    sent: HashMap<ReqId, Arc<Session>>,
    spent: HashMap<ReqId, BootInstant>,
    forgetting: VecDeque<(BootInstant, ReqId)>,
}

impl ZooKeeper {
    /// Connects to the ensemble of a URL: see [`ZooKeeperOptions::from_url`].
    ///
    /// # Errors
    /// [`Kind::Usage`](distlock_core::Kind::Usage) for a URL that cannot be;
    /// [`Kind::Unreachable`](distlock_core::Kind::Unreachable) when no session is opened within
    /// five seconds; [`Kind::Refused`](distlock_core::Kind::Refused) for a server that is read-only;
    /// [`Kind::Credentials`](distlock_core::Kind::Credentials) when the login may not write under
    /// the path.
    ///
    /// # Cancel safety
    /// Dropping the future ends what it had opened.
    pub async fn connect(url: &StoreUrl) -> Result<Self, Error> {
        Self::connect_with(ZooKeeperOptions::from_url(url)?, Clock::system()).await
    }

    /// Connects with options, on a given clock: the one that deadlines are counted on. The servers'
    /// own cannot be held.
    ///
    /// # Errors
    /// As [`ZooKeeper::connect`].
    ///
    /// # Cancel safety
    /// As [`ZooKeeper::connect`].
    pub async fn connect_with(options: ZooKeeperOptions, clock: Clock) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            site: options.site(),
            cluster: options.cluster(),
            options,
            clock,
            pool: Pool::default(),
            sink: OnceLock::new(),
            requests: Mutex::default(),
            joins: Semaphore::new(JOINS),
            listing: Turn::default(),
            closed: AtomicBool::new(false),
            open_below: OnceLock::new(),
        });
        // The one that most acquires will use: a wrong address or login shows here.
        let first = shared.begin().await;
        first.map_err(|e| e.during("connect").store(&shared.site))?;
        Ok(Self(shared))
    }
}

impl Drop for ZooKeeper {
    /// Takes effect at once: connections end, sessions when their time is over.
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    pub(crate) fn moment(&self) -> ClockReading {
        capability().moment(&self.clock)
    }

    /// Opens the first session, and sees whether the path is as closed as the access list says.
    async fn begin(self: &Arc<Self>) -> Result<(), Error> {
        let session = self.pool.session(self, Ttl::default().get()).await?;
        if !self.options.is_closed() {
            return Ok(());
        }
        let client = session.client().map_err(trouble)?;
        let open = match client.get_acl(&self.options.root).await {
            Ok((grants, _)) => grants.iter().any(open_to_all),
            // Who may not read it knows that not everybody may do everything.
            Err(Zk::NoAuth) => false,
            Err(e) => return Err(session.failed(e)),
        };
        if open && self.options.acl_named {
            return Err(open_path(&self.options.root));
        }
        if open {
            tracing::warn!(store = self.site, "anybody may write under the path: see setAcl");
            let _ = self.open_below.set(());
        }
        Ok(())
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
        let left = session.lease().left(self.moment());
        self.clock.timeout(left, call).await.unwrap_or(Err(Zk::Timeout))
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A join is about to be sent.
    pub(crate) fn remember(&self, req: &ReqId, session: &Arc<Session>) {
        self.requests().sent.insert(*req, session.clone());
    }

    /// The session a join was sent in.
    pub(crate) fn recall(&self, req: &ReqId) -> Option<Arc<Session>> {
        self.requests().sent.get(req).cloned()
    }

    pub(crate) fn forget(&self, req: &ReqId) {
        self.requests().sent.remove(req);
    }

    pub(crate) fn is_spent(&self, req: &ReqId) -> bool {
        self.requests().spent.contains_key(req)
    }

    /// A request left: it never joins again.
    pub(crate) fn spend(&self, req: &ReqId) {
        let now = self.clock.now();
        let mut requests = self.requests();
        let requests = &mut *requests;
        while requests.forgetting.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, req)) = requests.forgetting.pop_front() {
                requests.spent.remove(&req);
            }
        }
        let until = now.plus(REMEMBERED);
        if requests.spent.insert(*req, until).is_none() {
            requests.forgetting.push_back((until, *req));
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

/// Whether an access list lets everybody make or remove nodes, or change the list.
fn open_to_all(grant: &Grant) -> bool {
    let harm = Permission::CREATE | Permission::DELETE | Permission::ADMIN;
    grant.scheme() == "world" && grant.permission() & harm != Permission::NONE
}

fn open_path(root: &str) -> Error {
    Error::new(Kind::Credentials, format!("everybody may write under {root}"))
        .with_hint("acl=creator protects nothing there: whoever comes first makes a lock's node, and may take entries away. Close the path (zkCli: setAcl), use one that is not there yet, or leave acl= out")
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

    fn capability(&self) -> &Capability {
        if self.0.open_below.get().is_some() { below_an_open_path() } else { capability() }
    }

    fn site(&self) -> &str {
        &self.0.site
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    fn token(&self, place: &OwnEntry) -> Token {
        place.token()
    }

    /// No write of ours changes an entry once it is made, and an operator's mark does.
    fn proof(&self, place: &OwnEntry) -> Option<Proof> {
        Some(Proof { key: place.path().to_owned(), version: 0 })
    }

    async fn join(&self, ask: &Ask) -> Result<Joined<OwnEntry>, Error> {
        let _one = self.0.joins.acquire().await;
        Box::pin(self.0.join(ask)).await.map_err(|e| self.at(e))
    }

    async fn line(&self, lock: &FullName, me: &OwnEntry) -> Result<Line, Error> {
        self.0.line(lock, me).await.map_err(|e| self.at(e))
    }

    async fn line_up(&self, key: &Key, me: &OwnEntry) -> Result<(Line, Option<Proven>), Error> {
        self.0.line_up(key, me).await.map_err(|e| self.at(e))
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

    async fn lines(&self, query: &Query) -> Result<Vec<(FullName, Line)>, Error> {
        self.0.lines(query).await.map_err(|e| self.at(e))
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
