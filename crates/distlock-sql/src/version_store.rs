//! The version algorithm as a store: every batch of moves becomes a call to the desk.

use std::sync::{Arc, OnceLock};

use distlock_core::backend::{Force, Forced};
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies};
use distlock_core::state::{Op, Reply};
use distlock_core::{Capability, Clock, Error, FullName, Kind, Token, engine};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::cas_worker::{Call, CasWorker, decode};
use crate::rows::{Page, Rows};

/// Locks that are one row each, changed by compare-and-set on a version number.
///
/// The whole state of a lock, its line included, is in its row;
/// [`LockState::step`](distlock_core::state::LockState::step) runs here, between a read and a write
/// that happens only if nobody wrote in between. It asks nothing of a database but a conditional
/// update of one row, and pays for that with lost races under contention.
pub struct Versioned<R: Rows> {
    rows: Arc<R>,
    desk: UnboundedSender<Call>,
    session: String,
    sink: Arc<OnceLock<EventSink>>,
}

impl<R: Rows> Versioned<R> {
    /// Starts it on a table.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn new(rows: R) -> Result<Self, Error> {
        let random = getrandom::u64().map_err(|e| {
            Error::new(Kind::Store, "the operating system gives no random bytes").because(e)
        })?;
        let session = format!("{random:016x}");
        let (desk, calls) = unbounded_channel();
        let (rows, sink) = (Arc::new(rows), Arc::default());
        engine::spawn(
            CasWorker::new(Arc::clone(&rows), calls, session.clone(), Arc::clone(&sink)).work(),
        );
        Ok(Self { rows, desk, session, sink })
    }

    async fn ask(&self, moves: Vec<(FullName, Op)>) -> Replies {
        let n = moves.len();
        let closed = || Error::new(Kind::Closed, "the store was closed").with_hint("open it again");
        let (answer, reply) = oneshot::channel();
        if self.desk.send(Call { moves, answer }).is_err() {
            return vec![Err(closed()); n];
        }
        reply.await.unwrap_or_else(|_| vec![Err(closed().unknown()); n])
    }

    async fn look(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
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
}

impl<R: Rows> LeaseStore for Versioned<R> {
    fn capability(&self) -> &Capability {
        self.rows.capability()
    }

    fn site(&self) -> &str {
        self.rows.site()
    }

    fn clock(&self) -> &Clock {
        self.rows.clock()
    }

    /// The desk looks for all who wait.
    fn pushes(&self) -> bool {
        true
    }

    /// One desk for both classes: it takes what has come in and writes it together.
    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        self.ask(moves.into_iter().map(|one| one.into_op(&self.session)).collect()).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.look(query).await.map_err(|e| e.during("inspect").store(self.site()))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let reply = self.ask(vec![(lock.clone(), Op::Force { token, how })]).await.pop();
        let reply = reply.unwrap_or_else(|| Err(Error::new(Kind::Store, "no answer").unknown()));
        reply.and_then(Reply::forced).map_err(|e| e.during("force").lock(lock).store(self.site()))
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.sink.set(sink);
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}
