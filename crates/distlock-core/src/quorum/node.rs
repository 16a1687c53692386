//! What one node of a quorum must offer: its textbook moves, and nothing else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Ask, Error, EventSink, Force, Forced, FullName, Key, LockInfo, LossReason, Micros, Query,
    QueueStatus, Released, StoreInfo, Token,
};

/// Which try of a request. A try that failed is undone under its number, and the next one has a
/// higher number, so that a late arrival of the first is not taken for the second.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Round(pub u64);

impl Round {
    /// Every try there was or will be: ends the request itself. Exact in a double, too.
    pub const ALL: Round = Round((1 << 53) - 1);
}

/// Which very ownership of a lock at one node. It changes whenever the lock is taken anew there,
/// also by the same request: a request that quotes it proves that nobody came between.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// A place in a node's queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Position {
    /// The queue is ordered by this and not by arrival, so that all nodes agree on its head:
    /// microseconds of the nodes' time, as the client estimates it, when the wait began.
    pub ticket: u64,
    /// Dropped from the queue when not heard of for this long.
    pub wait: Duration,
    /// In its last round a majority of nodes had it in the queue. Only then does it keep others
    /// out: a client that reaches a minority must not stop everybody.
    pub backed: bool,
}

/// A client's wish to hold a lock at one node.
#[derive(Clone, Debug)]
pub struct Bid {
    /// What is asked for: request, owner, TTL, `min_hold`, label.
    pub ask: Arc<Ask>,
    /// Which try it is.
    pub round: Round,
    /// The token the client would like to hold it with.
    pub token: Token,
    /// Its place in the queue; `None` does not stand in the queue (and leaves it, if it stood
    /// there).
    pub place: Option<Position>,
}

/// A node's answer to a bid.
#[derive(Clone, PartialEq, Debug)]
pub enum Vote {
    /// The request owns the lock here.
    Granted {
        /// The proposed token was above every token this node knows and near enough to its clock;
        /// it was stored in the same atomic step.
        accepted: bool,
        /// The highest token this node knew before, or its clock if that is higher. `None` from a
        /// node without a counter: then the quorum's tokens have no order.
        base: Option<u64>,
        /// Which ownership this is; the same for a replay.
        generation: Generation,
        /// What is left of the lease: less than the TTL for a replay.
        left: Duration,
        /// How many others stand in the queue.
        waiters: u32,
    },
    /// Held by another request, or kept for one that is ahead in the queue.
    Busy {
        /// The holder, how many are ahead, when something could change.
        status: QueueStatus,
        /// Whether the request stands in the queue here now. False for one that does not want to,
        /// and for a ticket that is too far from this node's clock.
        queued: bool,
    },
    /// The node grants nothing to anybody for now: it may have forgotten leases that still run.
    NotYet {
        /// When to ask again.
        left: Duration,
        /// Why, for people.
        why: String,
    },
    /// This round, or the whole request, was cancelled or released before.
    Tombstoned,
}

/// A vote, and what time it was at the node.
#[derive(Clone, PartialEq, Debug)]
pub struct Ballot {
    /// The vote.
    pub vote: Vote,
    /// The node's wall clock, from which clients estimate the nodes' time for tokens and tickets;
    /// `None` from a node that does not tell. Never used for deadlines.
    pub at: Option<Micros>,
}

/// A wish to own again, at one node, a lock that its client holds by the others.
#[derive(Clone, Debug)]
pub struct Heal {
    /// What was asked for.
    pub ask: Arc<Ask>,
    /// The round that was granted.
    pub round: Round,
    /// The token it is held with.
    pub token: Token,
}

/// A conditional write-back: this token, if the request still owns the lock as it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The request.
    pub key: Key,
    /// Its round.
    pub round: Round,
    /// The ownership that was told by the vote.
    pub generation: Generation,
    /// The token to store.
    pub token: Token,
}

/// The answer to a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Committed {
    /// Stored while still owner.
    Yes,
    /// Not the owner any more; nothing was stored.
    Lost,
}

/// One hold that is due for renewal at one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDue {
    /// The request.
    pub key: Key,
    /// The ownership to extend; quoting it settles one that was healed. `None` takes any ownership
    /// of this request but one that was healed and not yet settled: how a hold is taken up by its
    /// ticket alone, without reviving one whose heal came too late.
    pub generation: Option<Generation>,
    /// The lease wanted from now on.
    pub ttl: Duration,
}

