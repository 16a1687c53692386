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
mod inspect;
mod join;
mod keep;
mod leave;
mod look;
mod names;
mod options;
mod pacer;
mod place;
mod pool;
mod pulse;
mod record;
mod session;
mod store;
mod trouble;

pub use capability::capability;
pub use options::{Acl, ZooKeeperOptions};
pub use place::Place;
pub use store::{ZooKeeper, node};

/// The schemes of this store's URLs.
pub const SCHEMES: [&str; 2] = ["zookeeper", "zk"];
