//! `sqlite:PATH`: one table file shared by the processes of a host.
//!
//! 1. A call becomes a job for a worker thread (`worker`); the worker takes everything that is
//!    queued and runs it in one `BEGIN IMMEDIATE … COMMIT` (`transaction`).
//! 2. In it each lock's state is read once, [`LockState::step`](distlock_core::state::LockState)
//!    is run as it is for every job, and what changed is written once (`lock_row`): of a long queue
//!    only the rows of waiters that changed (`waiters`).
//! 3. Time is `CLOCK_BOOTTIME`, read after the write lock is ours. All processes share it; a new
//!    boot id means that every lease is over.
//! 4. After the commit the callers are answered; promotions, revocations and contention are sent to
//!    the datagram socket of the process concerned (`peer_socket`).
//! 5. A promoted waiter whose socket nobody reads is dead: its promotion is withdrawn at once and
//!    the next one is told.
//! 6. Tokens never go back: `hi` is in the row, and a row that is swept leaves it in the floor.

mod capability;
mod database_file;
mod errors;
mod inspect;
mod lock_row;
mod log;
mod open;
mod options;
mod peer_socket;
mod schema;
mod store;
mod sweep;
mod tombstones;
mod transaction;
mod waiters;
mod worker;

pub use capability::{capabilities, capability};
pub use open::{open, open_to_look};
pub use options::{SqliteOptions, Sync};
pub use store::Sqlite;
