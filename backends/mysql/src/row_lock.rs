//! `?algorithm=row-lock`: `SELECT … FOR UPDATE` on a connection of its own.
//!
//! 1. Take a connection for the lock alone, within `?sessions=`.
//! 2. Lock the lock's row in a transaction that stays open: as long as the connection lives, nobody
//!    else gets it. The server frees it when the connection ends, or is silent for longer than the
//!    TTL.
//! 3. Count the token, and write down the holder, in commits of their own on another connection.
//! 4. Ask now and then whether the transaction lives: by a savepoint that was made in it, which
//!    ends with it. The server may undo a transaction and keep its connection (a proxy that
//!    connects anew, a cluster that lets another's commit win). Its loss is the loss of the lock.
//!    One more connection for all locks notices at once when the server goes, and has them all
//!    looked at.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::state::Claim;
use distlock_core::{
    Alive, Ask, Backend, BootInstant, Capability, Clock, Error, EventSink, Force, Forced, FullName,
    HoldInfo, Holder, Kind, LockInfo, Locked, LossReason, Name, Namespace, Outcome, Query,
    QueueStatus, Released, ReqId, SessionDriver, SessionStore, Store, StoreInfo, Token, TokenRange,
    Watcher, engine,
};
use distlock_sql::{ConnectionWorker, PooledConnection, ServerMonitor, SessionPool, Trouble, work};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, Row, Transaction};

use crate::errors::{DEADLOCK, LOCK_WAIT, NOT_NOW, calling, demoted, number as code};
use crate::sql::{NOW, READ_ONLY, at, execute, hex, micros, number, page, run};
use crate::{connector::Connector, open::Target, options::checked_prefix, schema::Tables, sweep};

/// One statement waits for the row at most this long, so that a caller that gave up is not granted
/// the lock much later.
const SLICE: Duration = Duration::from_secs(1);

/// Made once the row is locked; it lives as long as the transaction. Going back to it undoes nothing
/// and lets no row go, because nothing is written after it.
const SAVEPOINT: &str = "distlock";

/// Between two tries within the last second of somebody's patience.
const PAUSE: Duration = Duration::from_millis(50);

/// Row locks of a MySQL or MariaDB server that answered.
pub(crate) struct RowLock {
    capability: Capability,
    site: String,
    clock: Clock,
    tables: Arc<Tables>,
    /// For tokens, looks and everything else but the locks themselves.
    worker: Arc<ConnectionWorker<Connector>>,
    sweep: Arc<sweep::Pace>,
    pool: SessionPool<Connector>,
    monitor: ServerMonitor<Connector>,
    timeout: Duration,
}

/// A connection that holds a row.
pub(crate) struct Session {
    connection: PooledConnection<Connector>,
    lock: FullName,
    req: ReqId,
    /// A release before this takes effect only then.
    min_until: BootInstant,
}

impl RowLock {
    pub(crate) async fn at(target: Target) -> Result<Self, Error> {
        let capability = target.greet().await?;
        let Target { to, options, tables, site } = target;
        let (clock, timeout) = (Clock::system(), options.timeout);
        let (connector, sessions) = (Arc::new(Connector::new(to, None)), options.sessions.into());
        let own = || Arc::clone(&connector);
        Ok(Self {
            capability,
            site,
            tables: Arc::new(tables),
            monitor: ServerMonitor::new(own(), clock.clone(), timeout),
            pool: SessionPool::new(own(), clock.clone(), timeout, sessions),
            worker: Arc::new(ConnectionWorker::new(own(), clock.clone(), timeout, 1)),
            sweep: Arc::default(),
            timeout,
            clock,
        })
    }

