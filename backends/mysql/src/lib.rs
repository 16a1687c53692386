//! `mysql://` and `mariadb://`: locks in tables of MySQL or MariaDB.

mod capability;
mod cas_store;
mod connector;
#[cfg(test)]
mod differential;
mod errors;
mod fast_path;
mod inspect;
mod open;
mod options;
mod queue;
mod record;
mod row_lock;
mod schema;
mod server_variables;
mod slow_path;
mod sql;
mod store;
mod sweep;
mod waiter_heartbeat;
mod wakeup;

pub use capability::{capabilities, capability};
pub use open::{open, open_to_look};
pub use options::{Algorithm, MysqlOptions};
pub use row_lock::with_row_lock;
pub use schema::schema;
pub use slow_path::Collisions;
pub use store::Mysql;
