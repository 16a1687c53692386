//! From a lock to the server that keeps it.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error};
use redis::Value;

use crate::call::Call;
use crate::cluster::{Cluster, slot};
use crate::errors;
use crate::keys::Keys;
use crate::link::Link;
use crate::node::Node;
use crate::wire::Fault;

/// The least time for a call on which leases depend: with a short TTL a quarter of it is less than a
/// first call takes, which may have to connect and to send a script's text.
pub(crate) const LEAST: Duration = Duration::from_millis(250);

/// The servers of one store.
pub(crate) enum Router {
    /// One primary keeps all locks.
    One(Arc<Node>),
    /// Each slot has its own.
    Many(Arc<Cluster>),
}

impl Router {
    /// Runs a script where a lock is kept, and says where that was.
    pub(crate) async fn play(
        &self,
        keys: &Keys,
        make: impl Fn(&Link) -> Call,
    ) -> Result<(Value, Arc<Link>), Error> {
        let (answer, link) = self.play_if(keys, |link| Some(make(link))).await?;
        Ok((answer.unwrap_or(Value::Nil), link))
    }

    /// Runs a script where a lock is kept, if it may be run at the very server that this comes to:
    /// another than was thought of, after a failover or when a slot has moved.
    pub(crate) async fn play_if(
        &self,
        keys: &Keys,
        make: impl Fn(&Link) -> Option<Call>,
    ) -> Result<(Option<Value>, Arc<Link>), Error> {
        match self {
            Self::One(node) => {
                let mut again = true;
                loop {
                    let link = node.link().await?;
                    let Some(call) = make(&link) else { return Ok((None, link)) };
                    let fault = match link.wire.run(&call, false).await {
                        Ok(answer) => return Ok((Some(answer), link)),
                        Err(fault) => fault,
                    };
                    // The marker was deleted, or says another max_ttl: a new connection writes it
                    // anew, or is refused. Nothing was done yet.
                    node.judge(&link, &fault);
                    if fault.code() != "DLMAX" || !std::mem::take(&mut again) {
                        return Err(fault.told());
                    }
                }
            }
            Self::Many(cluster) => Box::pin(cluster.play(slot(keys.lock.as_bytes()), make)).await,
        }
    }

    /// The connection on which moves of many tasks can go together, if there is one just now: in a
    /// cluster locks of one server are in many slots, which no script may mix.
    pub(crate) fn combines(&self) -> Option<Arc<Link>> {
        match self {
            Self::One(node) => node.current(),
            Self::Many(_) => None,
        }
    }

    /// Takes note of a connection that failed.
    pub(crate) fn judge(&self, link: &Link, fault: &Fault) {
        if let Self::One(node) = self {
            node.judge(link, fault);
        }
    }

    /// A call on whose answer leases depend: bounded by them and not by the patience of one call.
    /// A connection on which nothing was heard meanwhile is given up, so that the next try does
    /// not wait for the same silence.
    pub(crate) async fn pressing<T>(
        &self,
        clock: &Clock,
        keys: &Keys,
        within: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (sent, within) = (clock.now(), within.max(LEAST));
        if let Some(answer) = clock.timeout(within, call).await {
            return answer;
        }
        Err(self.silent(keys, sent, within))
    }

    /// A call for a lock has had no answer for so long: a connection on which nothing else was
    /// heard meanwhile is given up.
    pub(crate) fn silent(&self, keys: &Keys, sent: BootInstant, within: Duration) -> Error {
        let node = match self {
            Self::One(node) => Some(node.clone()),
            Self::Many(cluster) => cluster.known(slot(keys.lock.as_bytes())),
        };
        if let Some(node) = node {
            node.suspect(sent, within);
        }
        errors::silent(within)
    }

    /// The connection to where a lock is kept.
    pub(crate) async fn link(&self, keys: &Keys) -> Result<Arc<Link>, Error> {
        match self {
            Self::One(node) => node.link().await,
            Self::Many(cluster) => Box::pin(cluster.link(slot(keys.lock.as_bytes()))).await,
        }
    }

    /// Which server keeps a lock, as far as is known: locks of different ones fail apart.
    pub(crate) fn shard(&self, keys: &Keys) -> u64 {
        match self {
            Self::One(_) => 0,
            Self::Many(cluster) => cluster.shard(slot(keys.lock.as_bytes())),
        }
    }

    /// Which locks may share one call: those of one group. In a cluster each is alone: few share a
    /// slot, and while that moves, some of them may have moved and others not.
    pub(crate) fn group<'a>(&self, keys: &'a Keys) -> &'a str {
        match self {
            Self::One(_) => "",
            Self::Many(_) => &keys.lock,
        }
    }

    /// Connects, so that a wrong address or password is known at once.
    pub(crate) async fn greet(&self) -> Result<(), Error> {
        match self {
            Self::One(node) => node.link().await.map(drop),
            Self::Many(cluster) => cluster.greet().await,
        }
    }

    /// Every server that keeps locks.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Node>>, Error> {
        match self {
            Self::One(node) => Ok(vec![node.clone()]),
            Self::Many(cluster) => cluster.primaries().await,
        }
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        match self {
            Self::One(node) => node.close(),
            Self::Many(cluster) => cluster.close(),
        }
    }
}
