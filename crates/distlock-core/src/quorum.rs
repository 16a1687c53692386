//! The quorum family: one lock out of a majority of independent nodes.
//!
//! 1. A bid goes to all nodes at once, with a proposed token; each call is bounded, so that a dead
//!    node costs little and a slow one is not waited for.
//! 2. Accepted by a majority, it is granted; granted but not accepted, the token is written back
//!    to those that are still owned, and a majority of these grants. What counts is what is left
//!    of the lease after the last answer, from before the first question.
//! 3. Whatever fails is undone at every node; nodes that do not answer are told until they do.
//! 4. A renewal counts only ownerships that were never interrupted. Nodes that lost theirs are
//!    taken again, and count from the next round on.
//! 5. Waiters stand in all queues under one ticket, so that the nodes agree on the next one.
//!
//! | where | what |
//! |---|---|
//! | [`QuorumNode`] | what a node must offer |
//! | [`NodeState`] | the pure specification of a node |
//! | [`QuorumDriver`] | the driver |

mod attempt;
mod fan_out;
mod holds;
mod inspect;
mod node;
mod node_time;
mod release;
mod renewal;
mod state;
mod step;
mod unacknowledged;
mod wait;
mod waiters;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fan_out::Fan;
use holds::{Slot, SlotState};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use unacknowledged::{Ending, Unacknowledged};

pub use node::{
    Ballot, Bid, Commit, Committed, Generation, Heal, NodeDue, NodeKept, Position, QuorumNode,
    Round, Vote,
};
pub use state::{
    NodeHold, NodeOp, NodePhase, NodeReply, NodeRules, NodeState, NodeStep, NodeTombstone,
    NodeWaiter, Who,
};

use crate::{
    Ask, Attempt, Backend, Clock, ClockReading, Due, Error, Event, Fence, Force, Forced, FullName,
    Fut, Kept, Key, Kind, LockInfo, Mutex, Query, Released, Store, StoreInfo, Token, Wake, Watcher,
};

/// How long a node may take at most, in microseconds; a tenth of the TTL when that is less.
const PER_NODE: u64 = 50_000;
/// No node gets less, however small the TTL: below it even a healthy one would seem dead.
const LEAST: Duration = Duration::from_millis(5);
/// How long a node may take to list locks.
const CALL: Duration = Duration::from_secs(10);
/// So many nodes fit the driver's bookkeeping, and more make no lock safer.
const MOST_NODES: usize = 63;

/// A majority of nodes as a [`Backend`].
pub struct QuorumDriver<N: QuorumNode> {
    inner: Arc<Inner<N>>,
    events: Mutex<Option<UnboundedReceiver<Event>>>,
}

struct Inner<N> {
    nodes: Vec<Arc<Node<N>>>,
    site: String,
    majority: usize,
    /// Whether the nodes keep counters, so that tokens have an order and waiters a queue.
    ordered: bool,
    /// In microseconds.
    per_node: AtomicU64,
    drift: node_time::NodeTime,
    /// The last round that was numbered here.
    rounds: AtomicU64,
    waiters: waiters::Waiters,
    holds: holds::Holds,
    news: UnboundedSender<Event>,
}

/// One node, and what the driver remembers of it.
struct Node<N> {
    node: N,
    /// It did not answer when last asked: nobody waits for it if the others suffice.
    ailing: AtomicBool,
    /// Its lost holds are being taken again: by one task at a time.
    healing: AtomicBool,
    debts: Unacknowledged,
}

impl<N> Node<N> {
    fn answered(&self, well: bool) {
        self.ailing.store(!well, Ordering::Release);
    }

    fn ails(&self) -> bool {
        self.ailing.load(Ordering::Acquire)
    }
}

