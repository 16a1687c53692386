//! The pure specification of a lock at one node of a quorum: [`NodeState`] and its words.
//!
//! The memory node runs it as it is; the scripts of other nodes are translations of it, held to it
//! by generated sequences of operations run on both, and the model of the quorum's tokens calls it.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::node::{Bid, Commit, Committed, Generation, Heal, NodeDue, Round, Vote};
use crate::state::End;
use crate::{Effects, Force, Forced, Label, LossReason, Micros, Owner, Released, ReqId, Token};

/// The state of one lock at one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct NodeState {
    /// The hold here, if it is held.
    pub hold: Option<NodeHold>,
    /// The highest token this node knows. It outlives every hold.
    pub hi: u64,
    /// The last ownership. It outlives every hold too.
    pub generation: u64,
    /// The waiters, in the order of tickets.
    pub line: Vec<NodeWaiter>,
    /// Rounds and requests that must never come back.
    pub tombstones: VecDeque<NodeTombstone>,
}

/// One ownership.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeHold {
    /// Its request and owner.
    pub who: Who,
    /// Which try of the request took it.
    pub round: Round,
    /// Which ownership it is.
    pub generation: Generation,
    /// The token it is held with, once this node knows.
    pub token: Option<Token>,
    /// Whether the proposed token was accepted, for replays.
    pub accepted: bool,
    /// The base it was told, for replays.
    pub base: u64,
    /// Since when.
    pub granted: Micros,
    /// Until when.
    pub expires: Micros,
    /// A release before this age takes effect only then.
    pub min_hold: Duration,
    /// How far it is.
    pub phase: NodePhase,
    /// Taken in a renewal round and not yet counted by its holder.
    pub healed: bool,
}

/// A request, as a node knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Who {
    /// Which request.
    pub req: ReqId,
    /// The owner of the request.
    pub owner: Owner,
    /// What others see.
    pub label: Label,
    /// Where it can be told things; the node's affair.
    pub via: String,
}

/// How far an ownership is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePhase {
    /// Held, or asked for by a request that does not have a majority yet.
    Held,
    /// Released, but its `min_hold` is not over.
    Lingering,
    /// Taken away by an operator; blocks others until its lease ends.
    Revoked,
}

/// One waiter.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeWaiter {
    /// The request that waits.
    pub who: Who,
    /// Its place: lower is earlier, and of two alike the lower request id.
    pub ticket: u64,
    /// Since when this node knows of it.
    pub since: Micros,
    /// Dropped at this moment unless heard of before.
    pub deadline: Micros,
    /// A majority of nodes had it in the queue: it keeps others out.
    pub backed: bool,
}

/// Rounds of a request that must never come back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeTombstone {
    /// Which request.
    pub req: ReqId,
    /// The last round that is refused; the whole request with [`Round::ALL`].
    pub upto: Round,
    /// How it ended.
    pub end: End,
    /// Remembered until then.
    pub until: Micros,
}

/// The numbers a node may set for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRules {
    /// How long a request that ended is remembered, beyond the lease it could have had.
    pub tombstone: Duration,
    /// At most this many are remembered.
    pub spent_cap: usize,
    /// A proposed token this far ahead of the node's clock is not accepted.
    pub ahead: Duration,
    /// A proposed token this far behind the node's clock is not accepted.
    pub slack: Duration,
    /// A ticket further than this from the node's clock gets no place in the queue.
    pub window: Duration,
    /// Nothing is granted before this: the node may have forgotten leases that still run.
    pub opens: Micros,
}

impl Default for NodeRules {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            tombstone: second * 60,
            spent_cap: 4096,
            ahead: second,
            slack: second,
            window: second,
            opens: Micros(0),
        }
    }
}

/// An operation on a lock at one node.
#[derive(Clone, Debug)]
pub enum NodeOp {
    /// Asks, asks again, or polls. The text says where the request can be told things.
    Propose(Bid, String),
    /// Takes a free lock again for the request that holds it at other nodes.
    Heal(Heal, String),
    /// Stores a token while still owner.
    Commit(Commit),
    /// Extends an ownership.
    Renew(NodeDue),
    /// Gives back and ends the request.
    Release(ReqId),
    /// Undoes rounds up to this one.
    Cancel(ReqId, Round),
    /// Takes the lock away.
    Force(Option<Token>, Force),
}

/// The answer to an operation.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeReply {
    /// To a proposal or a heal.
    Vote(Vote),
    /// To a commit.
    Committed(Committed),
    /// To a renewal: still owned.
    Kept {
        /// Which ownership.
        generation: Generation,
        /// What is left.
        left: Duration,
        /// With which token, if known.
        token: Option<Token>,
        /// How many others wait.
        waiters: u32,
    },
    /// To a renewal: not owned.
    Lost(LossReason),
    /// To a release.
    Released(Released),
    /// To a cancel.
    Cancelled,
    /// To a force.
    Forced(Forced),
}

/// The result of one step.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeStep {
    /// The answer.
    pub reply: NodeReply,
    /// The wake-ups to send.
    pub effects: Effects,
}

impl NodeState {
    /// A lock nobody has ever held here, whose tokens and generations start above `floor`.
    #[must_use]
    pub fn above(floor: u64) -> Self {
        Self { hi: floor, generation: floor, ..Self::default() }
    }

    /// Whether nothing but the highest token and generation needs remembering.
    #[must_use]
    pub fn is_idle(&self, now: Micros) -> bool {
        self.hold.as_ref().is_none_or(|h| h.expires <= now)
            && self.line.iter().all(|w| w.deadline <= now)
            && self.tombstones.iter().all(|s| s.until <= now)
    }
}
