//! The PostgreSQL stores of distlock: a lock row with a fair line and pushed hand-over, the same
//! state in one row by version, and locks that a session of the server holds.

mod address;
mod call;
mod capability;
mod connector;
mod contention;
#[cfg(test)]
mod costs;
#[cfg(test)]
mod differential;
mod errors;
mod fast_path;
mod inspect;
mod install;
mod listener;
mod message;
mod moves;
mod open;
mod options;
mod row_lock;
mod session_inspect;
mod session_lock;
mod session_store;
mod statements;
mod store;
mod version_store;

pub use capability::capability;
pub use open::{SCHEMES, open, open_to_look};
pub use options::{Algorithm, PostgresOptions};
pub use row_lock::with_row_lock;
pub use statements::schema;
pub use store::Postgres;
