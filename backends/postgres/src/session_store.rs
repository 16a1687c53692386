//! `?algorithm=advisory` and `?algorithm=row-lock`: a session of the server holds the lock.
//!
//! 1. Take a connection for the lock alone, within `?sessions=`, and mark it with the request's sign:
//!    an advisory lock by which others see that the session lives.
//! 2. Take the advisory lock, or the row in a transaction that stays open; if somebody has it, wait
//!    in the server's own queue. A caller that goes away meanwhile has the session ended.
//! 3. Count the token, and write down the holder, in a commit of its own.
//! 4. Ask once more whether the session holds the lock, and from then on now and then. A session that
//!    is silent for the TTL is ended by the server; its loss is the loss of the lock. One more
//!    connection for all locks notices at once when the server goes, and has them all looked at.
//! 5. Give the lock back, and hear that it was held until now. Only then does the connection rest.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::{
    Alive, Ask, Backend, BootInstant, Capability, Clock, Error, EventSink, Force, Forced, FullName,
    Kind, LockInfo, Locked, LossReason, Mutex, Outcome, Query, QueueStatus, Released,
    SessionDriver, SessionStore, Store, StoreInfo, Token, TokenRange, Watcher, engine,
};
use distlock_sql::{ConnectionWorker, PooledConnection, ServerMonitor, SessionPool};
use sqlx::PgConnection;
use tokio::sync::Notify;

use crate::session_lock::{
    HoldingTx, LockRequest, SessionLockKind, SessionStatements, begin, fatal, free, prove, rest,
    token, try_row, wait,
};
use crate::{
    connector::Connector, errors::work, options::PostgresOptions, schema::Schema, session_admin,
};

/// The first version that ends a session which is silent for too long.
const OLDEST: i32 = 140_000;
/// The pauses between two looks at the holder, doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// The pause while it is not in the queue yet.
const SOON: Duration = Duration::from_millis(10);
/// The server ends a wait by itself; this long after, we do.
const GRACE: Duration = Duration::from_millis(500);
/// How long a store that is closed waits for requests that are taken back.
const LAST_UNDO: Duration = Duration::from_millis(500);
/// A session that was not seen in the queue for this long is given up: it would not be told of its
/// turn.
const SILENT: Duration = Duration::from_secs(8);
/// A sweep comes once in this many grants.
const SWEEP_EVERY: u32 = 64;

/// Locks that sessions of a PostgreSQL server hold.
pub(crate) struct Sessions {
    capability: Capability,
    site: String,
    clock: Clock,
    timeout: Duration,
    schema: Schema,
    sql: Arc<SessionStatements>,
    /// For looks and ends, and the tokens of row locks.
    worker: Arc<ConnectionWorker<Connector>>,
    pool: SessionPool<Connector>,
    monitor: ServerMonitor<Connector>,
    grants: AtomicU32,
    swept: Arc<Mutex<(String, String)>>,
}

/// A session that holds a lock.
pub(crate) struct Session {
    pooled: PooledConnection<Connector>,
    request: Arc<LockRequest>,
    /// The transaction that holds the row.
    has: Arc<str>,
    /// A release before this takes effect only then.
    min_until: BootInstant,
}

/// Ends the session of a request on its way to a lock, unless it is told not to: it may stand in the
/// server's queue, where nobody else notices that its caller is gone.
struct Undo {
    worker: Arc<ConnectionWorker<Connector>>,
    sql: Arc<SessionStatements>,
    sign: i64,
    pid: i32,
    armed: bool,
    /// Breaks off a wait, and with it the connection: the server may not be reached in another way.
    gone: Arc<Notify>,
}

impl Drop for Undo {
    /// Takes effect in the background.
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.gone.notify_one();
        let (worker, sql) = (Arc::clone(&self.worker), Arc::clone(&self.sql));
        let (sign, pid) = (self.sign, self.pid);
        engine::spawn(async move {
            let ended = worker.call(work!(|conn, sql| session_admin::end(conn, &sql, sign, pid)));
            if let Err(e) = ended.await {
                tracing::debug!(error = %e, "a session that nobody wants was not ended");
            }
        });
    }
}

