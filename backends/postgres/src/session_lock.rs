//! How a session holds a lock: by an advisory lock, or by a row in a transaction that stays open.
//!
//! Everything here runs on the session's own connection. An error ends that session, because nobody
//! knows then what it holds.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Ask, FullName, Label, Owner, ReqId};
use distlock_sql::Trouble;
use sqlx::{AssertSqlSafe, Error, Executor, PgConnection, Row};

use crate::errors::{ends_session, trouble};
use crate::schema::Schema;
use crate::session_admin::{BREAK, END, LOOK, SWEEP};

/// A try waits no longer than this, where it cannot be told not to wait at all.
pub(crate) const TRY: Duration = Duration::from_millis(100);

/// The kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionLockKind {
    Advisory,
    RowLock,
}

impl SessionLockKind {
    /// What the tables call it.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Advisory => "advisory",
            Self::RowLock => "row-lock",
        }
    }
}

/// The lock that a session is to hold, and its request.
pub(crate) struct LockRequest {
    pub(crate) lock: FullName,
    pub(crate) req: ReqId,
    pub(crate) owner: Owner,
    pub(crate) label: Label,
    pub(crate) ttl: Duration,
    /// The number of its advisory lock.
    key: i64,
    /// The number that says that the session lives.
    pub(crate) sign: i64,
    /// How long it may be silent before it has the lock, and with it.
    idle: (String, String),
}

impl LockRequest {
    pub(crate) fn new(schema: &Schema, ask: &Ask, timeout: Duration) -> Self {
        let mut half = [0; 8];
        half.copy_from_slice(&ask.req.as_bytes()[..8]);
        let held = ask.ttl.max(ask.min_hold);
        Self {
            lock: ask.lock.clone(),
            req: ask.req,
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            ttl: ask.ttl,
            key: key(schema.name(), &ask.lock),
            sign: i64::from_be_bytes(half),
            idle: (millis(held.max(timeout)), millis(held)),
        }
    }
}

/// A span as a setting: at least a millisecond, as none would mean for ever.
fn millis(d: Duration) -> String {
    format!("{}ms", d.as_millis().clamp(1, 2_147_483_647))
}

/// The number of a lock: FNV-1a of its parts, each with its length, stirred. It must never change:
/// clients of two versions would not exclude each other.
fn key(schema: &str, lock: &FullName) -> i64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in [schema, lock.space.as_str(), lock.name.as_str()] {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes();
        for byte in length.iter().chain(part.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)).cast_signed()
}

const RESTED: &str = "set_config('lock_timeout', '0', false), \
    set_config('idle_session_timeout', '60s', false), \
    set_config('idle_in_transaction_session_timeout', '60s', false)";

/// The statements, for one schema.
pub(crate) struct SessionStatements {
    pub(crate) lock_kind: SessionLockKind,
    begin: Arc<str>,
    begin_advisory: Arc<str>,
    make_row: Arc<str>,
    try_row: Arc<str>,
    wait_row: Arc<str>,
    register: Arc<str>,
    token: Arc<str>,
    prove_advisory: Arc<str>,
    prove_row: Arc<str>,
    free_advisory: Arc<str>,
    free_row: Arc<str>,
    rest: Arc<str>,
    pub(crate) look: Arc<str>,
    pub(crate) end: Arc<str>,
    pub(crate) force: Arc<str>,
    pub(crate) sweep: Arc<str>,
}

