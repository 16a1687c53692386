//! Another Rust crate's lock on the same servers, in the same run.

use std::net::SocketAddr;
use std::time::Duration;

use distlock::{Error, Kind};
use rslock::LockManager;

/// `rslock`, over one or several servers: no fencing token, no line, no renewal by itself.
#[derive(Clone)]
pub(crate) struct Peer(LockManager);

impl Peer {
    /// Over one server, or as a Redlock over several.
    pub(crate) fn open(servers: &[SocketAddr]) -> Self {
        Self::patient(LockManager::new(urls(servers)))
    }

    /// Over a cluster, which it takes for one server.
    pub(crate) fn cluster(nodes: &[SocketAddr]) -> Result<Self, Error> {
        let manager = LockManager::new_cluster(urls(nodes));
        let trouble = |e| Error::new(Kind::Store, "rslock does not take the cluster").because(e);
        manager.map(Self::patient).map_err(trouble)
    }

    fn patient(mut manager: LockManager) -> Self {
        manager.set_retry(1000, Duration::from_millis(1));
        Self(manager)
    }

    /// Takes a free lock and gives it back.
    pub(crate) async fn cycle(&self, name: &str) -> Result<(), Error> {
        let lock = self.0.lock(name.as_bytes(), Duration::from_secs(10)).await;
        let lock = lock.map_err(|e| Error::new(Kind::Store, format!("rslock: {e:?}")))?;
        self.0.unlock(&lock).await;
        Ok(())
    }
}

fn urls(servers: &[SocketAddr]) -> Vec<String> {
    servers.iter().map(|at| format!("redis://{at}")).collect()
}