/// The connection may be dead without anybody having said so.
fn forgotten() -> Error {
    Error::new(Kind::Unreachable, "the session that waits is not heard of any more")
        .unknown()
        .with_hint("see whether the database can be reached, then ask again")
}

/// Waits in the server's queue until its caller is gone.
async fn wait_unless(
    gone: &Notify,
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
    left: Option<Duration>,
) -> Result<HoldingTx, sqlx::Error> {
    tokio::select! {
        biased;
        has = wait(conn, sql, request, left) => has,
        () = gone.notified() => Err(sqlx::Error::Io(std::io::Error::other("nobody waits any more"))),
    }
}

/// Since when every look has missed a session in the server's queue.
#[derive(Default)]
struct Unseen(Option<BootInstant>);

impl Unseen {
    /// Takes in a look; says whether the session is to be given up. That takes two looks far apart:
    /// one that itself took long, because this process or the server stood still, says little.
    fn for_too_long(&mut self, in_queue: bool, asked: BootInstant, answered: BootInstant) -> bool {
        if in_queue {
            self.0 = None;
            return false;
        }
        let first = *self.0.get_or_insert(answered);
        asked.since(first) > SILENT
    }
}

/// Something done on a session's own connection, where any error is its end.
macro_rules! on {
    ($pooled:expr, |$conn:ident $(, $kept:ident)*| $call:expr) => {
        $pooled.call({
            $(let $kept = $kept.clone();)*
            move |$conn| Box::pin(async move { $call.await.map_err(fatal) })
        })
    };
}

impl Sessions {
    pub(crate) async fn at(
        connector: Arc<Connector>,
        site: String,
        capability: Capability,
        options: &PostgresOptions,
        schema: Schema,
        lock_kind: SessionLockKind,
        worker: ConnectionWorker<Connector>,
    ) -> Result<Self, Error> {
        let (clock, timeout) = (Clock::system(), options.timeout);
        let told = |e: Error| e.during("connect").store(&site);
        let asked = "SELECT current_setting('server_version_num')::int";
        let version =
            worker.call(work!(|conn| sqlx::query_scalar::<_, i32>(asked).fetch_one(conn)));
        if version.await.map_err(told)? < OLDEST {
            return Err(told(
                Error::new(Kind::Refused, "this server does not end sessions that fall silent")
                    .with_hint("?algorithm=queue works there; advisory and row-lock from 14 on"),
            ));
        }
        let own = Arc::new(Connector::of_sessions(connector.to.clone()));
        Ok(Self {
            capability,
            sql: Arc::new(SessionStatements::new(lock_kind, &schema)),
            schema,
            worker: Arc::new(worker),
            monitor: ServerMonitor::new(Arc::clone(&own), clock.clone(), timeout),
            pool: SessionPool::new(own, clock.clone(), timeout, options.sessions.into()),
            grants: AtomicU32::new(0),
            swept: Arc::default(),
            timeout,
            clock,
            site,
        })
    }

    /// A connection that is this request's, its number, and the lock if it was had at once.
    async fn begin(
        &self,
        request: &Arc<LockRequest>,
    ) -> Result<(PooledConnection<Connector>, i32, HoldingTx), Error> {
        let sql = &self.sql;
        // What one try left open, a later one that did not leave at all does not close.
        let mut doubtful = false;
        let told = |e: Error, doubtful| if doubtful { e.unknown() } else { e };
        for fresh in [false, true] {
            let pooled = self.pool.take(fresh).await.map_err(|e| told(e, doubtful))?;
            let begun = on!(pooled, |conn, sql, request| begin(conn, &sql, &request));
            match begun.await {
                Ok((pid, has)) => return Ok((pooled, pid, has)),
                // The server ended it while it rested.
                Err(e) if pooled.is_reused() && pooled.is_broken() && !fresh => {
                    doubtful = e.outcome() == Outcome::Unknown;
                }
                Err(e) => return Err(told(e, doubtful)),
            }
        }
        Err(Error::new(Kind::Unreachable, "no session comes about").transient())
    }

