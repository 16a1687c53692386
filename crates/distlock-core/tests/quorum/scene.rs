//! Some nodes, a clock that stands still, and clients.

use std::future::Future;
use std::sync::Arc;

use distlock_core::backend::{Ask, Attempt, Backend, Due, Grant, Kept};
use distlock_core::quorum::{NodeState, QuorumDriver};
use distlock_core::{Clock, Error, QueueStatus, ReqId};
use distlock_testkit::doubles::{Fault, MemoryNode};

use crate::clockwork;
pub(crate) use crate::clockwork::{TTL, ask, name, poll_once, waiting};

pub(crate) struct Scene {
    pub(crate) clock: Clock,
    pub(crate) nodes: Vec<MemoryNode>,
}

impl Scene {
    pub(crate) fn of(size: usize) -> Self {
        Self::on(Clock::held(), size)
    }

    pub(crate) fn on(clock: Clock, size: usize) -> Self {
        let nodes = (0..size).map(|i| MemoryNode::new(format!("node{i}"), clock.clone()));
        Self { nodes: nodes.collect(), clock }
    }

    pub(crate) fn client(&self) -> QuorumDriver<MemoryNode> {
        let nodes = self.nodes.iter().map(MemoryNode::client).collect();
        QuorumDriver::new("quorum", nodes).expect("a quorum")
    }

    /// The first nodes fail like this, the others not at all.
    pub(crate) fn faults(&self, faults: &[Fault]) {
        let faults = faults.iter().copied().chain(std::iter::repeat(Fault::None));
        self.nodes.iter().zip(faults).for_each(|(n, f)| n.fault(f));
    }

    pub(crate) fn states(&self) -> Vec<NodeState> {
        self.nodes.iter().map(|n| n.peek(&name())).collect()
    }

    /// How many nodes are owned by a request.
    pub(crate) fn owned(&self, req: ReqId) -> usize {
        let mine = |s: &NodeState| s.hold.as_ref().is_some_and(|h| h.who.req == req);
        self.states().iter().filter(|s| mine(s)).count()
    }

    /// Whether nobody owns or waits anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.states().iter().all(|s| s.hold.is_none() && s.line.is_empty())
    }

    /// Runs a future, and time with it: a millisecond whenever it waits.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        clockwork::run(&self.clock, work).await
    }

    /// A millisecond passes, and the library's own thread does what it brings.
    pub(crate) async fn tick(&self) {
        clockwork::tick(&self.clock).await;
    }

    /// Lets time run until something is so.
    pub(crate) async fn until(&self, what: &str, so: impl Fn() -> bool) {
        clockwork::until(&self.clock, what, so).await;
    }

    pub(crate) async fn try_lock(
        &self,
        client: &QuorumDriver<MemoryNode>,
        ask: &Ask,
    ) -> Result<Result<Grant, QueueStatus>, Error> {
        Ok(match self.run(client.acquire(Arc::new(ask.clone()), None)).await? {
            Attempt::Granted(grant) => Ok(grant),
            Attempt::Busy(status) => Err(status),
        })
    }

    /// A lock that is surely granted.
    pub(crate) async fn lock(&self, client: &QuorumDriver<MemoryNode>, ask: &Ask) -> Grant {
        self.try_lock(client, ask).await.expect("an answer").expect("a grant")
    }

    pub(crate) async fn keep(&self, client: &QuorumDriver<MemoryNode>, ask: &Ask) -> Kept {
        let due = [Due { key: ask.key(), ttl: ask.ttl }];
        self.run(client.keep(&due)).await.pop().expect("an answer")
    }
}
