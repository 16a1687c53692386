//! From a URL to a store: the first session, and a look at the path's access list.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use distlock_core::{Backend, Clock, Error, Kind, Mutex, Store, StoreUrl, Ttl};
use tokio::sync::{Mutex as Turn, Semaphore};
use zookeeper_client::{Acl as Grant, Error as Zk, Permission};

use crate::errors::trouble;
use crate::options::ZooKeeperOptions;
use crate::session_pool::Pool;
use crate::store::{Shared, ZooKeeper};

/// Max joins under way at once: a join needs more memory than a waiter.
const JOINS: usize = 32;

/// Connects to the ensemble that a URL names: as [`ZooKeeper::connect`].
///
/// # Errors
/// As [`ZooKeeper::connect`].
///
/// # Cancel safety
/// Dropping the future ends what it had opened.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    Ok(ZooKeeper::connect(&url).await?.into_backend())
}

impl ZooKeeper {
    /// Connects to the ensemble of a URL: see [`ZooKeeperOptions::from_url`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid URL;
    /// [`Kind::Unreachable`] when no session is opened within
    /// five seconds; [`Kind::Refused`] for a server that is read-only;
    /// [`Kind::Credentials`] when the login may not write under
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

impl Shared {
    /// Opens the first session, and sees whether the path is as closed as the access list says.
    async fn begin(self: &Arc<Self>) -> Result<(), Error> {
        let session = self.pool.session(self, Ttl::default().get()).await?;
        if !self.options.is_closed() {
            return Ok(());
        }
        let client = session.client().map_err(trouble)?;
        let open = match client.get_acl(&self.options.root).await {
            Ok((grants, _)) => grants.iter().any(open_to_all),
            // A login that may not read the list: so not everybody may do everything.
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
