//! The version algorithm as a store: every batch of moves becomes a call to the worker.

use std::sync::{Arc, OnceLock};

use distlock_core::lease::only;
use distlock_core::{
    Capability, Class, Clock, Error, EventSink, Force, Forced, FullName, Kind, LeaseStore,
    LockInfo, Move, Op, Query, Replies, StoreInfo, Token, engine,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::cas_worker::{Call, CasWorker, decode};
use crate::rows::{Page, Rows};

/// Locks that are one row each, changed by compare-and-set on a version number.
///
/// The whole state of a lock, its queue included, is in its row;
/// [`LockState::step`](distlock_core::state::LockState::step) runs here, between a read and a write
/// that happens only if nobody wrote in between. It asks nothing of a database but a conditional
/// update of one row, and pays for that with lost races under contention.
pub struct Versioned<R: Rows> {
    capability: Capability,
    site: String,
    clock: Clock,
    rows: Arc<R>,
    worker: UnboundedSender<Call>,
    session: String,
    sink: Arc<OnceLock<EventSink>>,
}

impl<R: Rows> Versioned<R> {
    /// Starts it on a table of the store `site`, which promises this.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn new(rows: R, site: String, capability: Capability) -> Result<Self, Error> {
        let random = getrandom::u64().map_err(|e| {
            Error::new(Kind::Store, "the operating system gives no random bytes").because(e)
        })?;
        let session = format!("{random:016x}");
        let (worker, calls) = unbounded_channel();
        let (rows, sink, clock) = (Arc::new(rows), Arc::default(), Clock::system());
        let (same, told) = (Arc::clone(&rows), Arc::clone(&sink));
        let cas = CasWorker::new(same, clock.clone(), calls, session.clone(), told);
        engine::spawn(cas.work());
        Ok(Self { capability, site, clock, rows, worker, session, sink })
    }

    async fn ask(&self, moves: Vec<(FullName, Op)>) -> Replies {
        let n = moves.len();
        let closed = || Error::new(Kind::Closed, "the store was closed").with_hint("open it again");
        let (answer, reply) = oneshot::channel();
        if self.worker.send(Call { moves, answer }).is_err() {
            return vec![Err(closed()); n];
        }
        reply.await.unwrap_or_else(|_| vec![Err(closed().unknown()); n])
    }
}

impl<R: Rows> LeaseStore for Versioned<R> {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.clock }
    }

    /// The worker polls for all waiters.
    fn pushes(&self) -> bool {
        true
    }

    /// One worker for both classes: it takes what has come in and writes it together.
    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        self.ask(moves.into_iter().map(|one| one.into_op(&self.session)).collect()).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (space, prefix, after, limit) = match query {
            Query::Name(lock) => {
                let (rows, now) = self.rows.read(vec![lock.clone()]).await?;
                let Some(row) = rows.into_iter().next().flatten() else { return Ok(Vec::new()) };
                return Ok(decode(&row.text, lock)?.view(lock, now).into_iter().collect());
            }
            Query::Prefix { space, prefix, after, limit } => (space, prefix, after, *limit),
        };
        let mut found = Vec::new();
        let mut after = after.clone();
        // Rows of locks that are free are passed over, so a page of rows may be none of locks.
        while found.len() < limit {
            let limit = limit.min(1000);
            let (space, prefix) = (space.clone(), prefix.clone());
            let page = Page { space: space.clone(), prefix, after: after.take(), limit };
            let (rows, now) = self.rows.page(page).await?;
            let more = rows.len() == limit;
            for (name, row) in rows {
                let lock = FullName { space: space.clone(), name };
                found.extend(decode(&row.text, &lock)?.view(&lock, now));
                after = Some(lock.name);
            }
            if !more {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        only(self.ask(vec![(lock.clone(), Op::Force { token, how })]).await)?.forced()
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.sink.set(sink);
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}
