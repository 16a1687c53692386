//! `?algorithm=row-lock`: `SELECT … FOR UPDATE` on a connection of its own.
//!
//! 1. Take a connection for the lock alone, within `?sessions=`.
//! 2. Lock the lock's row in a transaction that stays open: as long as the connection lives, nobody
//!    else gets it. The server frees it when the connection ends, or is silent for longer than the
//!    TTL.
//! 3. Count the token, and write down who holds the lock, in commits of their own on another
//!    connection.
//! 4. Ask now and then whether the transaction lives: by a savepoint that was made in it, which ends with
//!    it. The server may undo a transaction and keep its connection (a proxy that connects anew, a
//!    cluster that lets another's commit win). Its loss is the loss of the lock. One more connection for
//!    all locks notices at once when the server goes, and has them all looked at.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Force, Forced, Watcher};
use distlock_core::capability::Capability;
use distlock_core::info::{HoldInfo, LockInfo, Query};
use distlock_core::lease::EventSink;
use distlock_core::session::{Alive, Locked, SessionStore};
use distlock_core::session_driver::SessionDriver;
use distlock_core::state::{Claim, Micros};
use distlock_core::url::StoreUrl;
use distlock_core::{
    BootInstant, Clock, Error, FullName, Holder, Kind, LossReason, Name, Outcome, Patience,
    QueueStatus, Released, ReqId, Store, Token, TokenRange, engine,
};
use distlock_sql::{ConnectionWorker, Opens, Seat, Seats, ServerMonitor};
use sqlx::{MySql, MySqlConnection, Row, Transaction};

use crate::connector::Connector;
use crate::errors::{DEADLOCK, LOCK_WAIT, NOT_NOW, calling, demoted, number as code};
use crate::open::Target;
use crate::schema::Tables;
use crate::sql::{NOW, READ_ONLY, at, hex, micros, number, run};
use crate::{sweep, tokens};

/// One statement waits for the row at most this long, so that a caller who gave up is not granted
/// the lock much later.
const SLICE: Duration = Duration::from_secs(1);

/// Made once the row is locked; it lives as long as the transaction. Going back to it undoes nothing
/// and lets no row go, because nothing is written after it.
const SAVEPOINT: &str = "distlock";

/// Between two tries within the last second of somebody's patience.
const PAUSE: Duration = Duration::from_millis(50);

/// Row locks of a MySQL or MariaDB server that answered.
pub struct RowLock {
    capability: Capability,
    site: String,
    clock: Clock,
    tables: Arc<Tables>,
    connector: Arc<Connector>,
    /// For tokens, looks and everything else but the locks themselves.
    worker: Arc<ConnectionWorker<Connector>>,
    sweep: Arc<sweep::Pace>,
    seats: Seats<Connector>,
    monitor: ServerMonitor,
    timeout: Duration,
}

/// A connection that holds a row.
pub struct Session {
    seat: Seat<MySqlConnection>,
    lock: FullName,
    req: ReqId,
    /// A release before this takes effect only then.
    min_until: BootInstant,
}

