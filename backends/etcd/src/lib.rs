//! The etcd store of distlock.
//!
//! | where | what |
//! |---|---|
//! | `open` | from a URL to a store |
//! | `store` | the algorithm |
//! | `leaving`, `keeping`, `listing` | leaving and handing over, renewal, and what operators see |
//! | `client`, `session`, `entries`, `place` | one client: its leases, and what it has in all lines |
//! | `txn`, `keys`, `meta` | transactions, keys and values |
//! | `promises` | what it promises, by version of the server |
//! | `wire` | our own small client |

mod client;
mod entries;
mod keeping;
mod keys;
mod leaving;
mod listing;
mod meta;
mod open;
mod place;
mod promises;
mod session;
mod store;
mod txn;
mod wire;

pub use open::SCHEMES;
pub use place::EtcdPlace;
pub use promises::{Version, capability};
pub use store::Etcd;
