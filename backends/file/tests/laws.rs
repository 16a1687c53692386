//! The laws every store must pass, over files.
use distlock_core::Locks;
use distlock_file::{CAPABILITY, FileOptions, FileStore};
use distlock_testkit::{Suite, suite};

suite!(Suite::files(CAPABILITY.clone(), |dir| {
    let dir = dir.to_owned();
    Box::pin(async move { FileStore::open(dir, FileOptions::default()).map(Locks::from_store) })
}));
