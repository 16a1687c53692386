//! The etcd store of distlock.
//!
//! | where | what |
//! |---|---|
//! | `open` | from a URL to a store |
//! | `store` | the algorithm |
//! | `leaving`, `keeping`, `listing` | leaving and handing over, renewal, and what operators see |
//! | `client`, `session`, `seats`, `entries`, `place` | one client: its leases, and what it has in all lines |
//! | `txn`, `keys`, `meta` | transactions, keys and values |
//! | `promises` | what it promises, by version of the server |
//! | `wire` | our own small client |

mod capability;
mod client;
mod entries;
mod entry_value;
mod inspect;
mod keys;
mod open;
mod own_entry;
mod release;
mod renewal;
mod reusable_keys;
mod session;
mod store;
mod txn;
mod wire;

pub use capability::{Version, capability};
pub use open::SCHEMES;
pub use own_entry::EtcdEntry;
pub use store::Etcd;
