//! A line, a clock that stands still, and clients.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use distlock_core::backend::{Ask, Attempt, Backend, Grant};
use distlock_core::queue::QueueDriver;
use distlock_core::{Clock, Error, ReqId};
use distlock_testkit::doubles::MemoryQueue;

use crate::clockwork;
pub(crate) use crate::clockwork::{TTL, ask, name, poll_once, waiting};

pub(crate) struct Scene {
    pub(crate) clock: Clock,
    pub(crate) store: MemoryQueue,
}

/// An acquire under way.
pub(crate) type Asking<'a> = Pin<Box<dyn Future<Output = Result<Attempt, Error>> + Send + 'a>>;

impl Scene {
    pub(crate) fn new() -> Self {
        let clock = Clock::held();
        Self { store: MemoryQueue::new("line", clock.clone()), clock }
    }

    pub(crate) fn client(&self) -> QueueDriver<MemoryQueue> {
        QueueDriver::new(self.store.client())
    }

    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        clockwork::run(&self.clock, work).await
    }

    pub(crate) async fn tick(&self) {
        clockwork::tick(&self.clock).await;
    }

    pub(crate) async fn until(&self, what: &str, so: impl Fn() -> bool) {
        clockwork::until(&self.clock, what, so).await;
    }

    /// The requests in line, first in line first.
    pub(crate) fn line(&self) -> Vec<ReqId> {
        self.store.peek(&name()).entries.iter().filter_map(|e| e.req).collect()
    }

    /// A lock that is surely granted.
    pub(crate) async fn lock(&self, client: &QueueDriver<MemoryQueue>, ask: &Ask) -> Grant {
        granted(self.run(client.acquire(Arc::new(ask.clone()), None)).await)
    }

    /// An acquire that stands in line now.
    pub(crate) async fn stands<'a>(
        &self,
        client: &'a QueueDriver<MemoryQueue>,
        ask: &'a Ask,
    ) -> Asking<'a> {
        let mut asking: Asking<'a> = Box::pin(client.acquire(Arc::new(ask.clone()), None));
        let early = poll_once(asking.as_mut()).await;
        assert!(early.is_none(), "it is held, but {early:?}");
        assert!(self.line().contains(&ask.req), "not in line");
        asking
    }
}

pub(crate) fn granted(answer: Result<Attempt, Error>) -> Grant {
    match answer.expect("an answer") {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(status) => panic!("busy: {status}"),
    }
}
