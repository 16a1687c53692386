//! The redis stores of distlock: one node, Sentinel, Cluster, the plain recipe, and Redlock nodes.

mod address;
mod call;
mod capability;
mod cluster;
mod combiner;
#[cfg(test)]
mod differential;
mod driver;
mod errors;
mod keys;
mod link;
mod listing;
mod moves;
mod node;
mod open;
mod options;
mod plain;
mod primary;
mod quarantine;
mod recipe;
mod redlock;
mod replicas;
mod router;
mod scan;
mod scripts;
mod server_info;
mod store;
mod wire;

pub use capability::{Kind, capability};
pub use open::{SCHEMES, open};
pub use options::{Algorithm, RedisOptions};
pub use plain::Plain;
pub use redlock::redlock_capability;
pub use store::Redis;