impl SessionStatements {
    pub(crate) fn new(lock_kind: SessionLockKind, schema: &Schema) -> Self {
        let sql = |text: &str| Arc::from(schema.fill(text).replace("@RESTED", RESTED));
        let begin = |take: &str| {
            format!(
                "SELECT pg_backend_pid(), pg_try_advisory_lock($1), \
                set_config('idle_session_timeout', $2, false), \
                set_config('idle_in_transaction_session_timeout', $2, false), \
                set_config('lock_timeout', $3, false), {take}"
            )
        };
        let row = "SELECT pg_current_xact_id()::text FROM distlock.rowlock \
            WHERE space = $1 AND name = $2 FOR UPDATE";
        Self {
            lock_kind,
            begin: sql(&begin("NULL::boolean")),
            begin_advisory: sql(&begin("pg_try_advisory_lock($4)")),
            make_row: sql(
                "INSERT INTO distlock.rowlock (space, name) SELECT $1, $2 WHERE NOT EXISTS \
                (SELECT FROM distlock.rowlock WHERE space = $1 AND name = $2) \
                ON CONFLICT DO NOTHING",
            ),
            try_row: sql(&format!("{row} SKIP LOCKED")),
            wait_row: sql(row),
            register: sql("WITH mine AS (INSERT INTO distlock.waiting \
                (sign, pid, kind, space, name, since, req, owner, label) \
                VALUES ($1, pg_backend_pid(), $2, $3, $4, distlock.now_us(), $5, $6, $7) \
                ON CONFLICT DO NOTHING) SELECT set_config('lock_timeout', $8, false)"),
            // The token rises whatever became of the row, and is on disk before it is told.
            token: sql("WITH mine AS (DELETE FROM distlock.waiting WHERE sign = $1) \
                INSERT INTO distlock.held AS h \
                (kind, space, name, token, granted, sign, pid, req, owner, label, ttl) \
                VALUES ($2, $3, $4, distlock.now_us(), distlock.now_us(), $1, $5, $6, $7, $8, $9) \
                ON CONFLICT (kind, space, name) DO UPDATE \
                SET token = greatest(h.token + 1, excluded.token), granted = excluded.granted, \
                sign = excluded.sign, pid = excluded.pid, req = excluded.req, \
                owner = excluded.owner, label = excluded.label, ttl = excluded.ttl \
                RETURNING token"),
            prove_advisory: sql(
                "SELECT coalesce(bool_or(granted AND pid = pg_backend_pid()), false), \
                count(*) FILTER (WHERE NOT granted), set_config('idle_session_timeout', $2, false) \
                FROM distlock.signs WHERE sign = $1",
            ),
            prove_row: sql("SELECT coalesce(pg_current_xact_id_if_assigned()::text = $1, false), \
                (SELECT count(*) FROM distlock.waiting w JOIN distlock.signs s \
                ON s.sign = w.sign AND s.pid = w.pid AND s.granted \
                WHERE w.kind = 'row-lock' AND w.space = $3 AND w.name = $4), \
                set_config('idle_in_transaction_session_timeout', $2, false)"),
            free_advisory: sql("SELECT pg_advisory_unlock($1), pg_advisory_unlock_all(), @RESTED"),
            free_row: sql("SELECT coalesce(pg_current_xact_id_if_assigned()::text = $1, false), \
                pg_advisory_unlock_all(), @RESTED"),
            rest: sql("WITH mine AS (DELETE FROM distlock.waiting WHERE sign = $1) \
                SELECT pg_advisory_unlock_all(), @RESTED"),
            look: sql(LOOK),
            end: sql(END),
            force: sql(BREAK),
            sweep: sql(SWEEP),
        }
    }
}

fn code(e: &Error) -> Option<String> {
    e.as_database_error().and_then(|e| e.code()).map(|c| c.into_owned())
}

/// The wait was ended: by its timeout, or by a cancel.
fn gave_up(e: &Error) -> bool {
    matches!(code(e).as_deref(), Some("55P03" | "57014"))
}

/// Any error is the end of a session.
pub(crate) fn fatal(e: Error) -> Trouble {
    // The server says that it ended the session instead of doing what was asked.
    let ended = ends_session(&e);
    let error = trouble(e).error;
    Trouble { error: if ended { error.not_applied() } else { error.unknown() }, broken: true }
}

/// What a session has: for a row, the transaction that holds it.
pub(crate) type HoldingTx = Option<Arc<str>>;

/// Sets a session up for a request, and takes the lock where the same statement can; answers the
/// session's number.
pub(crate) async fn begin(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
) -> Result<(i32, HoldingTx), Error> {
    let advisory = sql.lock_kind == SessionLockKind::Advisory;
    let text = if advisory { &sql.begin_advisory } else { &sql.begin };
    let mut query = sqlx::query(AssertSqlSafe(text.clone()))
        .bind(request.sign)
        .bind(&request.idle.0)
        // An advisory lock is tried without waiting; the row of its token may be waited for.
        .bind(if advisory { "0".to_owned() } else { millis(TRY) });
    if advisory {
        query = query.bind(request.key);
    }
    let row = query.fetch_one(conn).await?;
    if !row.try_get::<bool, _>(1)? {
        return Err(Error::Protocol("two requests of one number".into()));
    }
    let taken = row.try_get::<Option<bool>, _>(5)? == Some(true);
    Ok((row.try_get(0)?, taken.then(|| "".into())))
}

/// Takes the row if it is free; `None` when it is not.
pub(crate) async fn try_row(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
) -> Result<HoldingTx, Error> {
    row(conn, sql, &sql.try_row, request).await
}

/// Waits for the lock in the server's own queue, for at most this long; `None` when it was not granted.
pub(crate) async fn wait(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
    most: Option<Duration>,
) -> Result<HoldingTx, Error> {
    let query = sqlx::query(AssertSqlSafe(sql.register.clone()))
        .bind(request.sign)
        .bind(sql.lock_kind.kind())
        .bind(request.lock.space.as_str())
        .bind(request.lock.name.as_str())
        .bind(&request.req.as_bytes()[..])
        .bind(request.owner.as_str())
        .bind(request.label.as_str())
        .bind(most.map_or_else(|| "0".to_owned(), millis));
    query.execute(&mut *conn).await?;
    let has = match sql.lock_kind {
        SessionLockKind::Advisory => {
            let waited = sqlx::query("SELECT pg_advisory_lock($1)").bind(request.key);
            match waited.execute(&mut *conn).await {
                Ok(_) => Some("".into()),
                // It may have it all the same: everything is given back before it goes on.
                Err(e) if gave_up(&e) => None,
                Err(e) => return Err(e),
            }
        }
        SessionLockKind::RowLock => row(conn, sql, &sql.wait_row, request).await?,
    };
    if has.is_some() {
        conn.execute("SET lock_timeout = 0").await?;
    }
    Ok(has)
}