impl<N: QuorumNode> QuorumDriver<N> {
    /// Drives nodes that are told apart by nothing but their place, under the name of `site`.
    ///
    /// # Errors
    /// [`Kind::Usage`] unless the number of nodes is odd and at least three.
    pub fn new(site: impl Into<String>, nodes: Vec<N>) -> Result<Self, Error> {
        let size = nodes.len();
        if size < 3 || size.is_multiple_of(2) || size > MOST_NODES {
            return Err(Error::new(Kind::Usage, format!("{size} nodes make no quorum"))
                .with_hint("name an odd number of independent nodes: 3, 5 or 7"));
        }
        let ordered = nodes[0].info().capability.fence > Fence::Unordered;
        let nodes = nodes.into_iter().map(|node| {
            let (ailing, healing) = (AtomicBool::new(false), AtomicBool::new(false));
            Arc::new(Node { node, ailing, healing, debts: Unacknowledged::default() })
        });
        let (news, events) = unbounded_channel();
        let inner = Arc::new(Inner {
            nodes: nodes.collect(),
            site: site.into(),
            majority: size / 2 + 1,
            ordered,
            per_node: AtomicU64::new(PER_NODE),
            drift: node_time::NodeTime::new(size),
            rounds: AtomicU64::new(0),
            waiters: waiters::Waiters::default(),
            holds: holds::Holds::default(),
            news,
        });
        Ok(Self { inner, events: Mutex::new(Some(events)) }.listening())
    }

    /// Sets how long a node may take at most to answer; a tenth of the TTL counts when that is
    /// less.
    #[must_use]
    pub fn per_node(self, bound: Duration) -> Self {
        let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        self.inner.per_node.store(micros, Ordering::Release);
        self
    }

    /// Whether some node has still to be told of the end of a request: it did not answer, and is
    /// told again in the background. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn owes(&self) -> bool {
        self.inner.nodes.iter().any(|n| !n.debts.is_empty())
    }

    fn listening(self) -> Self {
        for (i, n) in self.inner.nodes.iter().enumerate() {
            // Weak: a node keeps its event sink, and the driver keeps the node.
            let inner = Arc::downgrade(&self.inner);
            n.node.listen(Arc::new(move |wake| {
                let Some(inner) = inner.upgrade() else { return };
                match wake {
                    Wake::Turn(req) | Wake::Confirm(req) => inner.waiters.wake(i, &req),
                    Wake::Everybody => inner.waiters.wake_all(),
                    Wake::Repeated(_) => {} // a release leaves a tombstone at a node
                    Wake::Event(event) => inner.hear(event),
                }
            }));
        }
        self
    }
}

impl<N: QuorumNode> Inner<N> {
    /// The first node's promises and clock, and the name of the whole quorum.
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { site: &self.site, ..self.nodes[0].node.info() }
    }

    fn clock(&self) -> &Clock {
        self.info().clock
    }

    /// Now, as a question leaves.
    fn reading(&self) -> ClockReading {
        self.info().reading()
    }

    /// How long a node may take: more would eat the lease.
    fn bound(&self, ttl: Duration) -> Duration {
        let most = Duration::from_micros(self.per_node.load(Ordering::Acquire));
        most.min(ttl / 10).max(LEAST)
    }

    /// One node's word about a hold is no more than a reason to ask all of them.
    fn hear(&self, event: Event) {
        let (key, contended) = match event {
            Event::Contended(key) => (key, true),
            Event::Lost(key, _) | Event::InDoubt(key) => (key, false),
            Event::Missed => return,
        };
        let reqs =
            self.holds.of(&key.req).map(|slot| slot.state.lock().reqs.clone()).unwrap_or_default();
        for req in reqs {
            let key = Key { lock: key.lock.clone(), req };
            let event = if contended { Event::Contended(key) } else { Event::InDoubt(key) };
            let _ = self.news.send(event);
        }
    }
}

impl<N: QuorumNode> Store for QuorumDriver<N> {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(self)
    }
}

impl<N: QuorumNode> Backend for QuorumDriver<N> {
    fn info(&self) -> StoreInfo<'_> {
        self.inner.info()
    }

    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(self.inner.acquire(ask, seen))
    }

    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        Box::pin(self.inner.abandon(key))
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(self.inner.keep(due))
    }

    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>> {
        Box::pin(self.inner.release(key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>> {
        Box::pin(self.inner.inspect(query))
    }

    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>> {
        Box::pin(self.inner.force(lock, token, how))
    }

    fn detach(&self, key: &Key) -> bool {
        self.inner.holds.detach(&key.req)
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            for n in &self.inner.nodes {
                n.debts.close();
            }
            let mut fan = Fan::new(self.clock(), CALL, self.inner.nodes.len());
            for (i, n) in self.inner.nodes.iter().enumerate() {
                fan.call(i, n.deref().node.close());
            }
            while fan.next().await.is_some() {}
        })
    }
}