impl RowLock {
    /// Connects to what a URL names.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn open(url: StoreUrl) -> Result<Self, Error> {
        Self::at(Target::of(url)?).await
    }

    pub(crate) async fn at(target: Target) -> Result<Self, Error> {
        let capability = target.greet().await?;
        let Target { to, options, tables, site } = target;
        let clock = Clock::system();
        let connector = Arc::new(Connector::new(to, None));
        Ok(Self {
            capability,
            site,
            tables: Arc::new(tables),
            connector: Arc::clone(&connector),
            monitor: ServerMonitor::new(Arc::clone(&connector), clock.clone(), options.timeout),
            seats: Seats::new(
                Arc::clone(&connector),
                clock.clone(),
                options.timeout,
                options.sessions.into(),
            ),
            worker: Arc::new(ConnectionWorker::new(connector, clock.clone(), options.timeout, 1)),
            sweep: Arc::default(),
            timeout: options.timeout,
            clock,
        })
    }

    fn told<'a>(&'a self, lock: &'a FullName) -> impl Fn(Error) -> Error + 'a {
        move |e| e.during("acquire").lock(lock).store(&self.site)
    }

    /// A connection for one lock, and its number.
    async fn session(&self, ask: &Ask) -> Result<(Session, u64), Error> {
        let seat = self.seats.take(false).await?;
        let (lock, req, min_until) = (ask.lock.clone(), ask.req, self.clock.now());
        let session = Session { seat, lock, req, min_until };
        // A holder that falls silent is cut off when its guard has long ended.
        let silent = ask.ttl.max(ask.min_hold).as_secs_f64().ceil().max(1.0);
        let sql = format!(
            "SET SESSION wait_timeout={silent}; SELECT GET_LOCK('{}', 0) AS got, CONNECTION_ID() AS id",
            sign(&ask.req)
        );
        let id = session.seat.call(self.timeout, move |conn| {
            Box::pin(async move {
                let given = run(conn, sql).await.map_err(calling)?;
                let row = given.get(1).and_then(|g| g.rows.first());
                row.map_or(Ok(0), |r| number(r, "id")).map_err(calling)
            })
        });
        let id = id.await?;
        Ok((session, id))
    }

    /// Tries to lock the row for as long as a statement may wait; false when somebody has it.
    async fn try_row(&self, session: &Session, wait: bool) -> Result<bool, Error> {
        let (row, which) = (&self.tables.row, at(&session.lock));
        let (space, name) = (hex(session.lock.space.as_str()), hex(session.lock.name.as_str()));
        // The row is made by itself, not in the transaction, where two who make it could wait for
        // each other.
        let seconds = if wait { SLICE.as_secs() } else { 1 };
        let how = if wait { "" } else { " NOWAIT" };
        let sql = format!(
            "SET SESSION innodb_lock_wait_timeout={seconds}; \
             INSERT IGNORE INTO {row} (space, name, used) SELECT {space}, {name}, {NOW} FROM DUAL \
             WHERE NOT EXISTS (SELECT 1 FROM {row} WHERE {which}); \
             START TRANSACTION; SELECT used FROM {row} WHERE {which} FOR UPDATE{how}; \
             SAVEPOINT {SAVEPOINT}"
        );
        let locked = session.seat.call(self.timeout + SLICE, move |conn| {
            Box::pin(async move {
                loop {
                    match run(conn, sql.clone()).await {
                        Ok(given)
                            if given.iter().rev().nth(1).is_some_and(|g| !g.rows.is_empty()) =>
                        {
                            return Ok(true);
                        }
                        // It was there a moment ago.
                        Ok(_) => {}
                        // Whoever made the row first undid it, and two who waited for that make it.
                        Err(e) if code(&e) == Some(DEADLOCK) => {}
                        // Refused, which leaves the transaction open.
                        Err(e) if matches!(code(&e), Some(LOCK_WAIT | NOT_NOW)) => {
                            run(conn, "ROLLBACK".to_owned()).await.map_err(calling)?;
                            return Ok(false);
                        }
                        Err(e) => return Err(calling(e)),
                    }
                }
            })
        });
        locked.await
    }

    /// Who holds a lock now, of those who have written it down and live.
    async fn holders(&self, which: String, limit: usize) -> Result<Vec<Seen>, Error> {
        let held = self.tables.held.clone();
        let sql = format!(
            "START TRANSACTION; SELECT {NOW} AS now, name, req, token, granted, claim FROM {held} \
             WHERE {which} AND IS_USED_LOCK(CONCAT('dl:r:', LOWER(HEX(req)))) IS NOT NULL \
             ORDER BY name LIMIT {limit}; ROLLBACK"
        );
        let call = self.worker.call(move |conn| {
            let sql = sql.clone();
            Box::pin(async move {
                let given = run(conn, sql).await.map_err(calling)?;
                let rows = given.get(1).map(|g| g.rows.as_slice()).unwrap_or_default();
                rows.iter().map(Seen::read).collect::<Result<Vec<_>, _>>().map_err(calling)
            })
        });
        call.await
    }

    async fn status(&self, lock: &FullName) -> QueueStatus {
        let seen = self.holders(at(lock), 1).await.unwrap_or_default();
        let holder = seen.into_iter().next().map(|s| s.holder);
        QueueStatus { holder, ..QueueStatus::default() }
    }
}

