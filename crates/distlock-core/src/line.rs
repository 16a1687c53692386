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
//! | [`LineStore`] | what a store must offer |
//! | [`Line`], [`Entry`], [`turn`] | the line, and whose turn it is |
//! | [`MemoryLine`] | a line store in memory, with faults on command |
//! | [`Lined`] | the driver |

mod desk;
mod entry;
mod hold;
mod lined;
mod memory;
mod steward;
mod store;
mod turn;
mod view;
mod wait;

pub use entry::{Entry, Line, Spot};
pub use lined::Lined;
pub use memory::{MemoryLine, MemoryPlace};
pub use store::{Joined, Keeping, Lease, LineStore, Proven};
pub use turn::{Turn, holders, turn};
pub use view::{info, standing};
