//! The quorum family: one lock out of a majority of independent nodes.

mod node;
mod state;
mod step;

pub use node::{
    Ballot, Bid, Commit, Committed, Generation, Heal, NodeDue, NodeKept, Place, QuorumNode, Round,
    Vote,
};
pub use state::{
    NodeHold, NodeOp, NodePhase, NodeReply, NodeRules, NodeSpent, NodeState, NodeStep, NodeWaiter,
    Who,
};
