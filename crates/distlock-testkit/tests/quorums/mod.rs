//! Quorums of nodes in memory, by name: whoever names one meets the same nodes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::quorum::QuorumDriver;
use distlock_core::{Error, FullName, Locks};
use distlock_testkit::doubles::MemoryNode;

static ALL: Mutex<BTreeMap<String, Vec<MemoryNode>>> = Mutex::new(BTreeMap::new());

/// A client of the quorum of this name.
pub(crate) fn connect(name: &str, make: fn(usize) -> MemoryNode) -> Result<Locks, Error> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = all.entry(name.to_owned()).or_insert_with(|| (0..5).map(make).collect());
    let clients = nodes.iter().map(MemoryNode::client).collect();
    // The machine runs other laws beside this one, and a call waits for its turn on a core.
    let quorum = QuorumDriver::new(name, clients)?.per_node(Duration::from_secs(1));
    Ok(Locks::from_store(quorum))
}

/// Deletes the record of a lock at all nodes.
pub(crate) fn wipe(name: &str, lock: &FullName) {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all[name].iter().for_each(|node| node.wipe(lock));
}
