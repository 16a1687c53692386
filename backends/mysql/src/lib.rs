//! `mysql://` and `mariadb://`: locks in tables of MySQL or MariaDB.

mod capability;
mod connector;
#[cfg(test)]
mod differential;
mod errors;
mod fast_path;
mod heartbeat;
mod inspect;
mod open;
mod options;
mod queue;
mod record;
mod row_lock;
mod schema;
mod settings;
mod sql;
mod store;
mod sweep;
mod tokens;
mod transaction;
mod version_store;
mod wakeup;

pub use capability::capability;
pub use open::{SCHEMES, open, open_to_look};
pub use options::{Algorithm, MysqlOptions};
pub use row_lock::{RowLock, with_row_lock};
pub use schema::schema;
pub use store::Mysql;
pub use transaction::Collisions;
