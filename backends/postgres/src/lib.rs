//! The PostgreSQL stores of distlock: a lock row with a fair line and pushed hand-over, and the
//! same state in one row by version.

mod address;
mod call;
#[cfg(test)]
mod differential;
mod door;
mod ear;
mod install;
mod look;
mod message;
mod moves;
mod open;
mod options;
mod promises;
mod statements;
mod store;
mod trouble;
mod version;

pub use open::{SCHEMES, open};
pub use options::{Algorithm, PostgresOptions};
pub use promises::capability;
pub use statements::schema;
pub use store::Postgres;
