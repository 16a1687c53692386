//! Stores in memory for tests of the drivers: they misbehave on command and can be looked into.
//!
//! | where | what |
//! |---|---|
//! | [`MemoryQueue`] | a store of the queue family |
//! | [`MemoryNode`] | a node of the quorum family: its specification behind a mutex |
//! | [`Fault`] | how either misbehaves |

mod fault;
mod node;
mod queue;

pub use fault::Fault;
pub use node::MemoryNode;
pub use queue::{MemoryPlace, MemoryQueue};