    async fn status(&self, request: &LockRequest) -> Option<QueueStatus> {
        let seen = self.inspect(&Query::Name(request.lock.clone())).await.ok()?;
        let Some(lock) = seen.into_iter().next() else { return Some(QueueStatus::default()) };
        // Nothing before it really stands in the server's queue: somebody might still be quicker.
        let mine = lock.waiters.iter().position(|w| w.req == request.req);
        let ahead = mine.and_then(|n| u32::try_from(n).ok());
        let holder = lock.holds.into_iter().next().map(|h| h.holder);
        Some(QueueStatus { holder, ahead, ..QueueStatus::default() })
    }

    /// Waits in the server's queue until a moment, telling where the request stands.
    async fn wait(
        &self,
        pooled: &PooledConnection<Connector>,
        request: &Arc<LockRequest>,
        until: BootInstant,
        gone: &Arc<Notify>,
        seen: Watcher<'_>,
    ) -> Result<Result<Arc<str>, QueueStatus>, Error> {
        let mut last: Option<QueueStatus> = None;
        let mut unseen = Unseen::default();
        loop {
            let left = (until < BootInstant::FAR).then(|| until.since(self.clock.now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let bound = left.map_or(Duration::MAX, |l| l + GRACE + self.timeout);
            let (sql, request, gone) =
                (Arc::clone(&self.sql), Arc::clone(request), Arc::clone(gone));
            let waited_for = Arc::clone(&request);
            let call = pooled.call_within(bound, move |conn| {
                Box::pin(async move {
                    let has = wait_unless(&gone, conn, &sql, &waited_for, left).await;
                    has.map_err(fatal)
                })
            });
            let mut call = std::pin::pin!(call);
            let mut pause = Duration::ZERO;
            let has: HoldingTx = loop {
                tokio::select! {
                    biased;
                    has = &mut call => break has?,
                    () = self.clock.sleep(pause) => {}
                    // The server may count the time for two waits, one after the other.
                    () = self.clock.sleep_until(until.plus(GRACE)) => {
                        return Ok(Err(last.unwrap_or_default()));
                    }
                }
                let asked = self.clock.now();
                let now = self.status(&request);
                let now = tokio::select! {
                    biased;
                    has = &mut call => break has?,
                    now = now => now,
                };
                let in_queue = now.as_ref().is_some_and(|n| n.ahead.is_some());
                if unseen.for_too_long(in_queue, asked, self.clock.now()) {
                    return Err(forgotten());
                }
                pause = match &now {
                    Some(n) if n.ahead.is_some() => (pause * 2).clamp(PAUSE.0, PAUSE.1),
                    Some(_) => SOON,
                    None => PAUSE.0,
                };
                let what = |s: &QueueStatus| (s.ahead, s.holder.as_ref().map(|h| h.token));
                if let Some(now) = now.filter(|n| n.holder.is_some() && n.ahead.is_some())
                    && last.as_ref().map(what) != Some(what(&now))
                {
                    seen(&now);
                    last = Some(now);
                }
            };
            if let Some(has) = has {
                return Ok(Ok(has));
            }
        }
        Ok(Err(last.unwrap_or_default()))
    }

    /// After a wait in vain the connection rests, with nothing on it.
    async fn rest(
        &self,
        pooled: PooledConnection<Connector>,
        request: &Arc<LockRequest>,
    ) -> Result<(), Error> {
        let sql = &self.sql;
        let rested = on!(pooled, |conn, sql, request| rest(conn, &sql, &request));
        rested.await?;
        pooled.rest();
        Ok(())
    }

    async fn token(
        &self,
        pooled: &PooledConnection<Connector>,
        request: &Arc<LockRequest>,
        pid: i32,
    ) -> Result<TokenRange, Error> {
        let sql = &self.sql;
        let token = match sql.lock_kind {
            SessionLockKind::Advisory => {
                on!(pooled, |conn, sql, request| token(conn, &sql, &request, pid)).await?
            }
            // Not in the transaction that holds the row: it would go if that is rolled back.
            SessionLockKind::RowLock => {
                let (sql, request) = (Arc::clone(sql), Arc::clone(request));
                self.worker
                    .call(work!(|conn, sql, request| token(conn, &sql, &request, pid)))
                    .await?
            }
        };
        TokenRange::new(Token::new(u64::try_from(token).unwrap_or(0))?, NonZeroU32::MIN)
    }

    async fn prove(&self, session: &Session) -> Result<(bool, u32), Error> {
        let (sql, Session { request, has, .. }) = (&self.sql, session);
        let pooled = &session.pooled;
        on!(pooled, |conn, sql, request, has| prove(conn, &sql, &request, &has)).await
    }

    fn sweep(&self) {
        if !self.grants.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY) {
            return;
        }
        let (worker, sql) = (Arc::clone(&self.worker), Arc::clone(&self.sql));
        let swept = Arc::clone(&self.swept);
        engine::spawn(async move {
            let after = swept.lock().clone();
            let next =
                worker.call(work!(|conn, sql, after| session_admin::sweep(conn, &sql, &after)));
            match next.await {
                Ok(next) => *swept.lock() = next,
                Err(e) => tracing::debug!(error = %e, "nothing was swept"),
            }
        });
    }
}

impl Store for Sessions {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(SessionDriver::new(self))
    }
}

