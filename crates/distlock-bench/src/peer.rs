//! Another Rust crate's lock on the same server, in the same run.

use std::net::SocketAddr;
use std::time::Duration;

use distlock::{Error, Kind};
use rslock::LockManager;

/// `rslock`, over one or several servers: no fencing token, no line, no renewal by itself.
#[derive(Clone)]
pub(crate) struct Peer(LockManager);

impl Peer {
    pub(crate) fn open(servers: &[SocketAddr]) -> Self {
        let mut manager =
            LockManager::new(servers.iter().map(|at| format!("redis://{at}")).collect());
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