/// Locks the row, by this statement.
async fn row(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    text: &Arc<str>,
    request: &LockRequest,
) -> Result<HoldingTx, Error> {
    let (space, name) = (request.lock.space.as_str(), request.lock.name.as_str());
    loop {
        // By itself, not in the transaction: others would not see the row until that ends.
        let make = sqlx::query(AssertSqlSafe(sql.make_row.clone())).bind(space).bind(name);
        match make.execute(&mut *conn).await {
            Ok(_) => {}
            // Somebody makes it in a transaction of his own, and so has it.
            Err(e) if gave_up(&e) => return Ok(None),
            Err(e) => return Err(e),
        }
        conn.execute("BEGIN").await?;
        let query = sqlx::query_scalar(AssertSqlSafe(text.clone())).bind(space).bind(name);
        let found: Result<Option<String>, _> = query.fetch_optional(&mut *conn).await;
        let over = match found {
            Ok(Some(xid)) => return Ok(Some(xid.into())),
            Ok(None) => Arc::ptr_eq(text, &sql.try_row),
            Err(e) if gave_up(&e) => true,
            Err(e) => return Err(e),
        };
        conn.execute("ROLLBACK").await?;
        if over {
            return Ok(None);
        }
        // It was swept while we waited: there is another one, or none.
    }
}

/// Counts a token, and writes down the holder, in a commit of its own.
pub(crate) async fn token(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
    pid: i32,
) -> Result<i64, Error> {
    let query = sqlx::query_scalar(AssertSqlSafe(sql.token.clone()))
        .bind(request.sign)
        .bind(sql.lock_kind.kind())
        .bind(request.lock.space.as_str())
        .bind(request.lock.name.as_str())
        .bind(pid)
        .bind(&request.req.as_bytes()[..])
        .bind(request.owner.as_str())
        .bind(request.label.as_str())
        .bind(i64::try_from(request.ttl.as_micros()).unwrap_or(i64::MAX));
    query.fetch_one(conn).await
}

/// Whether the session holds its lock at this moment, and how many wait for it.
pub(crate) async fn prove(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
    has: &str,
) -> Result<(bool, u32), Error> {
    let query = match sql.lock_kind {
        SessionLockKind::Advisory => sqlx::query(AssertSqlSafe(sql.prove_advisory.clone()))
            .bind(request.key)
            .bind(&request.idle.1),
        SessionLockKind::RowLock => sqlx::query(AssertSqlSafe(sql.prove_row.clone()))
            .bind(has)
            .bind(&request.idle.1)
            .bind(request.lock.space.as_str())
            .bind(request.lock.name.as_str()),
    };
    let row = query.fetch_one(conn).await?;
    Ok((row.try_get(0)?, u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX)))
}

/// Gives back the lock and everything else; says whether the session had it until now.
pub(crate) async fn free(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
    has: &str,
) -> Result<bool, Error> {
    let query = match sql.lock_kind {
        SessionLockKind::Advisory => {
            sqlx::query(AssertSqlSafe(sql.free_advisory.clone())).bind(request.key)
        }
        SessionLockKind::RowLock => sqlx::query(AssertSqlSafe(sql.free_row.clone())).bind(has),
    };
    let held = query.fetch_one(&mut *conn).await?.try_get(0)?;
    if sql.lock_kind == SessionLockKind::RowLock {
        conn.execute("COMMIT").await?;
    }
    Ok(held)
}

/// Gives back everything, after a wait in vain.
pub(crate) async fn rest(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    request: &LockRequest,
) -> Result<(), Error> {
    sqlx::query(AssertSqlSafe(sql.rest.clone())).bind(request.sign).execute(conn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use distlock_core::{Name, Namespace};

    use super::*;

    #[test]
    fn the_number_of_a_lock_is_for_ever_and_its_parts_are_apart() {
        let of = |schema: &str, space: &str, name: &str| {
            let (space, name) = (Namespace::new(space).unwrap(), Name::new(name).unwrap());
            key(schema, &FullName { space, name })
        };
        assert_eq!(of("distlock", "", "orders/42"), 2_970_124_718_760_173_464);
        assert_ne!(of("distlock", "a", "bc"), of("distlock", "ab", "c"));
        assert_ne!(of("distlocka", "", "b"), of("distlock", "a", "b"));
    }
}
