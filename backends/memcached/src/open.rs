//! From a URL to a store.

use std::sync::Arc;

use distlock_core::{Backend, Clock, Error, Mutex, Store, StoreUrl};

use crate::connection::Link;
use crate::known_items::KnownItems;
use crate::options::server;
use crate::store::{Inner, Memcached};

/// Connects to the server that a URL names: as [`Memcached::connect`].
///
/// # Errors
/// As [`Memcached::connect`].
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    Ok(Memcached::connect(&url).await?.into_backend())
}

impl Memcached {
    /// Connects to the server of a URL, `memcached://HOST:PORT`; the port is 11211 unless named.
    ///
    /// # Errors
    /// `Kind::Usage` for a URL with anything but one host; `Kind::Unreachable` when nobody
    /// answers; `Kind::Store` when something else than memcached does; `Kind::Unsupported` for
    /// one before 1.6; `Kind::Refused` for one started with -C or -M; `Kind::Credentials` for
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
        let host = server(url)?;
        let (site, address) = (format!("memcached://{host}"), host.to_string());
        let link = Link::new(address.clone(), clock.clone());
        let (known, asked) = (KnownItems::default(), Mutex::default());
        let inner = Inner { site, address, clock, link, known, asked };
        inner.link.call(Vec::new()).await.map_err(|e| e.during("connect").store(&inner.site))?;
        Ok(Self(Arc::new(inner)))
    }
}
