//! The version algorithm as a store: every call becomes moves for the desk.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal};
use distlock_core::seam::{Ask, Due, Force, Forced, Key, Released};
use distlock_core::state::{Claim, Op, Pulse, Reply, answer};
use distlock_core::{Capability, Clock, Error, FullName, Kind, Token, engine};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::desk::{Call, Desk, Move, Replies, decode};
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
    ears: Arc<OnceLock<Ears>>,
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
        let (rows, ears) = (Arc::new(rows), Arc::default());
        engine::spawn(
            Desk::new(Arc::clone(&rows), calls, session.clone(), Arc::clone(&ears)).work(),
        );
        Ok(Self { rows, desk, session, ears })
    }

    async fn play(&self, moves: Vec<Move>) -> Replies {
        let n = moves.len();
        let closed = || Error::new(Kind::Closed, "the store was closed").with_hint("open it again");
        let (answer, reply) = oneshot::channel();
        if self.desk.send(Call { moves, answer }).is_err() {
            return vec![Err(closed()); n];
        }
        reply.await.unwrap_or_else(|_| vec![Err(closed().unknown()); n])
    }

    /// One move, its errors told with what they are about.
    async fn one(&self, what: &'static str, lock: &FullName, op: Op) -> Result<Reply, Error> {
        let reply = self.play(vec![(lock.clone(), op)]).await.pop();
        let reply = reply.unwrap_or_else(|| Err(Error::new(Kind::Store, "no answer")));
        reply.map_err(|e| self.told(what, lock, e))
    }

    fn told(&self, what: &'static str, lock: &FullName, e: Error) -> Error {
        e.during(what).lock(lock).store(self.rows.site())
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
    fn calls_up(&self) -> bool {
        true
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        let claim = Claim::of(ask, self.session.as_str());
        let op = Op::Acquire { claim, wait: wait_lease };
        let reply = self.one("acquire", &ask.lock, op).await?;
        answer::acquired(reply).map_err(|e| self.told("acquire", &ask.lock, e))
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        let beat = |(key, wait): &(Key, Duration)| {
            (key.lock.clone(), Op::Heartbeat { req: key.req, wait: *wait })
        };
        let replies = self.play(waiting.iter().map(beat).collect()).await;
        let pulses = replies.into_iter().map(|r| r.and_then(answer::pulsed));
        pulses.collect::<Result<_, _>>().map_err(|e| e.during("heartbeat").store(self.site()))
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        let renewal = |d: &Due| (d.key.lock.clone(), Op::Renew { req: d.key.req, ttl: d.ttl });
        let replies = self.play(due.iter().map(renewal).collect()).await;
        let told = |(r, d): (Result<Reply, Error>, &Due)| {
            answer::renewed(r.map_err(|e| self.told("renew", &d.key.lock, e)))
        };
        replies.into_iter().zip(due).map(told).collect()
    }

    async fn release(&self, key: &Key, _requeue: Option<&Ask>) -> Result<Released, Error> {
        answer::released(self.one("release", &key.lock, Op::Release { req: key.req }).await?)
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        self.one("cancel", &key.lock, Op::Cancel { req: key.req }).await.map(drop)
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
        answer::forced(self.one("force", lock, Op::Force { token, how }).await?)
    }

    fn listen(&self, ears: Ears) {
        let _ = self.ears.set(ears);
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}