impl SessionStore for Sessions {
    type Conn = Session;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.clock }
    }

    async fn lock(&self, ask: &Ask, seen: Watcher<'_>) -> Result<Locked<Session>, Error> {
        let until = ask.patience.until(self.clock.now());
        let request = Arc::new(LockRequest::new(&self.schema, ask, self.timeout));
        let (pooled, pid, taken) = self.begin(&request).await?;
        let (worker, sql) = (Arc::clone(&self.worker), &self.sql);
        let (sign, gone) = (request.sign, Arc::new(Notify::new()));
        let undo_sql = Arc::clone(sql);
        let mut undo =
            Undo { worker, sql: undo_sql, sign, pid, armed: true, gone: Arc::clone(&gone) };
        let taken = match taken {
            None if sql.lock_kind == SessionLockKind::RowLock => {
                on!(pooled, |conn, sql, request| try_row(conn, &sql, &request)).await?
            }
            taken => taken,
        };
        let has = match taken {
            Some(has) => Ok(has),
            None if self.clock.now() < until => {
                self.wait(&pooled, &request, until, &gone, seen).await?
            }
            None => Err(self.status(&request).await.unwrap_or_default()),
        };
        let has = match has {
            Ok(has) => has,
            Err(status) => {
                // A session that cannot be brought to rest is ended.
                undo.armed = self.rest(pooled, &request).await.is_err();
                return Ok(Locked::Busy(status));
            }
        };
        let tokens = self.token(&pooled, &request, pid).await?;
        let mut session = Session { pooled, request, has, min_until: BootInstant::FAR };
        self.monitor.watches().await;
        // The token is only ours if the lock still is: it may have passed on before it was counted.
        let sent = self.capability.reading(&self.clock);
        let (held, waiters) = self.prove(&session).await?;
        if !held {
            return Err(Error::new(Kind::Refused, "the session does not hold what it was given")
                .with_hint(crate::errors::POOLED));
        }
        undo.armed = false;
        self.sweep();
        session.min_until = self.clock.now().plus(ask.min_hold);
        Ok(Locked::Held { conn: session, sent: Some(sent), tokens, waiters })
    }

    async fn alive(&self, session: &mut Session) -> Alive {
        match self.prove(session).await {
            Ok((true, waiters)) => Alive::Yes { waiters },
            Ok((false, _)) => Alive::No(LossReason::Gone),
            Err(_) if session.pooled.is_broken() => Alive::No(LossReason::Gone),
            Err(e) => Alive::Unknown(e),
        }
    }

    async fn unlock(&self, session: Session) -> Result<Released, Error> {
        let sql = Arc::clone(&self.sql);
        if self.clock.now() < session.min_until {
            if !self.prove(&session).await?.0 {
                return Ok(Released::WasLost);
            }
            let clock = self.clock.clone();
            engine::spawn(async move {
                clock.sleep_until(session.min_until).await;
                let _ = session.free(&sql).await;
            });
            return Ok(Released::Released);
        }
        session.free(&sql).await.map_err(|e| e.during("release").store(&self.site))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (sql, query) = (Arc::clone(&self.sql), query.clone());
        self.worker.call(work!(|conn, sql, query| session_admin::inspect(conn, &sql, &query))).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        if how == Force::Revoke {
            let what = "a session's lock can only be ended with the session";
            return Err(Error::new(Kind::Unsupported, what)
                .with_hint("break it at once (--now), which ends the holder's session"));
        }
        let (sql, name) = (Arc::clone(&self.sql), lock.clone());
        // Without a token it means the holder, and that may be another one the next time.
        let call = self
            .worker
            .call_once(work!(|conn, sql, name| session_admin::force(conn, &sql, &name, token)));
        match call.await {
            Ok(true) => Ok(Forced::Done),
            Ok(false) => Ok(Forced::NoMatch),
            Err(e) if e.kind() == Kind::Credentials => Err(e.with_hint(
                "only the holder's own database user, a member of pg_signal_backend or a superuser \
                 may end its session",
            )),
            Err(e) => Err(e),
        }
    }

    fn listen(&self, sink: EventSink) {
        self.monitor.listen(sink);
    }

    async fn close(&self) {
        self.monitor.close();
        // A request that waits shares the worker until its session is ended by that.
        let end = self.clock.now().plus(LAST_UNDO);
        while Arc::strong_count(&self.worker) > 1 && self.clock.now() < end {
            self.clock.sleep(LAST_UNDO / 100).await;
        }
        self.pool.close().await;
        self.worker.close().await;
    }
}

