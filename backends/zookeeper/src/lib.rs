//! The `zookeeper:` store of distlock: ephemeral sequential nodes, watching the predecessor only.
//!
//! | where | what |
//! |---|---|
//! | [`ZooKeeper`], `options` | the store, and what its URL says |
//! | [`capability`](capability()) | what it promises |
//! | `names`, `record` | what nodes are called, and what is in them |
//! | `pulse` | how long a session is certain to last |
//! | `session`, `pool`, `pacer` | sessions: one a TTL, kept alive and watched |
//! | `place` | an entry of this client's own |
//! | `join`, `leave`, `look`, `keep`, `inspect` | the moves of the line family |
//! | `trouble` | what can go wrong, in words |

mod capability;
mod errors;
mod inspect;
mod join;
mod node_names;
mod options;
mod own_entry;
mod read_queue;
mod record;
mod release;
mod renewal;
mod session;
mod session_deadline;
mod session_pool;
mod session_upkeep;
mod store;

pub use capability::capability;
pub use options::{Acl, ZooKeeperOptions};
pub use own_entry::OwnEntry;
pub use store::{ZooKeeper, node};

/// The schemes of this store's URLs.
pub const SCHEMES: [&str; 2] = ["zookeeper", "zk"];
