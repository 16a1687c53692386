//! `?algorithm=advisory` and `?algorithm=row-lock`: a session of the server holds the lock.
//!
//! 1. Take a connection for the lock alone, within `?sessions=`, and mark it with the request's sign:
//!    an advisory lock by which others see that the session lives.
//! 2. Take the advisory lock, or the row in a transaction that stays open; if somebody has it, wait
//!    in the server's own line. Whoever goes away meanwhile has the session ended.
//! 3. Count the token, and write down who holds the lock, in a commit of its own.
//! 4. Ask once more whether the session holds the lock, and from then on now and then. A session that
//!    is silent for the TTL is ended by the server; its loss is the loss of the lock. One more
//!    connection for all locks notices at once when the server goes, and has them all looked at.
//! 5. Give the lock back, and hear that it was held until now. Only then does the connection rest.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Force, Forced, Watcher};
use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::EventSink;
use distlock_core::session::{Alive, Locked, SessionStore};
use distlock_core::session_driver::SessionDriver;
use distlock_core::{
    BootInstant, Clock, Error, FullName, Kind, LossReason, Outcome, Patience, QueueStatus,
    Released, Store, Token, TokenRange, engine,
};
use distlock_sql::{ConnectionWorker, Seat, Seats, ServerMonitor};
use sqlx::PgConnection;
use tokio::sync::Notify;

use crate::call::{call, call_once};
use crate::connector::Connector;
use crate::options::PostgresOptions;
use crate::session_inspect::{self as inspect, Looks};
use crate::session_lock::{self, Has, Say, SessionLockKind, Wish, fatal};
use crate::statements::Schema;

/// The first version that ends a session which is silent for too long.
const OLDEST: i32 = 140_000;
/// The pauses between two looks at who holds the lock, doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// The pause while it is not in line yet.
const SOON: Duration = Duration::from_millis(10);
/// The server ends a wait by itself; this long after, we do.
const GRACE: Duration = Duration::from_millis(500);
/// A session that was not seen in line for this long is given up: nobody would tell it of its turn.
const SILENT: Duration = Duration::from_secs(8);
/// A sweep comes with every so many grants.
const SWEEP_EVERY: u32 = 64;

/// Locks that sessions of a PostgreSQL server hold.
pub(crate) struct Sessions {
    capability: Capability,
    site: String,
    clock: Clock,
    timeout: Duration,
    lock_kind: SessionLockKind,
    schema: Schema,
    say: Arc<Say>,
    looks: Arc<Looks>,
    /// For looks and ends, and the tokens of row locks.
    worker: Arc<ConnectionWorker<Connector>>,
    seats: Seats<Connector>,
    monitor: ServerMonitor,
    grants: AtomicU32,
    swept: Arc<Mutex<(String, String)>>,
}

/// A session that holds a lock.
pub(crate) struct Session {
    seat: Seat<PgConnection>,
    wish: Arc<Wish>,
    /// The transaction that holds the row.
    has: Arc<str>,
    /// A release before this takes effect only then.
    min_until: BootInstant,
}

