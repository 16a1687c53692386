//! `sqlite:PATH`: one table file shared by the processes of a host.
//!
//! 1. A call becomes a job for a worker thread (`worker`); the worker takes everything that is
//!    queued and runs it in one `BEGIN IMMEDIATE … COMMIT` (`ledger`).
//! 2. In it each lock's state is read once, [`LockState::step`](distlock_core::state::LockState)
//!    is run as it is for every job, and what changed is written once.
//! 3. Time is `CLOCK_BOOTTIME`, read after the write lock is ours. All processes share it; a new
//!    boot id means that every lease is over (`boot`).
//! 4. After the commit the callers are answered, and whoever was promoted, revoked or is waited
//!    for is told through its process's datagram socket (`peers`).
//! 5. A promoted waiter whose socket nobody reads is dead: its promotion is withdrawn at once and
//!    the next one is told.
//! 6. Tokens never go back: `hi` is in the row, and a row that is swept leaves it in the floor.

mod database_file;
mod driver;
mod errors;
mod log;
mod options;
mod peer_socket;
mod schema;
mod store;
mod sweep;
mod tombstones;
mod transaction;
mod worker;

pub use options::{SqliteOptions, Sync, capability};
pub use store::Sqlite;