/// The name a connection has taken while it holds or waits.
fn sign(req: &ReqId) -> String {
    let hex: String = req.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("dl:r:{hex}")
}

/// A row about a holder.
struct Seen {
    name: String,
    req: ReqId,
    claim: Claim,
    holder: Holder,
}

impl Seen {
    fn read(row: &sqlx::mysql::MySqlRow) -> Result<Self, sqlx::Error> {
        let odd = |e: &str| sqlx::Error::Protocol(e.to_owned());
        let bytes: Vec<u8> = row.try_get("claim")?;
        let claim: Claim = serde_json::from_slice(&bytes).map_err(|e| odd(&e.to_string()))?;
        let name: Vec<u8> = row.try_get("name")?;
        let (now, granted): (Micros, Micros) = (micros(row, "now")?, micros(row, "granted")?);
        let token = Token::new(number(row, "token")?).map_err(|e| odd(&e.to_string()))?;
        let holder = Holder {
            label: claim.label.clone(),
            owner: claim.owner.clone(),
            token,
            age: now.since(granted),
            // At most: it counts from the holder's last sign of life.
            left: Some(claim.ttl),
        };
        Ok(Self {
            name: String::from_utf8_lossy(&name).into_owned(),
            req: claim.req,
            claim,
            holder,
        })
    }
}

impl Store for RowLock {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(SessionDriver::new(self))
    }
}

