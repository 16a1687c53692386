//! The etcd store of distlock.
//!
//! | where | what |
//! |---|---|
//! | `open`, `options` | from a URL to a store |
//! | `store` | the algorithm |
//! | `leave`, `renewal`, `inspect` | leaving and handing over, renewal, and what operators see |
//! | `client`, `session`, `own_requests`, `entry` | one client: its leases, and its entries in all queues |
//! | `txn`, `keys`, `entry_keys` | transactions, keys, and which key an entry gets |
//! | `capability` | what it promises, by version of the server |
//! | `errors` | from failed calls to errors: what happened, and what to do next |
//! | `wire` | our own small client |

mod capability;
mod client;
mod entry;
mod entry_keys;
mod errors;
mod inspect;
mod keys;
mod leave;
mod open;
mod options;
mod own_requests;
mod renewal;
mod session;
mod store;
mod txn;
mod wire;

pub use capability::{Version, capabilities, capability};
pub use entry::EtcdEntry;
pub use open::open;
pub use store::Etcd;
