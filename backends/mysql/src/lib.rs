//! `mysql://` and `mariadb://`: locks in tables of MySQL or MariaDB.

mod beat;
mod bell;
#[cfg(test)]
mod differential;
mod door;
mod fast;
mod ledger;
mod line;
mod look;
mod open;
mod options;
mod promises;
mod record;
mod row_lock;
mod schema;
mod settings;
mod sql;
mod store;
mod sweep;
mod tokens;
mod trouble;
mod versions;

pub use ledger::Collisions;
pub use open::{SCHEMES, open, open_to_look};
pub use options::{Algorithm, MysqlOptions};
pub use promises::capability;
pub use row_lock::{RowLock, with_row_lock};
pub use schema::schema;
pub use store::Mysql;