/// The answer to one renewal at one node.
#[derive(Clone, Debug)]
pub enum NodeKept {
    /// Still owned.
    Held {
        /// Which ownership.
        generation: Generation,
        /// What is left of the lease.
        left: Duration,
        /// The token this node has for the hold; `None` if it never learnt one.
        token: Option<Token>,
        /// How many others stand in the queue.
        waiters: u32,
    },
    /// Not owned (any more), or not by that generation.
    Lost(LossReason),
    /// No answer.
    Unknown(Error),
}

/// One of several independent nodes; a majority of them makes a lock.
///
/// For authors of stores; users never see it. [`QuorumDriver`](crate::quorum::QuorumDriver) turns
/// an odd number of them into a [`Backend`](crate::backend::Backend): majorities, tokens, waiting,
/// healing and re-entry are written there, once.
///
/// # Contract
/// * Each call is one atomic step of [`NodeState`](crate::quorum::NodeState), by its rules; a
///   batch is a sequence of such steps. A node knows nothing of other nodes.
/// * Only the node's clock counts, read inside the atomic step. Durations travel, moments do not;
///   tokens and tickets are numbers on the node's wall clock, compared inside the step.
/// * Every call is idempotent by request and round. `release` and `cancel` leave a tombstone also
///   for requests that never arrived, so that one that was overtaken finds it.
/// * No call waits for a lock. The driver bounds each call in time and drops it then: a dropped
///   call may or may not have happened, and the driver follows up with a `cancel`.
/// * A call that can be seen to be hopeless (no connection) fails at once; connecting anew goes on
///   in the background and not in the caller's bound.
/// * A node that may have lost data answers [`Vote::NotYet`] to `propose` (but to a replay) and
///   `heal` until every lease and every token it may have forgotten is past; it goes on serving
///   the other calls.
/// * A node without atomic steps, counters and tombstones (the textbook recipe) says
///   [`Fence::Unordered`](crate::Fence) in its capability, gives no `base`, ignores the place in
///   queue, and makes its generation from the round.
/// * `renew`, `heal` and `cancel` are called on the library's own thread, the others anywhere (see
///   [`on_library_thread`](crate::engine::on_library_thread)).
pub trait QuorumNode: Send + Sync + 'static {
    /// What this node is, and what a quorum of such nodes promises. The driver shows the first node's
    /// promises and clock as its own; the clock is the same for all nodes of a quorum.
    fn info(&self) -> StoreInfo<'_>;

    /// A number that changes whenever the node may have become another server than before: with
    /// each new connection. An attempt that sees it change trusts only a commit.
    fn link(&self) -> u64;

    /// Asks, asks again, or polls: the same round once more is answered with the same grant.
    fn propose(&self, bid: &Bid) -> impl Future<Output = Result<Ballot, Error>> + Send;

    /// Takes locks that are free here for requests that hold them by a majority of other nodes,
    /// past the waiters. Answers in the same order.
    fn heal(&self, heals: &[Heal]) -> impl Future<Output = Vec<Result<Vote, Error>>> + Send;

    /// Stores a token, if the request still owns the lock by that very generation.
    fn commit(&self, commit: &Commit) -> impl Future<Output = Result<Committed, Error>> + Send;

    /// Renews holds: one call for all, answers in the same order.
    fn renew(&self, due: &[NodeDue]) -> impl Future<Output = Vec<NodeKept>> + Send;

    /// Gives a hold back, minding its `min_hold`, and ends the request. Replayed, it answers as it
    /// did the first time.
    fn release(&self, key: &Key) -> impl Future<Output = Result<Released, Error>> + Send;

    /// Undoes all rounds of a request up to this one, whatever became of them, and keeps them from
    /// coming back. [`Round::ALL`] takes it out of the queue too; any other leaves its place.
    fn cancel(&self, key: &Key, upto: Round) -> impl Future<Output = Result<(), Error>> + Send;

    /// Lists locks as this node sees them.
    fn inspect(&self, query: &Query) -> impl Future<Output = Result<Vec<LockInfo>, Error>> + Send;

    /// Takes a lock away at this node.
    fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> impl Future<Output = Result<Forced, Error>> + Send;

    /// Told once, before any other call: where wake-ups go. `Turn` for the head of the queue when a
    /// hold ended, `Everybody` after a gap in listening, events about holds as hints.
    fn listen(&self, sink: EventSink);

    /// Ends connections and threads.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
