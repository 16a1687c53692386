//! The connection to one server of a quorum: a call either goes out at once or fails at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_core::lease::{EventSink, Wake};
use distlock_core::{Clock, Error, ReqId};
use redis::Value;

use super::names::{self, PREFIX};
use crate::address::{Address, Entry};
use crate::call::Call;
use crate::link::Link;
use crate::node::{Node, Shared};
use crate::options::RedisOptions;
use crate::primary::PrimaryAddress;

/// One server.
pub(crate) struct Server {
    pub(crate) site: String,
    node: Arc<Node>,
}

impl Server {
    /// A server that is not connected to yet. `reads` reads what it tells unasked.
    pub(crate) fn new(
        address: Address,
        entry: Entry,
        options: RedisOptions,
        reads: fn(&[u8]) -> Option<Wake>,
    ) -> Self {
        let site = address.to_string();
        let shared = Arc::new(Shared {
            entry,
            options,
            clock: Clock::system(),
            sink: OnceLock::new(),
            reads,
            closed: AtomicBool::new(false),
        });
        // A channel for each server, as two of them might be replicas of each other.
        let via = format!("{PREFIX}s:{}", ReqId::random());
        let node = Node::new(
            shared,
            PrimaryAddress::Fixed(address),
            via,
            Box::new(|| Some(names::marker())),
            false,
        );
        Self { site, node }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.node.shared.clock
    }

    /// Which connection it has: another number for each.
    pub(crate) fn number(&self) -> u64 {
        self.node.number()
    }

    /// Connects, and waits for it.
    pub(crate) async fn greet(&self) -> Result<Arc<Link>, Error> {
        self.node.link().await
    }

    /// The connection, if there is one. If not, one is made in the background: the quorum does not
    /// wait for a node that is not there.
    pub(crate) fn link(&self) -> Result<Arc<Link>, Error> {
        self.node.at_once()
    }

    /// How long it grants nothing, and why.
    pub(crate) fn closed(&self, link: &Link) -> (Duration, String) {
        let closed = link.quarantined(self.clock());
        closed.map_or_else(Default::default, |(left, why)| (left, format!("{}: {why}", self.site)))
    }

    /// Runs one script.
    pub(crate) async fn play(&self, link: &Link, call: &Call) -> Result<Value, Error> {
        let answer = link.wire.run(call, false).await;
        answer.map_err(|fault| {
            self.node.judge(link, &fault);
            fault.told().store(&self.site)
        })
    }

    pub(crate) fn listen(&self, sink: EventSink) {
        let _ = self.node.shared.sink.set(sink);
    }

    pub(crate) fn close(&self) {
        self.node.shared.closed.store(true, Ordering::Release);
        self.node.close();
    }
}

impl Drop for Server {
    /// Takes effect at once: the connection ends, and none is made again.
    fn drop(&mut self) {
        self.close();
    }
}