    /// A connection for one lock, and its number.
    async fn session(&self, ask: &Ask) -> Result<(Session, u64), Error> {
        let connection = self.pool.take(false).await?;
        let (lock, req, min_until) = (ask.lock.clone(), ask.req, self.clock.now());
        let session = Session { connection, lock, req, min_until };
        // A holder that falls silent is cut off when its guard has long ended.
        let silent = ask.ttl.max(ask.min_hold).as_secs_f64().ceil().max(1.0);
        let sql = format!(
            "SET SESSION wait_timeout={silent}; SELECT GET_LOCK('{}', 0) AS got, CONNECTION_ID() AS id",
            sign(&ask.req)
        );
        let id = session.connection.call(work!(|conn| {
            let given = run(conn, sql).await.map_err(calling)?;
            let row = given.get(1).and_then(|g| g.rows.first());
            row.map_or(Ok(0), |r| number(r, "id")).map_err(calling)
        }));
        let id = id.await?;
        Ok((session, id))
    }

    /// Tries to lock the row for as long as a statement may wait; false when somebody has it.
    async fn try_row(&self, session: &Session, wait: bool) -> Result<bool, Error> {
        let (row, which) = (&self.tables.row, at(&session.lock));
        let (space, name) = (hex(session.lock.space.as_str()), hex(session.lock.name.as_str()));
        // The row is made by itself, not in the transaction, where two that make it could wait for
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
        let locked = session.connection.call_within(
            self.timeout + SLICE,
            work!(|conn| {
                loop {
                    match run(conn, sql.clone()).await {
                        Ok(given)
                            if given.iter().rev().nth(1).is_some_and(|g| !g.rows.is_empty()) =>
                        {
                            return Ok(true);
                        }
                        // It was there a moment ago.
                        Ok(_) => {}
                        // The insert that came first was undone, and two that waited for it try again.
                        Err(e) if code(&e) == Some(DEADLOCK) => {}
                        // Refused, which leaves the transaction open.
                        Err(e) if matches!(code(&e), Some(LOCK_WAIT | NOT_NOW)) => {
                            execute(conn, "ROLLBACK".to_owned()).await?;
                            return Ok(false);
                        }
                        Err(e) => return Err(calling(e)),
                    }
                }
            }),
        );
        locked.await
    }

    /// The locks of a namespace whose holders are on record and live.
    async fn held(
        &self,
        space: &Namespace,
        which: String,
        limit: usize,
    ) -> Result<Vec<LockInfo>, Error> {
        let (held, space) = (&self.tables.held, space.clone());
        let sql = format!(
            "START TRANSACTION; SELECT {NOW} AS now, name, req, token, granted, claim FROM {held} \
             WHERE {which} AND IS_USED_LOCK(CONCAT('dl:r:', LOWER(HEX(req)))) IS NOT NULL \
             ORDER BY name LIMIT {limit}; ROLLBACK"
        );
        let seen = self.worker.call(work!(|conn, sql, space| {
            let given = run(conn, sql).await.map_err(calling)?;
            let rows = given.get(1).map(|g| g.rows.as_slice()).unwrap_or_default();
            let infos = rows.iter().map(|row| lock_info(row, &space));
            infos.collect::<Result<Vec<_>, _>>().map_err(calling)
        }));
        seen.await
    }

    async fn status(&self, lock: &FullName) -> QueueStatus {
        let held = self.held(&lock.space, at(lock), 1).await.unwrap_or_default().pop();
        let holder = held.and_then(|mut lock| lock.holds.pop()).map(|hold| hold.holder);
        QueueStatus { holder, ..QueueStatus::default() }
    }
}

