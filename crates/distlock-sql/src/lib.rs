//! What the SQL stores of distlock share.
//!
//! * [`ConnectionWorker`]: a connection that belongs to the library's own thread, so that a caller who goes
//!   away never leaves a statement half done.
//! * [`ConnectionGroup`]: several of those, while there is much to do.
//! * [`Tied`]: a connection that a session lock is tied to, used in turn and never half.
//! * [`Seats`]: so many of those, used again when nothing is tied to them any more.
//! * [`ServerMonitor`]: one that notices when the server goes, so that whoever holds such a lock is told.
//! * [`Versioned`]: the version algorithm, a compare-and-set on one row, over any table that can do
//!   the few things of [`Rows`].

mod cas_worker;
mod connection_group;
mod connection_worker;
mod rows;
mod server_monitor;
mod session_pool;
mod tied;
mod version_store;

pub use connection_group::ConnectionGroup;
pub use connection_worker::{ConnectionWorker, Opens, Trouble, Work};
pub use rows::{Page, Row, Rows, Write};
pub use server_monitor::{Dozes, ServerMonitor};
pub use session_pool::{Seat, Seats};
pub use tied::Tied;
pub use version_store::Versioned;
