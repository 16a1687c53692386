//! From the store to what stands above the seam.

use std::sync::Arc;

use distlock_core::Store;
use distlock_core::leased::Leased;
use distlock_core::seam::Backend;

use crate::Sqlite;

impl Store for Sqlite {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(Leased::new(self))
    }
}