impl SessionStore for RowLock {
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
        let told = self.told(&ask.lock);
        let until = match ask.patience {
            Patience::Never => self.clock.now(),
            Patience::For(d) => self.clock.now().plus(d),
            Patience::Forever => BootInstant::FAR,
        };
        let (mut session, id) = self.session(ask).await.map_err(&told)?;
        let mut last = QueueStatus::default();
        loop {
            let left = until.since(self.clock.now());
            // A statement waits for whole seconds; what is left of a second is waited for here.
            let wait = left >= SLICE;
            if self.try_row(&session, wait).await.map_err(&told)? {
                break;
            }
            let status = self.status(&ask.lock).await;
            if left.is_zero() {
                return Ok(Locked::Busy(status));
            }
            if !wait {
                self.clock.sleep(left.min(PAUSE)).await;
            }
            if status.holder.as_ref().map(|h| h.token) != last.holder.as_ref().map(|h| h.token) {
                seen(&status);
                last = status;
            }
        }
        let (tables, name, claim) =
            (Arc::clone(&self.tables), ask.lock.clone(), Claim::of(ask, ""));
        let sweep = Arc::clone(&self.sweep);
        let token = self.worker.call(move |conn| {
            let (tables, name, claim) = (Arc::clone(&tables), name.clone(), claim.clone());
            let sweep = Arc::clone(&sweep);
            Box::pin(async move { tokens::next(conn, &tables, &name, &claim, id, &sweep).await })
        });
        let tokens = TokenRange::new(token.await.map_err(&told)?, std::num::NonZeroU32::MIN)?;
        self.monitor.watches().await;
        // The token is only ours if the row still is: it may have passed on before it was counted.
        let asked = self.capability.moment(&self.clock);
        self.prove(&session).await.map_err(told)?;
        session.min_until = self.clock.now().plus(ask.min_hold);
        Ok(Locked::Held { conn: session, sent: Some(asked), tokens, waiters: 0 })
    }

    async fn alive(&self, session: &mut Session) -> Alive {
        match self.prove(session).await {
            Ok(()) => Alive::Yes { waiters: 0 },
            Err(_) if session.seat.is_broken() => Alive::No(LossReason::Gone),
            Err(e) => Alive::Unknown(e),
        }
    }

    async fn unlock(&self, session: Session) -> Result<Released, Error> {
        self.sweep.step(&self.worker, &self.tables, &self.clock, true);
        let end = End {
            sql: format!(
                "ROLLBACK TO SAVEPOINT {SAVEPOINT}; UPDATE {row} SET used={NOW} WHERE {at}; \
                 DELETE FROM {held} WHERE {at} AND req={req}; COMMIT",
                row = self.tables.row,
                held = self.tables.held,
                at = at(&session.lock),
                req = hex(session.req.as_bytes())
            ),
            connector: Arc::clone(&self.connector),
            clock: self.clock.clone(),
            timeout: self.timeout,
        };
        if self.clock.now() < session.min_until {
            self.prove(&session).await?;
            engine::spawn(async move {
                end.clock.sleep_until(session.min_until).await;
                let _ = end.free(session).await;
            });
            return Ok(Released::Released);
        }
        end.free(session).await.map_err(|e| e.during("release").store(&self.site))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (space, which, limit) = match query {
            Query::Name(lock) => (&lock.space, at(lock), 1),
            Query::Prefix { space, prefix, after, limit } => {
                let mut which = format!("space={}", hex(space.as_str()));
                if !prefix.is_empty() {
                    let (n, prefix) = (prefix.len(), hex(prefix));
                    which += &format!(" AND name>={prefix} AND LEFT(name,{n})={prefix}");
                }
                if let Some(after) = after {
                    which += &format!(" AND name>{}", hex(after.as_str()));
                }
                (space, which, *limit)
            }
        };
        let seen = self.holders(which, limit).await;
        let seen = seen.map_err(|e| e.during("inspect").store(&self.site))?;
        let info = |s: Seen| {
            let hold = HoldInfo {
                req: s.req,
                holder: s.holder,
                mode: s.claim.mode,
                lingering: false,
                revoked: false,
            };
            let lock = FullName { space: space.clone(), name: Name::new(s.name)? };
            Ok(LockInfo { lock, holds: vec![hold], waiters: Vec::new() })
        };
        seen.into_iter().map(info).collect()
    }

    async fn force(
        &self,
        lock: &FullName,
        _token: Option<Token>,
        _how: Force,
    ) -> Result<Forced, Error> {
        Err(Error::new(Kind::Unsupported, "a row lock can only be ended with its connection")
            .lock(lock)
            .store(&self.site)
            .with_hint("KILL the connection that `conn` of the table `held` names"))
    }

    fn listen(&self, sink: EventSink) {
        self.monitor.listen(sink);
    }

    async fn close(&self) {
        self.monitor.close();
        self.worker.close().await;
    }
}

impl RowLock {
    /// Proves that the transaction with the lock is there, at a server that takes writes: one that was
    /// demoted keeps its transactions while others lock at the new primary.
    async fn prove(&self, session: &Session) -> Result<(), Error> {
        let sql = format!("ROLLBACK TO SAVEPOINT {SAVEPOINT}; SELECT {READ_ONLY} AS read_only");
        let asked = session.seat.call(self.timeout, move |conn| {
            Box::pin(async move {
                let given = run(conn, sql).await.map_err(calling)?;
                let row = given.get(1).and_then(|g| g.rows.first());
                let read_only = row.map_or(Ok(0), |r| number(r, "read_only")).map_err(calling)?;
                if read_only == 0 { Ok(()) } else { Err(demoted()) }
            })
        });
        asked.await
    }
}

/// What it takes to give a row back.
struct End {
    sql: String,
    connector: Arc<Connector>,
    clock: Clock,
    timeout: Duration,
}

impl End {
    async fn free(self, session: Session) -> Result<Released, Error> {
        let Self { sql, connector, clock, timeout } = self;
        let freed = session.seat.call(timeout, move |conn| {
            Box::pin(async move { run(conn, sql).await.map(drop).map_err(calling) })
        });
        let freed = freed.await;
        let lost = session.seat.is_broken();
        if let Some(conn) = session.seat.into_inner() {
            let _ = clock.timeout(timeout, connector.close(conn)).await;
        }
        match freed {
            Ok(()) => Ok(Released::Released),
            // It was broken before anything was sent.
            Err(e) if lost && e.outcome() == Outcome::NotApplied => Ok(Released::WasLost),
            Err(e) => Err(e.lock(&session.lock)),
        }
    }
}

