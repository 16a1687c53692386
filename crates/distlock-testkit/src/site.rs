//! One fresh store, as a law sees it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::capability::{Capability, Expiry, Family};
use distlock_core::memory::Memory;
use distlock_core::{Clock, Error, FullName, Kind, Locks, Name, Namespace, Ttl};
use tempfile::TempDir;

use crate::road::ProxiedRoute;
use crate::servers::Server;
use crate::suite::Suite;

/// A fresh store: where it is, and whatever must live as long as it (a server, say).
pub struct Made {
    url: String,
    keep: Option<Box<dyn Any + Send + Sync>>,
    space: Namespace,
}

impl Made {
    /// A store that is only files.
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into(), keep: None, space: Namespace::default() }
    }

    /// A store with a server, or anything else that ends with it; see [`StoreUnderTest::kept`].
    pub fn with(url: impl Into<String>, keep: impl Any + Send + Sync) -> Self {
        Self { keep: Some(Box::new(keep)), ..Self::at(url) }
    }

    /// Says that the URL's clients have this namespace: servers that take seconds to start can
    /// then be shared by many sites.
    #[must_use]
    pub fn inside(mut self, space: Namespace) -> Self {
        self.space = space;
        self
    }
}

/// One fresh store and its clients. Clones are the same site.
#[derive(Clone)]
pub struct StoreUnderTest(Arc<Inner>);

struct Inner {
    suite: Suite,
    memory: Option<Memory>,
    made: Option<Made>,
    names: AtomicU32,
    dir: TempDir,
}

impl StoreUnderTest {
    /// Makes a fresh store of a suite.
    ///
    /// # Errors
    /// When there is no temporary directory, or the store cannot be made.
    ///
    /// # Cancel safety
    /// Dropping the future removes what was made.
    pub async fn fresh(suite: Suite) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("distlock-").tempdir();
        let dir = dir.map_err(|e| Error::new(Kind::Store, "no directory for a test").because(e))?;
        let (memory, made) = match suite.by_url {
            None => (Some(Memory::new()), None),
            Some((make, _)) => (None, Some(make(dir.path()).await?)),
        };
        Ok(Self(Arc::new(Inner { suite, memory, made, names: AtomicU32::new(0), dir })))
    }

    /// A client of its own, as if it were another process.
    ///
    /// # Panics
    /// When the store cannot be reached: a law cannot go on without.
    pub async fn client(&self) -> Locks {
        match (&self.0.memory, &self.0.made, self.0.suite.by_url) {
            (None, Some(made), Some((_, connect))) => {
                connect(&made.url).await.expect("a client of the store")
            }
            _ => Locks::from_store(self.memory().client()),
        }
    }

    /// A client whose waiters all stand in the queue of the store.
    ///
    /// # Panics
    /// As [`StoreUnderTest::client`].
    pub async fn strict(&self) -> Locks {
        strict(&self.client().await)
    }

    /// A way to the store through proxies of its own.
    pub(crate) async fn road(&self) -> ProxiedRoute {
        let make = self.suite().road.expect("listed only with this hook");
        let road = make(self).await.expect("a way to the store through proxies");
        // A majority of independent nodes is what a quorum cannot do without.
        match self.capability().family {
            Family::Quorum => road.majority(),
            _ => road,
        }
    }

    /// A client that comes by a road.
    pub(crate) async fn client_by(&self, road: &ProxiedRoute) -> Locks {
        let (_, connect) = self.0.suite.by_url.expect("a store with a URL");
        connect(road.url()).await.expect("a client of the store")
    }

    /// What the store promises.
    #[must_use]
    pub fn capability(&self) -> &'static Capability {
        self.0.suite.capability
    }

    /// A name nobody has used at this site.
    #[must_use]
    pub fn name(&self) -> String {
        format!("law-{}", self.0.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A name as the clients of this site address it.
    ///
    /// # Panics
    /// When it is not a name.
    #[must_use]
    pub fn full(&self, name: &str) -> FullName {
        let space = self.0.made.as_ref().map(|made| made.space.clone()).unwrap_or_default();
        FullName { space, name: Name::new(name).expect("a name") }
    }

    /// Where a second process connects to.
    ///
    /// # Panics
    /// For the memory store, which no other process reaches: such laws are not listed for it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.0.made.as_ref().expect("a store with a URL").url
    }

    /// A directory of this site's own.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.0.dir.path()
    }

    /// What the store was made with, such as its server.
    #[must_use]
    pub fn kept<T: Any>(&self) -> Option<&T> {
        self.0.made.as_ref()?.keep.as_ref()?.downcast_ref()
    }

    /// The one server that the store was made with.
    ///
    /// # Panics
    /// When it was made with something else.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.kept().expect("its server")
    }

    /// The memory store of this site.
    ///
    /// # Panics
    /// When it is another store.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.0.memory.as_ref().expect("the memory store")
    }

    pub(crate) fn suite(&self) -> &Suite {
        &self.0.suite
    }

    /// The clock of the tests: the machine's.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::system()
    }

    /// A TTL short enough to wait for several of them, and long enough that a machine which stands
    /// still for a moment loses none.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.grantable(Duration::from_secs(4))
    }

    /// A TTL for a hold that has to be kept by renewal alone, on a machine busy with other tests.
    #[must_use]
    pub fn steady(&self) -> Duration {
        let given_up = self.capability().drift_floor * 2;
        self.grantable(Duration::from_secs(4) + given_up)
    }

    /// The shortest TTL worth testing: for locks that are to run out.
    #[must_use]
    pub fn short(&self) -> Duration {
        self.grantable(Duration::from_millis(300))
    }

    fn grantable(&self, d: Duration) -> Duration {
        let ttl = Ttl::new(d).expect("a TTL");
        self.capability().grantable(ttl).expect("a TTL the store grants")
    }

    /// Whether a silent holder's lock ends by its TTL.
    #[must_use]
    pub fn expires(&self) -> bool {
        self.capability().expiry == Expiry::Ttl
    }
}

/// A client of the same store whose waiters all stand in the queue of the store.
pub(crate) fn strict(locks: &Locks) -> Locks {
    let options = Locks::options().strict_order().namespace(locks.namespace().as_str());
    options.open(locks.backend().clone()).expect("sound options")
}