/// Ends the session of a request on its way to a lock, unless it is told not to: it may stand in the
/// server's line, where nobody else notices that its caller is gone.
struct Undo {
    worker: Arc<ConnectionWorker<Connector>>,
    looks: Arc<Looks>,
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
        let (worker, looks, sign, pid) =
            (Arc::clone(&self.worker), Arc::clone(&self.looks), self.sign, self.pid);
        engine::spawn(async move {
            let ended = call!(worker, [looks], conn, inspect::end(conn, &looks, sign, pid)).await;
            if let Err(e) = ended {
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

/// Waits in the server's line until its caller is gone.
async fn wait_unless(
    gone: &Notify,
    conn: &mut PgConnection,
    say: &Say,
    wish: &Wish,
    left: Option<Duration>,
) -> Result<Has, sqlx::Error> {
    tokio::select! {
        biased;
        has = session_lock::wait(conn, say, wish, left) => has,
        () = gone.notified() => Err(sqlx::Error::Io(std::io::Error::other("nobody waits any more"))),
    }
}

/// Since when every look has missed a session in the server's line.
#[derive(Default)]
struct Unseen(Option<BootInstant>);

impl Unseen {
    /// Takes in a look; says whether the session is to be given up. That takes two looks far apart:
    /// one that itself took long, because this process or the server stood still, says little.
    fn for_too_long(&mut self, in_line: bool, asked: BootInstant, answered: BootInstant) -> bool {
        if in_line {
            self.0 = None;
            return false;
        }
        let first = *self.0.get_or_insert(answered);
        asked.since(first) > SILENT
    }
}

/// Something done on a session's own connection, where any error is its end.
macro_rules! on {
    ($seat:expr, $bound:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {{
        $(let $kept = $kept.clone();)*
        $seat.call($bound, move |$conn| Box::pin(async move { $call.await.map_err(fatal) }))
    }};
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
        let version = worker.call(|conn| {
            Box::pin(async move {
                let asked = "SELECT current_setting('server_version_num')::int";
                let version: Result<i32, _> = sqlx::query_scalar(asked).fetch_one(conn).await;
                version.map_err(crate::errors::trouble)
            })
        });
        if version.await.map_err(told)? < OLDEST {
            return Err(told(
                Error::new(Kind::Refused, "this server does not end sessions that fall silent")
                    .with_hint("?algorithm=queue works there; advisory and row-lock from 14 on"),
            ));
        }
        let own = Arc::new(Connector::of_sessions(connector.to.clone()));
        Ok(Self {
            capability,
            lock_kind,
            say: Arc::new(Say::new(&schema)),
            looks: Arc::new(Looks::new(&schema)),
            schema,
            worker: Arc::new(worker),
            monitor: ServerMonitor::new(Arc::clone(&own), clock.clone(), timeout),
            seats: Seats::new(own, clock.clone(), timeout, options.sessions.into()),
            grants: AtomicU32::new(0),
            swept: Arc::default(),
            timeout,
            clock,
            site,
        })
    }

    fn told<'a>(&'a self, what: &'static str, lock: &'a FullName) -> impl Fn(Error) -> Error + 'a {
        move |e| e.during(what).lock(lock).store(&self.site)
    }

    /// A connection that is this request's, its number, and the lock if it was had at once.
    async fn begin(&self, wish: &Arc<Wish>) -> Result<(Seat<PgConnection>, i32, Has), Error> {
        let say = &self.say;
        // What one try left open, a later one that did not leave at all does not close.
        let mut doubtful = false;
        let told = |e: Error, doubtful| if doubtful { e.unknown() } else { e };
        for fresh in [false, true] {
            let seat = self.seats.take(fresh).await.map_err(|e| told(e, doubtful))?;
            let begun =
                on!(seat, self.timeout, [say, wish], conn, session_lock::begin(conn, &say, &wish));
            match begun.await {
                Ok((pid, has)) => return Ok((seat, pid, has)),
                // The server ended it while it rested.
                Err(e) if seat.is_reused() && seat.is_broken() && !fresh => {
                    doubtful = e.outcome() == Outcome::Unknown;
                }
                Err(e) => return Err(told(e, doubtful)),
            }
        }
        Err(Error::new(Kind::Unreachable, "no session comes about").transient())
    }

    async fn status(&self, wish: &Wish) -> Option<QueueStatus> {
        let seen = self.inspect(&Query::Name(wish.lock.clone())).await.ok()?;
        let Some(lock) = seen.into_iter().next() else { return Some(QueueStatus::default()) };
        // Nothing before it really stands in the server's line: somebody might still be quicker.
        let mine = lock.waiters.iter().position(|w| w.req == wish.req);
        let ahead = mine.and_then(|n| u32::try_from(n).ok());
        let holder = lock.holds.into_iter().next().map(|h| h.holder);
        Some(QueueStatus { holder, ahead, ..QueueStatus::default() })
    }

    /// Waits in the server's line until a moment, telling where the request stands.
    async fn wait(
        &self,
        seat: &Seat<PgConnection>,
        wish: &Arc<Wish>,
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
            let say = &self.say;
            let call = on!(
                seat,
                bound,
                [say, wish, gone],
                conn,
                wait_unless(&gone, conn, &say, &wish, left)
            );
            let mut call = std::pin::pin!(call);
            let mut pause = Duration::ZERO;
            let has: Has = loop {
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
                let now = self.status(wish);
                let now = tokio::select! {
                    biased;
                    has = &mut call => break has?,
                    now = now => now,
                };
                let in_line = now.as_ref().is_some_and(|n| n.ahead.is_some());
                if unseen.for_too_long(in_line, asked, self.clock.now()) {
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
    async fn rest(&self, seat: Seat<PgConnection>, wish: &Arc<Wish>) -> Result<(), Error> {
        let say = &self.say;
        let rested =
            on!(seat, self.timeout, [say, wish], conn, session_lock::rest(conn, &say, &wish));
        rested.await?;
        seat.rest();
        Ok(())
    }

    async fn token(
        &self,
        seat: &Seat<PgConnection>,
        wish: &Arc<Wish>,
        pid: i32,
    ) -> Result<TokenRange, Error> {
        let say = &self.say;
        let token = match wish.lock_kind {
            SessionLockKind::Advisory => {
                on!(
                    seat,
                    self.timeout,
                    [say, wish],
                    conn,
                    session_lock::token(conn, &say, &wish, pid)
                )
                .await?
            }
            // Not in the transaction that holds the row: it would go if that is rolled back.
            SessionLockKind::RowLock => {
                let (say, wish) = (Arc::clone(say), Arc::clone(wish));
                call!(self.worker, [say, wish], conn, session_lock::token(conn, &say, &wish, pid))
                    .await?
            }
        };
        TokenRange::new(Token::new(u64::try_from(token).unwrap_or(0))?, NonZeroU32::MIN)
    }

    async fn prove(&self, session: &Session) -> Result<(bool, u32), Error> {
        let (say, Session { wish, has, .. }) = (&self.say, session);
        let seat = &session.seat;
        on!(
            seat,
            self.timeout,
            [say, wish, has],
            conn,
            session_lock::prove(conn, &say, &wish, &has)
        )
        .await
    }

    fn sweep(&self) {
        if !self.grants.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY) {
            return;
        }
        let (worker, looks, lock_kind) =
            (Arc::clone(&self.worker), Arc::clone(&self.looks), self.lock_kind);
        let swept = Arc::clone(&self.swept);
        engine::spawn(async move {
            let after = swept.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let next = call!(
                worker,
                [looks, after],
                conn,
                inspect::sweep(conn, &looks, lock_kind, &after)
            )
            .await;
            match next {
                Ok(next) => *swept.lock().unwrap_or_else(PoisonError::into_inner) = next,
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

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn lock(&self, ask: &Ask, seen: Watcher<'_>) -> Result<Locked<Session>, Error> {
        let told = self.told("acquire", &ask.lock);
        let until = match ask.patience {
            Patience::Never => self.clock.now(),
            Patience::For(d) => self.clock.now().plus(d),
            Patience::Forever => BootInstant::FAR,
        };
        let wish = Arc::new(Wish::new(self.lock_kind, &self.schema, ask, self.timeout));
        let (seat, pid, taken) = self.begin(&wish).await.map_err(&told)?;
        let (worker, looks) = (Arc::clone(&self.worker), Arc::clone(&self.looks));
        let gone = Arc::new(Notify::new());
        let mut undo =
            Undo { worker, looks, sign: wish.sign, pid, armed: true, gone: Arc::clone(&gone) };
        let say = &self.say;
        let taken = match taken {
            None if self.lock_kind == SessionLockKind::RowLock => {
                on!(seat, self.timeout, [say, wish], conn, session_lock::try_row(conn, &say, &wish))
                    .await
                    .map_err(&told)?
            }
            taken => taken,
        };
        let has = match taken {
            Some(has) => Ok(has),
            None if self.clock.now() < until => {
                self.wait(&seat, &wish, until, &gone, seen).await.map_err(&told)?
            }
            None => Err(self.status(&wish).await.unwrap_or_default()),
        };
        let has = match has {
            Ok(has) => has,
            Err(status) => {
                // A session that cannot be brought to rest is ended.
                undo.armed = self.rest(seat, &wish).await.is_err();
                return Ok(Locked::Busy(status));
            }
        };
        let tokens = self.token(&seat, &wish, pid).await.map_err(&told)?;
        let mut session = Session { seat, wish, has, min_until: BootInstant::FAR };
        self.monitor.watches().await;
        // The token is only ours if the lock still is: it may have passed on before it was counted.
        let sent = self.capability.moment(&self.clock);
        let (held, waiters) = self.prove(&session).await.map_err(&told)?;
        if !held {
            return Err(told(
                Error::new(Kind::Refused, "the session does not hold what it was given")
                    .with_hint(crate::errors::POOLED),
            ));
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
            Err(_) if session.seat.is_broken() => Alive::No(LossReason::Gone),
            Err(e) => Alive::Unknown(e),
        }
    }

    async fn unlock(&self, session: Session) -> Result<Released, Error> {
        let end = End { say: Arc::clone(&self.say), timeout: self.timeout };
        if self.clock.now() < session.min_until {
            if !self.prove(&session).await?.0 {
                return Ok(Released::WasLost);
            }
            let clock = self.clock.clone();
            engine::spawn(async move {
                clock.sleep_until(session.min_until).await;
                let _ = end.free(session).await;
            });
            return Ok(Released::Released);
        }
        end.free(session).await.map_err(|e| e.during("release").store(&self.site))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (looks, query, lock_kind) = (Arc::clone(&self.looks), query.clone(), self.lock_kind);
        let call = call!(
            self.worker,
            [looks, query],
            conn,
            inspect::inspect(conn, &looks, lock_kind, &query)
        );
        call.await.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let told = self.told("force", lock);
        if how == Force::Revoke {
            return Err(told(
                Error::new(
                    Kind::Unsupported,
                    "a session's lock can only be ended with the session",
                )
                .with_hint("break it at once (--now), which ends the holder's session"),
            ));
        }
        let (looks, name, lock_kind) = (Arc::clone(&self.looks), lock.clone(), self.lock_kind);
        // Without a token it means whoever holds the lock, and that may be another one the next time.
        let call = call_once!(
            self.worker,
            [looks, name],
            conn,
            inspect::force(conn, &looks, lock_kind, &name, token)
        );
        match call.await {
            Ok(true) => Ok(Forced::Done),
            Ok(false) => Ok(Forced::NoMatch),
            Err(e) if e.kind() == Kind::Credentials => Err(told(e.with_hint(
                "only the holder's own database user, a member of pg_signal_backend or a superuser \
                 may end its session",
            ))),
            Err(e) => Err(told(e)),
        }
    }

    fn listen(&self, sink: EventSink) {
        self.monitor.listen(sink);
    }

    async fn close(&self) {
        self.monitor.close();
        self.seats.close().await;
        self.worker.close().await;
    }
}

/// What it takes to give a lock back.
struct End {
    say: Arc<Say>,
    timeout: Duration,
}

impl End {
    async fn free(self, session: Session) -> Result<Released, Error> {
        let Session { seat, wish, has, .. } = session;
        let (say, lock) = (&self.say, wish.lock.clone());
        let freed = on!(
            seat,
            self.timeout,
            [say, wish, has],
            conn,
            session_lock::free(conn, &say, &wish, &has)
        );
        match freed.await {
            Ok(true) => {
                seat.rest();
                Ok(Released::Released)
            }
            // Somebody else's session, or not ours any more: it does not rest.
            Ok(false) => Ok(Released::WasLost),
            // It had ended before it was asked.
            Err(e) if e.outcome() == Outcome::NotApplied => Ok(Released::WasLost),
            Err(e) => Err(e.lock(lock)),
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
        // Asked before everything stood still, answered after: it was not in line yet.
        assert!(!unseen.for_too_long(false, at(0), at(9_000)));
        assert!(!unseen.for_too_long(false, at(9_010), at(9_020)));
        assert!(!unseen.for_too_long(true, at(9_030), at(9_040)));
        // Missed by every look for as long as it takes.
        assert!(!unseen.for_too_long(false, at(10_000), at(10_010)));
        assert!(!unseen.for_too_long(false, at(18_000), at(18_005)));
        assert!(unseen.for_too_long(false, at(18_020), at(18_030)));
    }
}