/// A new fencing token for a lock, with the holder on record for others to see. Counted in the lock
/// table, in a separate commit: the row lock's transaction may be rolled back, and its token with it
/// if it were written there.
pub(crate) async fn next_token(
    conn: &mut MySqlConnection,
    tables: &Tables,
    lock: &FullName,
    claim: &Claim,
    holder: u64,
    sweep: &sweep::Pace,
) -> Result<Token, Trouble> {
    let Tables { lock: table, meta, held, .. } = tables;
    let (space, name) = (hex(lock.space.as_str()), hex(lock.name.as_str()));
    let text = serde_json::to_vec(claim)
        .map_err(|e| Trouble::answered(Error::new(Kind::Store, "no claim").because(e)))?;
    let sql = format!(
        "INSERT IGNORE INTO {table} (space, name, ver, hi) \
         SELECT {space}, {name}, {NOW}, floor FROM {meta} WHERE one=1 LOCK IN SHARE MODE; \
         UPDATE {table} SET ver=ver+1, hi=LAST_INSERT_ID(GREATEST(hi+1,{NOW})) WHERE {}; \
         REPLACE INTO {held} (space, name, req, token, granted, conn, claim) \
         VALUES ({space}, {name}, {}, LAST_INSERT_ID(), {NOW}, {holder}, {})",
        at(lock),
        hex(claim.req.as_bytes()),
        hex(text)
    );
    loop {
        let given = run(conn, sql.clone()).await.map_err(calling)?;
        if given.first().is_some_and(|g| g.done.rows_affected() > 0) {
            sweep.made_a_row();
        }
        let counted = given.get(1).filter(|g| g.done.rows_affected() > 0);
        // A row that was made this moment may look old enough to be swept: then it is made again.
        let Some(counted) = counted else { continue };
        return Token::new(counted.done.last_insert_id()).map_err(Trouble::answered);
    }
}

/// The name a connection has taken while it holds or waits.
fn sign(req: &ReqId) -> String {
    let hex: String = req.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("dl:r:{hex}")
}

/// A row about a holder.
fn lock_info(row: &MySqlRow, space: &Namespace) -> Result<LockInfo, sqlx::Error> {
    let odd = sqlx::Error::Protocol;
    let claim: Claim = serde_json::from_slice(&row.try_get::<Vec<u8>, _>("claim")?)
        .map_err(|e| odd(e.to_string()))?;
    let name = Name::new(String::from_utf8_lossy(&row.try_get::<Vec<u8>, _>("name")?));
    let holder = Holder {
        label: claim.label,
        owner: claim.owner,
        token: Token::new(number(row, "token")?).map_err(|e| odd(e.to_string()))?,
        age: micros(row, "now")?.since(micros(row, "granted")?),
        // At most: it counts from the holder's last sign of life.
        left: Some(claim.ttl),
    };
    let (req, mode) = (claim.req, claim.mode);
    let tokens = NonZeroU32::MIN;
    let hold = HoldInfo { req, holder, tokens, mode, lingering: false, revoked: false };
    let name = name.map_err(|e| sqlx::Error::Decode(e.into()))?;
    let lock = FullName { space: space.clone(), name };
    Ok(LockInfo { lock, holds: vec![hold], waiters: Vec::new() })
}

impl Store for RowLock {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(SessionDriver::new(self))
    }
}