impl Session {
    /// Gives the lock back.
    async fn free(self, sql: &Arc<SessionStatements>) -> Result<Released, Error> {
        let Session { pooled, request, has, .. } = self;
        let freed = on!(pooled, |conn, sql, request, has| free(conn, &sql, &request, &has));
        match freed.await {
            Ok(true) => {
                pooled.rest();
                Ok(Released::Released)
            }
            // Somebody else's session, or not ours any more: it does not rest.
            Ok(false) => Ok(Released::WasLost),
            // It had ended before it was asked.
            Err(e) if e.outcome() == Outcome::NotApplied => Ok(Released::WasLost),
            Err(e) => Err(e.lock(&request.lock)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_across_a_standstill_gives_up_nobody() {
        let start = Clock::held().now();
        let at = |millis| start.plus(Duration::from_millis(millis));
        let mut unseen = Unseen::default();
        // Asked before everything stood still, answered after: it was not in the queue yet.
        assert!(!unseen.for_too_long(false, at(0), at(9_000)));
        assert!(!unseen.for_too_long(false, at(9_010), at(9_020)));
        assert!(!unseen.for_too_long(true, at(9_030), at(9_040)));
        // Missed by every look for as long as it takes.
        assert!(!unseen.for_too_long(false, at(10_000), at(10_010)));
        assert!(!unseen.for_too_long(false, at(18_000), at(18_005)));
        assert!(unseen.for_too_long(false, at(18_020), at(18_030)));
    }
}
