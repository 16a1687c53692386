//! Session locks for operators: lists holders and waiters, ends a session, sweeps rows of dead ones.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::{
    FullName, HoldInfo, Holder, Label, LockInfo, Micros, Mode, Name, Owner, Query, ReqId, Token,
    WaiterInfo,
};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Error, PgConnection, Row};

use crate::{inspect::Range, session_lock::SessionStatements};

/// Of kind $1, in namespace $2, the names from $3 to $4 after $5, at most $6 of them: a row for each
/// hold (what 1) and each waiter (what 2), those in the order in which the server has them.
pub(crate) const LOOK: &str = "WITH live AS MATERIALIZED (SELECT pid, sign FROM distlock.signs WHERE granted), \
    blocked AS MATERIALIZED (SELECT pid, min(waitstart) AS start FROM pg_catalog.pg_locks \
      WHERE NOT granted GROUP BY pid), \
    seen AS MATERIALIZED ( \
      SELECT h.name, 1 AS what, h.req, h.owner, h.label, h.ttl, h.token, h.granted AS since, \
        NULL::timestamptz AS start \
      FROM distlock.held h JOIN live l ON l.pid = h.pid AND l.sign = h.sign \
      WHERE h.kind = $1 AND h.space = $2 AND h.name >= $3 AND h.name <= $4 AND h.name > $5 \
      UNION ALL \
      SELECT w.name, 2, w.req, w.owner, w.label, 0, 0, w.since, \
        CASE WHEN $1 = 'advisory' THEN b.start END \
      FROM distlock.waiting w JOIN live l ON l.pid = w.pid AND l.sign = w.sign \
      JOIN blocked b ON b.pid = w.pid \
      WHERE w.kind = $1 AND w.space = $2 AND w.name >= $3 AND w.name <= $4 AND w.name > $5), \
    page AS (SELECT DISTINCT name FROM seen ORDER BY name LIMIT $6) \
    SELECT s.name, s.what, s.req, s.owner, s.label, s.ttl, s.token, s.since, distlock.now_us() AS now \
    FROM seen s JOIN page p ON p.name = s.name ORDER BY s.name, s.what, s.start, s.since";
/// Only the very session: its number may be another's by now.
pub(crate) const END: &str = "WITH mine AS (DELETE FROM distlock.waiting WHERE sign = $1) \
    SELECT pg_terminate_backend(pid) FROM distlock.signs WHERE sign = $1 AND pid = $2 AND granted";
/// And waits until it is gone.
pub(crate) const BREAK: &str = "SELECT pg_terminate_backend(s.pid, 2000) FROM distlock.held h \
    JOIN distlock.signs s ON s.sign = h.sign AND s.pid = h.pid AND s.granted \
    WHERE h.kind = $1 AND h.space = $2 AND h.name = $3 AND ($4::bigint IS NULL OR h.token = $4)";
pub(crate) const SWEEP: &str = "SELECT * FROM distlock.sweep_held($1, $2, $3, $4)";
/// How many rows a sweep looks at.
const WINDOW: i32 = 200;

/// The locks a query names that are held or waited for.
pub(crate) async fn inspect(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    query: &Query,
) -> Result<Vec<LockInfo>, Error> {
    let range = Range::of(query);
    let rows = range.bind(sqlx::query(AssertSqlSafe(sql.look.clone())).bind(sql.lock_kind.kind()));
    let rows = rows.fetch_all(conn).await?;
    let mut seen: Vec<LockInfo> = Vec::new();
    for row in &rows {
        let name = Name::new(row.try_get::<&str, _>("name")?).map_err(odd)?;
        if seen.last().is_none_or(|l| l.lock.name != name) {
            let lock = FullName { space: range.space.clone(), name };
            seen.push(LockInfo { lock, holds: Vec::new(), waiters: Vec::new() });
        }
        let Some(lock) = seen.last_mut() else { continue };
        if row.try_get::<i32, _>("what")? == 1 {
            lock.holds.push(hold(row)?);
        } else {
            lock.waiters.push(waiter(row)?);
        }
    }
    Ok(seen)
}

fn odd(e: distlock_core::Error) -> Error {
    Error::Decode(e.into())
}

fn number(row: &PgRow, column: &str) -> Result<u64, Error> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
}

/// The holder, and its age.
fn who(row: &PgRow) -> Result<(ReqId, Owner, Label, Duration), Error> {
    let req: &[u8] = row.try_get("req")?;
    let req =
        req.try_into().map_err(|_| Error::Decode("a request's number of odd length".into()))?;
    let owner = Owner::named(row.try_get::<&str, _>("owner")?).map_err(odd)?;
    let (now, since) = (Micros(number(row, "now")?), Micros(number(row, "since")?));
    let label = Label::new(row.try_get::<&str, _>("label")?);
    Ok((ReqId::from_bytes(req), owner, label, now.since(since)))
}

fn hold(row: &PgRow) -> Result<HoldInfo, Error> {
    let (req, owner, label, age) = who(row)?;
    let token = Token::new(number(row, "token")?).map_err(odd)?;
    // At most: it counts from the holder's last sign of life.
    let left = Some(Duration::from_micros(number(row, "ttl")?));
    let holder = Holder { label, owner, token, age, left };
    let (tokens, mode) = (NonZeroU32::MIN, Mode::Exclusive);
    Ok(HoldInfo { req, holder, tokens, mode, lingering: false, revoked: false })
}

fn waiter(row: &PgRow) -> Result<WaiterInfo, Error> {
    let (req, owner, label, waited) = who(row)?;
    Ok(WaiterInfo { req, owner, label, mode: Mode::Exclusive, waited })
}

/// Ends the session of a request, if it is still there.
pub(crate) async fn end(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    sign: i64,
    pid: i32,
) -> Result<(), Error> {
    let query = sqlx::query(AssertSqlSafe(sql.end.clone())).bind(sign).bind(pid);
    query.fetch_all(conn).await.map(drop)
}

/// Ends the session that holds a lock, if it is meant; says whether there was one.
pub(crate) async fn force(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    lock: &FullName,
    token: Option<Token>,
) -> Result<bool, Error> {
    let query = sqlx::query(AssertSqlSafe(sql.force.clone()))
        .bind(sql.lock_kind.kind())
        .bind(lock.space.as_str())
        .bind(lock.name.as_str())
        .bind(token.map(|t| t.get().cast_signed()));
    Ok(!query.fetch_all(conn).await?.is_empty())
}

/// Takes away a few rows that nobody has used for a day; from there on the next time.
pub(crate) async fn sweep(
    conn: &mut PgConnection,
    sql: &SessionStatements,
    after: &(String, String),
) -> Result<(String, String), Error> {
    let query = sqlx::query(AssertSqlSafe(sql.sweep.clone()))
        .bind(sql.lock_kind.kind())
        .bind(WINDOW)
        .bind(&after.0)
        .bind(&after.1);
    let row = query.fetch_one(conn).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
