//! From the store to what stands above the seam.

use std::sync::Arc;

use distlock_core::Store;
use distlock_core::pinned::Pinned;
use distlock_core::seam::Backend;

use crate::FileStore;

impl Store for FileStore {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(Pinned::new(self))
    }
}
