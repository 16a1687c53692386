//! From the store to what stands above the seam.

use std::sync::Arc;

use distlock_core::Store;
use distlock_core::backend::Backend;
use distlock_core::session_driver::SessionDriver;

use crate::FileStore;

impl Store for FileStore {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(SessionDriver::new(self))
    }
}
