//! The `zookeeper:` store of distlock: ephemeral sequential nodes, watching the predecessor only.
//!
//! | where | what |
//! |---|---|
//! | `store` | [`ZooKeeper`], the store |
//! | `open`, `options` | from a URL to a store |
//! | `capability` | what it promises |
//! | `join`, `read_queue`, `renewal`, `release`, `inspect` | the moves of the queue family |
//! | `own_entry` | an entry of this client |
//! | `session`, `session_pool`, `session_upkeep` | sessions: one a TTL, kept alive and watched |
//! | `session_deadline` | how long a session is certain to last |
//! | `node_names`, `record` | names and content of nodes |
//! | `errors` | from ZooKeeper's errors to ours |

mod capability;
mod errors;
mod inspect;
mod join;
mod node_names;
mod open;
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

pub use capability::{capabilities, capability};
pub use open::open;
pub use options::{Acl, ZooKeeperOptions};
pub use own_entry::OwnEntry;
pub use store::{ZooKeeper, node};
