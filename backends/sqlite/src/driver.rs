//! From the store to what stands above the seam.

use std::sync::Arc;

use distlock_core::Store;
use distlock_core::backend::Backend;
use distlock_core::lease_driver::LeaseDriver;

use crate::Sqlite;

impl Store for Sqlite {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}
