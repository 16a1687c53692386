//! The store: every batch of moves becomes a job for a worker.

use std::sync::Arc;

use distlock_core::{
    Backend, Capability, Class, Clock, Error, EventSink, Force, Forced, FullName, Kind,
    LeaseDriver, LeaseStore, LockInfo, Move, Op, Query, Replies, Reply, Store, StoreInfo, Token,
};

use crate::peer_socket::PeerSocket;
use crate::worker::Worker;

/// Locks in a database file, for the processes of one host.
///
/// Upkeep (renewals, heartbeats, cancels) has a worker and a connection of its own, so that it never
/// queues behind the callers.
///
/// Dropping it takes its address away at once; the workers end after what is queued.
pub struct Sqlite {
    pub(crate) capability: Capability,
    pub(crate) site: String,
    pub(crate) clock: Clock,
    pub(crate) peers: Arc<PeerSocket>,
    pub(crate) front: Worker,
    pub(crate) back: Worker,
}

impl LeaseStore for Sqlite {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.clock }
    }

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let worker = match class {
            Class::Caller => &self.front,
            Class::Upkeep => {
                self.peers.heal();
                &self.back
            }
        };
        let via = self.peers.session();
        worker.play(moves.into_iter().map(|one| one.into_op(via)).collect()).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let found = self.front.inspect(query.clone()).await;
        found.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let force = vec![(lock.clone(), Op::Force { token, how })];
        let reply = self.front.play(force).await.pop();
        let reply = reply.unwrap_or_else(|| Err(Error::new(Kind::Store, "no answer").unknown()));
        reply.and_then(Reply::forced).map_err(|e| e.during("force").lock(lock).store(&self.site))
    }

    fn listen(&self, sink: EventSink) {
        self.peers.listen(sink);
    }

    async fn close(&self) {
        self.front.quit().await;
        self.back.quit().await;
        self.peers.close();
    }
}

impl Drop for Sqlite {
    /// The address goes at once, so that others do not wait for us; the workers end after what is
    /// queued.
    fn drop(&mut self) {
        self.peers.close();
    }
}

impl Store for Sqlite {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}
