//! The PostgreSQL stores of distlock: a lock row with a fair line and pushed hand-over, the same
//! state in one row by version, and locks that a session of the server holds.

mod address;
mod call;
#[cfg(test)]
mod costs;
#[cfg(test)]
mod differential;
mod door;
mod ear;
mod grip;
mod install;
mod look;
mod message;
mod moves;
mod open;
mod options;
mod promises;
mod quiet;
mod row_lock;
mod session_look;
mod sessions;
mod short;
mod statements;
mod store;
mod trouble;
mod version;

pub use open::{SCHEMES, open, open_to_look};
pub use options::{Algorithm, PostgresOptions};
pub use promises::capability;
pub use row_lock::with_row_lock;
pub use statements::schema;
pub use store::Postgres;
