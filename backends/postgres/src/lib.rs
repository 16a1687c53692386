//! The PostgreSQL stores of distlock: a lock row with a fair queue and pushed hand-over, the same
//! state in one row by version, and locks that a session of the server holds.
//!
//! | where | what |
//! |---|---|
//! | `open`, `options`, `address`, `connector` | from a URL to a store, and a connection with our settings |
//! | `store` | the default algorithm; `cas_store` and `session_store` the other ones |
//! | `fast_path`, `contention_hint` | one UPDATE for the usual case, and when it is tried |
//! | `function_calls`, `statements`, `columns` | the SQL functions called, other statements, and columns as values |
//! | `schema`, `install` | the tables and functions (`sql/`), and installing them |
//! | `listener`, `notification` | LISTEN, and what a NOTIFY says |
//! | `session_lock`, `session_admin` | one session that holds a lock; all of them, for operators |
//! | `transaction_lock` | `with_row_lock`, inside the caller's own transaction |
//! | `inspect`, `capability`, `errors` | what operators see; what it promises; from failed calls to errors |

mod address;
mod capability;
mod cas_store;
mod columns;
mod connector;
mod contention_hint;
#[cfg(test)]
mod costs;
#[cfg(test)]
mod differential;
mod errors;
mod fast_path;
mod function_calls;
mod inspect;
mod install;
mod listener;
mod notification;
mod open;
mod options;
mod schema;
mod session_admin;
mod session_lock;
mod session_store;
mod statements;
mod store;
mod transaction_lock;

pub use capability::{capabilities, capability};
pub use open::{open, open_to_look};
pub use options::{Algorithm, PostgresOptions};
pub use schema::schema;
pub use store::Postgres;
pub use transaction_lock::with_row_lock;
