//! The redis stores of distlock: one node, Sentinel, Cluster, the plain recipe, and Redlock nodes.
//!
//! | where | what |
//! |---|---|
//! | `open`, `options`, `address` | from a URL to a store |
//! | `store` | the algorithm; `plain` the textbook recipe; `redlock` the nodes of a quorum |
//! | `keys` | the keys of a lock |
//! | `script_calls`, `scripts` | the call of each move and its answer; the Lua texts, put together |
//! | `reply_cursor`, `packed_cursor` | typed reads of replies and of packed records |
//! | `router`, `primary`, `cluster`, `replicas` | which server keeps a lock, and what waits for its replicas |
//! | `reconnect`, `checked_connection`, `connection`, `connection_task` | one server: connected again, fit to be trusted, its socket |
//! | `batcher` | moves of many tasks in one call |
//! | `quarantine`, `server_info` | when a server that may have lost data is not trusted |
//! | `inspect`, `plain_common` | what operators see; what both plain recipes share |
//! | `capability`, `errors` | what it promises; from failed calls to errors |

mod address;
mod batcher;
mod capability;
mod checked_connection;
mod cluster;
mod connection;
mod connection_task;
#[cfg(test)]
mod differential;
mod errors;
mod inspect;
mod keys;
mod open;
mod options;
mod packed_cursor;
mod plain;
mod plain_common;
mod primary;
mod quarantine;
mod reconnect;
mod redlock;
mod replicas;
mod reply_cursor;
mod router;
mod script_calls;
mod scripts;
mod server_info;
mod store;

pub use capability::{Kind, capability};
pub use open::{SCHEMES, open};
pub use options::{Algorithm, RedisOptions, Tls};
pub use redlock::redlock_capability;
