//! From a URL to a store that answers.

use std::sync::Arc;

use distlock_core::{Backend, Error, Kind, Store, StoreUrl};

use crate::capability::{Version, capability};
use crate::client::Client;
use crate::options::link;
use crate::store::Etcd;
use crate::txn;
use crate::wire::link::Tries;
use crate::wire::proto::StatusRequest;

/// The layout of keys and values that this code reads and writes.
const LAYOUT: &str = "1";

/// Connects to the cluster that a URL names: as [`Etcd::connect`].
///
/// # Errors
/// As [`Etcd::connect`].
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    Ok(Etcd::connect(url).await?.into_backend())
}

impl Etcd {
    /// Connects to the cluster that a URL names: `etcd://user:password@h1,h2,h3`, `etcds://` for TLS.
    ///
    /// | key | what |
    /// |---|---|
    /// | `timeout` | how long a call may take, all its attempts together; 5 s |
    /// | `ca` | a file with the authority that signed the cluster's certificates |
    /// | `cert`, `key` | files with a certificate of ours and its key |
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid URL, [`Kind::Credentials`], [`Kind::Layout`] for data of
    /// a newer version, and whatever keeps a majority of the cluster from answering.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn connect(mut url: StoreUrl) -> Result<Self, Error> {
        let link = link(&mut url)?;
        // A write, which only a cluster with a majority answers, and only to a user that may write.
        let said = link.ask(&txn::layout(LAYOUT), Tries::Once).await?.said;
        if let Some(found) = txn::first_read(&said).filter(|kv| kv.value != LAYOUT.as_bytes()) {
            let found = String::from_utf8_lossy(&found.value).into_owned();
            let what = format!("the cluster holds locks of layout {found:?}");
            let hint =
                "another version of distlock wrote them: use that one, or one that knows both";
            return Err(Error::new(Kind::Layout, what).store(&link.site).with_hint(hint));
        }
        // A user that may not ask for the version is promised what the oldest servers keep.
        let status = link.ask(&StatusRequest {}, Tries::Once).await;
        let version = status.ok().and_then(|s| Version::read(&s.said.version));
        Ok(Self { client: Client::new(link, capability(version)) })
    }
}
