//! An ephemeral sequential node, created and deleted: what any lock in ZooKeeper needs. The session
//! is driven where ours is, on the library's thread.

use std::net::SocketAddr;
use std::sync::Arc;

use distlock::backend::engine;
use distlock::{Error, Kind};
use tokio::sync::oneshot;
use zookeeper_client::{Acls, Client, CreateMode};

use super::fail;

/// A session.
#[derive(Clone)]
pub(crate) struct ZooKeeper(Arc<Client>);

const DIR: &str = "/raw";

/// About what a lock writes there.
const DATA: [u8; 200] = [b'x'; 200];

impl ZooKeeper {
    pub(crate) async fn open(server: SocketAddr, names: usize) -> Result<Self, Error> {
        let (tx, rx) = oneshot::channel();
        engine::spawn(async move { drop(tx.send(Client::connect(&server.to_string()).await)) });
        let closed = |_| Error::new(Kind::Closed, "no thread for the raw calls");
        let client = rx.await.map_err(closed)?.map_err(fail)?;
        let made = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let dirs = (0..names).map(|name| format!("{DIR}/{name}"));
        for dir in std::iter::once(DIR.to_owned()).chain(dirs) {
            match client.create(&dir, b"", &made).await {
                // An earlier process of the run made it.
                Ok(_) | Err(zookeeper_client::Error::NodeExists) => {}
                Err(e) => return Err(fail(e)),
            }
        }
        Ok(Self(Arc::new(client)))
    }

    /// Takes and gives back: two calls.
    pub(crate) async fn cycle(&self, name: usize) {
        let made = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{DIR}/{name}/lock-");
        let created = self.0.create(&path, &DATA, &made).await;
        debug_assert!(created.is_ok());
        if let Ok((_, sequence)) = created {
            let deleted = self.0.delete(&format!("{path}{sequence}"), None).await;
            debug_assert!(deleted.is_ok());
        }
    }
}
