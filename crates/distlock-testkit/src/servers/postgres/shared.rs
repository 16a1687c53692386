//! One server for many tests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use distlock_core::Error;
use tokio::sync::Mutex;

use super::{Postgres, Server};

/// As long as anybody of this process uses it.
static SHARED: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
static SCHEMAS: AtomicU32 = AtomicU32::new(1);

impl Postgres {
    /// A quick server that the tests of this process share, and the name of a schema for the caller
    /// alone, which is not there yet: making a whole server for each of many tests takes longer than
    /// the tests. Nobody may stop or pause it.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn shared() -> Result<(Arc<Server>, String), Error> {
        let mut shared = SHARED.lock().await;
        let server = match shared.upgrade() {
            Some(server) => server,
            None => Arc::new(Self::new().set("max_connections", "500").start().await?),
        };
        *shared = Arc::downgrade(&server);
        Ok((server, format!("test_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed))))
    }
}