impl SessionStore for RowLock {
    type Conn = Session;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.clock }
    }

    async fn lock(&self, ask: &Ask, seen: Watcher<'_>) -> Result<Locked<Session>, Error> {
        let until = ask.patience.until(self.clock.now());
        let (mut session, id) = self.session(ask).await?;
        let mut last = QueueStatus::default();
        loop {
            let left = until.since(self.clock.now());
            // A statement waits for whole seconds; what is left of a second is waited for here.
            let wait = left >= SLICE;
            if self.try_row(&session, wait).await? {
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
        let token = self.worker.call(work!(|conn, tables, name, claim, sweep| next_token(
            conn, &tables, &name, &claim, id, &sweep
        )));
        let tokens = TokenRange::new(token.await?, std::num::NonZeroU32::MIN)?;
        self.monitor.watches().await;
        // The token is only ours if the row still is: it may have passed on before it was counted.
        let asked = self.capability.reading(&self.clock);
        self.prove(&session).await?;
        session.min_until = self.clock.now().plus(ask.min_hold);
        Ok(Locked::Held { conn: session, sent: Some(asked), tokens, waiters: 0 })
    }

    async fn alive(&self, session: &mut Session) -> Alive {
        match self.prove(session).await {
            Ok(()) => Alive::Yes { waiters: 0 },
            Err(_) if session.connection.is_broken() => Alive::No(LossReason::Gone),
            Err(e) => Alive::Unknown(e),
        }
    }

    async fn unlock(&self, session: Session) -> Result<Released, Error> {
        self.sweep.step(&self.worker, &self.tables, &self.clock, true);
        let sql = format!(
            "ROLLBACK TO SAVEPOINT {SAVEPOINT}; UPDATE {row} SET used={NOW} WHERE {at}; \
             DELETE FROM {held} WHERE {at} AND req={req}; COMMIT",
            row = self.tables.row,
            held = self.tables.held,
            at = at(&session.lock),
            req = hex(session.req.as_bytes())
        );
        if self.clock.now() < session.min_until {
            self.prove(&session).await?;
            let clock = self.clock.clone();
            engine::spawn(async move {
                clock.sleep_until(session.min_until).await;
                let _ = session.free(sql).await;
            });
            return Ok(Released::Released);
        }
        session.free(sql).await.map_err(|e| e.during("release").store(&self.site))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (space, which, limit) = match query {
            Query::Name(lock) => (&lock.space, at(lock), 1),
            Query::Prefix { space, prefix, after, limit } => {
                (space, page(space, prefix, after.as_ref()), *limit)
            }
        };
        self.held(space, which, limit).await
    }

    async fn force(
        &self,
        _lock: &FullName,
        _token: Option<Token>,
        _how: Force,
    ) -> Result<Forced, Error> {
        Err(Error::new(Kind::Unsupported, "a row lock can only be ended with its connection")
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
        let asked = session.connection.call(work!(|conn| {
            let given = run(conn, sql).await.map_err(calling)?;
            let row = given.get(1).and_then(|g| g.rows.first());
            let read_only = row.map_or(Ok(0), |r| number(r, "read_only")).map_err(calling)?;
            if read_only == 0 { Ok(()) } else { Err(demoted()) }
        }));
        asked.await
    }
}

impl Session {
    /// Gives the row back by these statements, and closes the connection.
    async fn free(self, sql: String) -> Result<Released, Error> {
        let freed = self.connection.call(work!(|conn| execute(conn, sql))).await;
        let lost = self.connection.is_broken();
        self.connection.close().await;
        match freed {
            Ok(()) => Ok(Released::Released),
            // It was broken before anything was sent.
            Err(e) if lost && e.outcome() == Outcome::NotApplied => Ok(Released::WasLost),
            Err(e) => Err(e.lock(&self.lock)),
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
/// [`Kind::Usage`] for an invalid name; transient when somebody else has it for longer than
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
    // One statement that takes the row exclusively, there or not: a look first, or INSERT IGNORE,
    // would take a shared lock that two could not both turn into an exclusive one.
    let sql = format!(
        "INSERT INTO {} (space, name, used) VALUES (X'', {}, {NOW}) \
         ON DUPLICATE KEY UPDATE used={NOW}",
        Tables::new(checked_prefix(prefix)?).row,
        hex(lock.name.as_str())
    );
    run(tx, sql).await.map(drop).map_err(|e| calling(e).error.during("acquire").lock(&lock))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroU32;

    use distlock_core::url::StoreUrl;
    use distlock_core::{Label, Mode, Owner, Patience, Ttl};
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
        let undone = session.connection.call(|conn| {
            Box::pin(async move { run(conn, "ROLLBACK".into()).await.map(drop).map_err(calling) })
        });
        undone.await.unwrap();
    }

    /// The connection lives on and answers; the transaction with the lock does not.
    #[tokio::test]
    async fn a_transaction_that_the_server_ended_is_a_lost_lock() {
        let server = Mariadb::new().start().await.expect("`cargo xtask setup`");
        let url = format!("{}?algorithm=row-lock", Mariadb::url(&server));
        let target = Target::of(StoreUrl::parse(&url).unwrap()).unwrap();
        let store = RowLock::at(target).await.unwrap();
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
