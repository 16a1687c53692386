//! The line family: an ordered line of entries, where the first in line holds.
//!
//! 1. A request joins the line: its entry lives as long as its client's session with the store.
//! 2. A pure function, [`turn`], says whose turn it is. A join whose own answer shows that it is
//!    first is granted at once.
//! 3. Whoever waits watches only what can make it its turn (for an exclusive request the entry just
//!    ahead), and looks again on a slow timer, because watches get lost.
//! 4. Who waited proves with a write that it still owns its place, and believes that write's lease.
//! 5. To release is to leave the line; a request that left never comes back.
//!
//! | where | what |
//! |---|---|
//! | [`QueueStore`] | what a store must offer |
//! | [`Line`], [`Entry`], [`turn`] | the line, and whose turn it is |
//! | [`MemoryQueue`] | a line store in memory, with faults on command |
//! | [`QueueDriver`] | the driver |

mod driver;
mod entry;
mod hold;
mod housekeeper;
mod inspect;
mod memory;
mod registry;
mod store;
mod turn;
mod wait;

pub use driver::QueueDriver;
pub use entry::{Entry, Line, Spot};
pub use inspect::{info, status};
pub use memory::{MemoryPlace, MemoryQueue};
pub use store::{Joined, Keeping, Lease, Proven, QueueStore};
pub use turn::{Turn, holders, turn};
