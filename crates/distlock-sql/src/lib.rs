//! What the SQL stores of distlock share.
//!
//! * [`ConnectionWorker`]: a connection that belongs to the library's own thread, so that a caller
//!   that goes away never leaves a statement half done.
//! * [`ConnectionGroup`]: several of those, while there is much to do.
//! * [`SessionPool`]: a bounded number of connections that session locks are tied to, each used in
//!   turn and never half, and used again when nothing is tied to it any more.
//! * [`ServerMonitor`]: one that notices when the server goes, so that holders of such locks are
//!   told.
//! * [`Versioned`]: the version algorithm, a compare-and-set on one row, over any table that can do
//!   the few things of [`Rows`].

mod capability;
mod cas_worker;
mod connection_group;
mod connection_worker;
mod effects;
mod rows;
mod server_monitor;
mod session_pool;
mod version_store;

pub use capability::capability;
pub use connection_group::ConnectionGroup;
pub use connection_worker::{ConnectionWorker, Opens, Trouble, Work};
pub use effects::wakes;
pub use rows::{Page, Row, Rows, Write};
pub use server_monitor::{Dozes, ServerMonitor};
pub use session_pool::{PooledConnection, SessionPool};
pub use version_store::Versioned;

/// The work of a call on a connection: `work!(|conn, kept, …| future)`. A call may be made twice, so
/// each time has its own clone of what it keeps.
#[macro_export]
macro_rules! work {
    (|$conn:ident $(, $kept:ident)*| $body:block) => {
        move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move $body)
        }
    };
    (|$conn:ident $(, $kept:ident)*| $call:expr) => {
        $crate::work!(|$conn $(, $kept)*| { $call.await })
    };
}
