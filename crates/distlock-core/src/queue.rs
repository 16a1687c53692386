//! The queue family: an ordered queue of entries, where the first in the queue holds.
//!
//! 1. A request joins the queue: its entry lives as long as its client's session with the store.
//! 2. A pure function, [`turn`], says whose turn it is. A join whose own answer shows that it is
//!    first is granted at once.
//! 3. A waiter watches only what can make it its turn (for an exclusive request the entry just
//!    ahead), and looks again on a slow timer, because watches get lost.
//! 4. A waiter whose turn came proves with a write that it still owns its place, and believes that
//!    write's lease.
//! 5. To release is to leave the queue; a request that left never comes back.
//!
//! | where | what |
//! |---|---|
//! | [`QueueStore`] | what a store must offer |
//! | [`Snapshot`], [`Entry`], [`turn`] | the queue, and whose turn it is |
//! | [`QueueDriver`] | the driver |

mod driver;
mod housekeeper;
mod inspect;
mod registry;
mod snapshot;
mod store;
mod tokens;
mod wait;

pub use crate::backend::Lease;
pub use driver::QueueDriver;
pub use inspect::{info, status};
pub use snapshot::{Entry, Snapshot, Spot, Turn, holders, turn};
pub use store::{Joined, Keeping, Proven, QueueStore};
