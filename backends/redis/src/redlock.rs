//! Redlock: one lock out of a majority of independent servers.
//!
//! 1. Every move at a node is one script, on the node's own clock; the quorum driver of the core
//!    asks all nodes at once and counts.
//! 2. A bid carries the token its client would like; a node takes it in the same step in which it
//!    grants. A majority that did makes a lock in one round trip.
//! 3. Otherwise one more than the highest counter is written back, at each node only while the bid
//!    still owns the lock there.
//! 4. Whatever fails is undone at every node, and a tombstone stops what comes late.
//! 5. Waiters queue at every node under one ticket, so that all nodes agree on the next one.
//! 6. A node that may have forgotten something grants nothing until all of it has run out.

mod capability;
#[cfg(test)]
mod differential;
mod keys;
mod node;
mod open;
mod plain;
mod record;
mod replies;
mod script_calls;
mod scripts;

pub use capability::redlock_capability;
pub(crate) use open::{SCHEMES, open};