/// Takes a lock inside the caller's own transaction: nobody else, by this function or by
/// `?algorithm=row-lock` without a namespace, has it until the transaction ends.
///
/// If what the lock protects is written in the same transaction, no fence is needed: when the lock
/// goes, so do the writes. The tables must be there (open the store once, or `distlock schema
/// mysql`); `prefix` is `distlock_` unless the store was opened with another.
///
/// # Errors
/// [`Kind::Usage`] for a name that cannot be; transient when somebody else has it for longer than
/// the session's `innodb_lock_wait_timeout`, or when the very first transaction that uses a name is
/// rolled back while two others wait for it (1213): roll back and try again.
///
/// # Cancel safety
/// As any statement of a transaction: roll it back.
pub async fn with_row_lock(
    tx: &mut Transaction<'_, MySql>,
    prefix: &str,
    name: &str,
) -> Result<(), Error> {
    let lock = FullName { space: Default::default(), name: Name::new(name)? };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if !prefix.bytes().all(plain) {
        return Err(Error::new(Kind::Usage, format!("invalid prefix {prefix:?}"))
            .with_hint("letters, digits and underscores"));
    }
    // One statement that takes the row exclusively, there or not: a look first, or INSERT IGNORE,
    // would take a shared lock that two could not both turn into an exclusive one.
    let sql = format!(
        "INSERT INTO {} (space, name, used) VALUES (X'', {}, {NOW}) \
         ON DUPLICATE KEY UPDATE used={NOW}",
        Tables::new(prefix).row,
        hex(lock.name.as_str())
    );
    run(tx, sql).await.map(drop).map_err(|e| calling(e).error.during("acquire").lock(&lock))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroU32;

    use distlock_core::{Label, Mode, Owner, Ttl};
    use distlock_testkit::servers::Mariadb;

    use super::*;

    fn ask(name: &str) -> Ask {
        Ask {
            lock: FullName { space: Default::default(), name: Name::new(name).unwrap() },
            req: ReqId::random(),
            owner: Owner::new(),
            mode: Mode::Exclusive,
            ttl: Ttl::MAX.get(),
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::new("a test"),
            block: NonZeroU32::MIN,
            patience: Patience::Never,
        }
    }

    async fn held(store: &RowLock, name: &str) -> Session {
        match store.lock(&ask(name), &|_| {}).await.unwrap() {
            Locked::Held { conn, .. } => conn,
            Locked::Busy(status) => panic!("{status}"),
        }
    }

    /// What a server does of its own accord.
    async fn undo(session: &Session) {
        let undone = session.seat.call(Duration::from_secs(5), |conn| {
            Box::pin(async move { run(conn, "ROLLBACK".into()).await.map(drop).map_err(calling) })
        });
        undone.await.unwrap();
    }

    /// The connection lives on and answers; the transaction with the lock does not.
    #[tokio::test]
    async fn a_transaction_that_the_server_ended_is_a_lost_lock() {
        let server = Mariadb::new().start().await.expect("`cargo xtask setup`");
        let url = format!("{}?algorithm=row-lock", Mariadb::url(&server));
        let store = RowLock::open(StoreUrl::parse(&url).unwrap()).await.unwrap();
        let mut session = held(&store, "a").await;
        assert!(matches!(store.alive(&mut session).await, Alive::Yes { .. }));
        undo(&session).await;
        let other = held(&store, "a").await;
        let alive = store.alive(&mut session).await;
        assert!(matches!(alive, Alive::No(_)), "{alive:?}");
        // Nor is it given back as if it had been held, while another has it.
        assert_eq!(store.unlock(other).await.unwrap(), Released::Released);
        let session = held(&store, "a").await;
        undo(&session).await;
        let other = held(&store, "a").await;
        assert_eq!(store.unlock(session).await.unwrap(), Released::WasLost);
        assert_eq!(store.unlock(other).await.unwrap(), Released::Released);
    }
}
