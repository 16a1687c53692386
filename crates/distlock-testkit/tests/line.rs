//! The laws over a line store in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use distlock_core::queue::QueueStore;
use distlock_core::{Clock, Locks};
use distlock_testkit::doubles::MemoryQueue;
use distlock_testkit::{Made, Suite, suite};

/// By name: whoever names one meets the same lines.
fn all() -> MutexGuard<'static, BTreeMap<String, MemoryQueue>> {
    static ALL: Mutex<BTreeMap<String, MemoryQueue>> = Mutex::new(BTreeMap::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn line(name: &str) -> MemoryQueue {
    let new = || MemoryQueue::new(name, Clock::system());
    all().entry(name.to_owned()).or_insert_with(new).client()
}

fn store() -> Suite {
    let capability = MemoryQueue::new("line", Clock::system()).info().capability.clone();
    Suite::in_process(
        capability,
        |dir| {
            let name = dir.display().to_string();
            Box::pin(async move { Ok(Made::at(name)) })
        },
        |url| {
            let locks = Locks::from_store(line(url));
            Box::pin(async move { Ok(locks) })
        },
    )
    .lose(|site, lock| Box::pin(async move { line(site.url()).wipe(lock) }))
}

suite!(store());
