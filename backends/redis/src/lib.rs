//! The redis stores of distlock: one node, Sentinel, Cluster, the plain recipe, and Redlock nodes.
#![allow(dead_code)] // while it is being built

mod address;
mod call;
mod cluster;
mod epoch;
mod facts;
mod keys;
mod link;
mod node;
mod open;
mod options;
mod place;
mod plain;
mod promises;
mod redlock;
mod replicas;
mod router;
mod scan;
mod trouble;
mod wire;

pub use open::{SCHEMES, open};
pub use options::{Algorithm, RedisOptions};
pub use plain::Plain;
pub use promises::{Kind, capability};
pub use redlock::redlock_capability;
