//! The etcd store of distlock.
//!
//! | where | what |
//! |---|---|
//! | `open` | from a URL to a store |
//! | `store` | the algorithm |
//! | `keeping`, `listing` | renewal, and what operators see |
//! | `client`, `session`, `entries` | one client: its leases, and what it has in all lines |
//! | `txn`, `keys`, `meta` | transactions, keys and values |
//! | `promises` | what it promises, by version of the server |
//! | `wire` | our own small client |

mod client;
mod entries;
#[cfg(test)]
mod figures;
mod keeping;
mod keys;
mod listing;
mod meta;
mod open;
mod promises;
mod session;
mod store;
mod txn;
mod wire;

pub use open::SCHEMES;
pub use promises::{Version, capability};
pub use store::{Etcd, EtcdPlace};
