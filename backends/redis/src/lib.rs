//! The redis stores of distlock: one node, Sentinel, Cluster, the plain recipe, and Redlock nodes.

mod address;
mod call;
mod cluster;
#[cfg(test)]
mod differential;
mod epoch;
mod facts;
mod keys;
mod link;
mod listing;
mod moves;
mod node;
mod open;
mod options;
mod place;
mod plain;
mod promises;
mod recipe;
mod redlock;
mod replicas;
mod router;
mod scan;
mod scripts;
mod store;
mod trouble;
mod wire;

pub use open::{SCHEMES, open};
pub use options::{Algorithm, RedisOptions};
pub use plain::Plain;
pub use promises::{Kind, capability};
pub use redlock::redlock_capability;
pub use store::Redis;
