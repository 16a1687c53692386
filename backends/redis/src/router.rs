//! Routes each call to the server that keeps its lock; grants wait for its quarantine and its replicas.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, EventSink, FullName, LockInfo, Query};
use redis::Value;

use crate::checked_connection::CheckedConnection;
use crate::cluster::{Cluster, slot};
use crate::connection::{Call, Fault};
use crate::errors;
use crate::inspect::{Listed, Listing, scan};
use crate::keys::Keys;
use crate::reconnect::{Reconnecting, Shared};
use crate::replicas;

/// The least time for a call on which leases depend: with a short TTL a quarter of it is less than a
/// first call takes, which may have to connect and to send a script's text.
pub(crate) const LEAST: Duration = Duration::from_millis(250);

/// Which servers keep the locks.
pub(crate) enum Servers {
    /// One primary keeps all locks.
    One(Arc<Reconnecting>),
    /// Each slot has its own.
    Many(Arc<Cluster>),
}

/// The servers of one store, and what is the same for every algorithm on them.
pub(crate) struct Router {
    /// What the store is called in errors.
    pub(crate) site: String,
    pub(crate) shared: Arc<Shared>,
    pub(crate) servers: Servers,
    pub(crate) listing: Listing,
}

impl Router {
    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Runs a script that may grant a lock, unless the server that this comes to is in quarantine.
    pub(crate) async fn grant(
        &self,
        keys: &Keys,
        make: impl Fn(&CheckedConnection) -> Call,
    ) -> Result<(Value, Arc<CheckedConnection>), Error> {
        let clock = self.clock();
        let granting =
            |link: &CheckedConnection| link.quarantined(clock).is_none().then(|| make(link));
        let (value, link) = self.play_if(keys, granting).await?;
        match value {
            Some(value) => Ok((value, link)),
            None => {
                let (left, why) = link.quarantined(clock).unwrap_or_default();
                Err(Error::not_yet(left, why))
            }
        }
    }

    /// Waits until as many replicas have a grant or a renewal as the URL's `wait` says.
    pub(crate) async fn replicated(
        &self,
        link: &CheckedConnection,
        ttl: Duration,
    ) -> Result<(), Error> {
        match self.shared.options.replicas {
            0 => Ok(()),
            _ => Box::pin(replicas::wait(link, &self.shared, ttl)).await,
        }
    }

    /// One page of the locks that a query asks for.
    pub(crate) async fn inspect<L>(
        &self,
        query: &Query,
        listed: &Listed,
        look: impl Fn(Vec<FullName>) -> L,
    ) -> Result<Vec<LockInfo>, Error>
    where
        L: Future<Output = Result<Vec<LockInfo>, Error>>,
    {
        let scan = async |space, prefix| {
            let mut names = Vec::new();
            for node in self.all().await? {
                names.extend(scan(&*node.link().await?, listed, space, prefix).await?);
            }
            Ok(names)
        };
        let page = self.listing.page(self.clock(), query, scan, look).await;
        page.map_err(|e| e.during("inspect").store(&self.site))
    }

    pub(crate) fn listen(&self, sink: EventSink) {
        let _ = self.shared.sink.set(sink);
    }

    /// Runs a script where a lock is kept, and says where that was.
    pub(crate) async fn play(
        &self,
        keys: &Keys,
        make: impl Fn(&CheckedConnection) -> Call,
    ) -> Result<(Value, Arc<CheckedConnection>), Error> {
        let (answer, link) = self.play_if(keys, |link| Some(make(link))).await?;
        Ok((answer.unwrap_or(Value::Nil), link))
    }

    /// Runs a script where a lock is kept, if it may be run at the very server that this comes to:
    /// another than was thought of, after a failover or when a slot has moved.
    async fn play_if(
        &self,
        keys: &Keys,
        make: impl Fn(&CheckedConnection) -> Option<Call>,
    ) -> Result<(Option<Value>, Arc<CheckedConnection>), Error> {
        match &self.servers {
            Servers::One(node) => {
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
            Servers::Many(cluster) => {
                Box::pin(cluster.play(slot(keys.lock.as_bytes()), make)).await
            }
        }
    }

    /// The connection on which moves of many tasks can go together, if there is one just now: in a
    /// cluster locks of one server are in many slots, which no script may mix.
    pub(crate) fn combines(&self) -> Option<Arc<CheckedConnection>> {
        match &self.servers {
            Servers::One(node) => node.current(),
            Servers::Many(_) => None,
        }
    }

    /// Takes note of a connection that failed.
    pub(crate) fn judge(&self, link: &CheckedConnection, fault: &Fault) {
        if let Servers::One(node) = &self.servers {
            node.judge(link, fault);
        }
    }

    /// A call on whose answer leases depend: bounded by them and not by the patience of one call.
    /// A connection on which nothing was heard meanwhile is given up, so that the next try does
    /// not wait for the same silence.
    pub(crate) async fn pressing<T>(
        &self,
        keys: &Keys,
        within: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (sent, within) = (self.clock().now(), within.max(LEAST));
        if let Some(answer) = self.clock().timeout(within, call).await {
            return answer;
        }
        Err(self.silent(keys, sent, within))
    }

    /// A call for a lock has had no answer for so long: a connection on which nothing else was
    /// heard meanwhile is given up.
    pub(crate) fn silent(&self, keys: &Keys, sent: BootInstant, within: Duration) -> Error {
        let node = match &self.servers {
            Servers::One(node) => Some(node.clone()),
            Servers::Many(cluster) => cluster.known(slot(keys.lock.as_bytes())),
        };
        if let Some(node) = node {
            node.suspect(sent, within);
        }
        errors::silent(within)
    }

    /// The connection to where a lock is kept.
    pub(crate) async fn link(&self, keys: &Keys) -> Result<Arc<CheckedConnection>, Error> {
        match &self.servers {
            Servers::One(node) => node.link().await,
            Servers::Many(cluster) => Box::pin(cluster.link(slot(keys.lock.as_bytes()))).await,
        }
    }

    /// Which server keeps a lock, as far as is known: locks of different ones fail apart.
    pub(crate) fn shard(&self, keys: &Keys) -> u64 {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Many(cluster) => cluster.shard(slot(keys.lock.as_bytes())),
        }
    }

    /// Which locks may share one call: those of one group. In a cluster each is alone: few share a
    /// slot, and while that moves, some of them may have moved and others not.
    pub(crate) fn group<'a>(&self, keys: &'a Keys) -> &'a str {
        match &self.servers {
            Servers::One(_) => "",
            Servers::Many(_) => &keys.lock,
        }
    }

    /// Connects, so that a wrong address or password is known at once.
    pub(crate) async fn greet(&self) -> Result<(), Error> {
        match &self.servers {
            Servers::One(node) => node.link().await.map(drop),
            Servers::Many(cluster) => cluster.greet().await,
        }
    }

    /// Every server that keeps locks.
    async fn all(&self) -> Result<Vec<Arc<Reconnecting>>, Error> {
        match &self.servers {
            Servers::One(node) => Ok(vec![node.clone()]),
            Servers::Many(cluster) => cluster.primaries().await,
        }
    }

    /// Ends all connections; none is made again.
    pub(crate) fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        match &self.servers {
            Servers::One(node) => node.close(),
            Servers::Many(cluster) => cluster.close(),
        }
    }
}

impl Drop for Router {
    /// Takes effect at once: connections end, and nothing is connected again.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}
