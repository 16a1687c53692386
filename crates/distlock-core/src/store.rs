//! From a store to a backend.

use std::sync::Arc;

use crate::Backend;

/// A store that knows its family's driver: what [`Locks::from_store`](crate::Locks::from_store)
/// takes.
pub trait Store {
    /// This store behind its driver.
    fn into_backend(self) -> Arc<dyn Backend>;
}

impl Store for Arc<dyn Backend> {
    fn into_backend(self) -> Arc<dyn Backend> {
        self
    }
}
