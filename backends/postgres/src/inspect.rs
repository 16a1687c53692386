//! Locks as an operator sees them: rows of `inspect.sql` as states.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{Claim, Hold, Phase, Waiter};
use distlock_core::{
    FullName, Label, LockInfo, LockState, Micros, Name, Namespace, Owner, Query, ReqId,
};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Error, PgConnection, Row};

use crate::columns::{mode_of, span};
use crate::function_calls::PgQuery;
use crate::statements::Statements;

/// What sorts behind every name that starts with this: more of the last character than any name has
/// room for.
pub(crate) fn behind(prefix: &str) -> String {
    format!("{prefix}{}", "\u{10FFFF}".repeat(64))
}

/// The names that a query is about, as a statement has them.
pub(crate) struct Range<'q> {
    pub(crate) space: &'q Namespace,
    low: &'q str,
    high: String,
    after: &'q str,
    limit: i64,
}

impl<'q> Range<'q> {
    pub(crate) fn of(query: &'q Query) -> Self {
        let (space, low, high, after, limit) = match query {
            Query::Name(lock) => (&lock.space, lock.name.as_str(), lock.name.to_string(), "", 1),
            Query::Prefix { space, prefix, after, limit } => {
                let after = after.as_ref().map_or("", Name::as_str);
                (space, prefix.as_str(), behind(prefix), after, *limit)
            }
        };
        Self { space, low, high, after, limit: i64::try_from(limit).unwrap_or(i64::MAX) }
    }

    /// The next five values of a statement: namespace, lowest name, highest, the name before, and how
    /// many.
    pub(crate) fn bind<'a>(&'a self, query: PgQuery<'a>) -> PgQuery<'a> {
        let query = query.bind(self.space.as_str()).bind(self.low).bind(&self.high);
        query.bind(self.after).bind(self.limit)
    }
}

/// An answer that our tables do not give.
fn odd() -> Error {
    Error::Decode("a lock's row could not be decoded".into())
}

/// The locks a query names that are held or waited for.
pub(crate) async fn inspect(
    conn: &mut PgConnection,
    statements: &Statements,
    query: &Query,
) -> Result<Vec<LockInfo>, Error> {
    let seen = states(conn, statements, query, false).await?;
    Ok(seen.into_iter().filter_map(|(lock, state, now)| state.view(&lock, now)).collect())
}

/// The states of the locks a query names, without their tombstones; with `all` of
/// those too that nobody holds or waits for.
pub(crate) async fn states(
    conn: &mut PgConnection,
    statements: &Statements,
    query: &Query,
    all: bool,
) -> Result<Vec<(FullName, LockState, Micros)>, Error> {
    let range = Range::of(query);
    let rows = range.bind(sqlx::query(AssertSqlSafe(statements.look.clone()))).bind(all);
    let rows = rows.fetch_all(conn).await?;
    let mut seen: Vec<(FullName, LockState, Micros)> = Vec::new();
    for row in &rows {
        let name = Name::new(row.try_get::<&str, _>("name")?).map_err(|_| odd())?;
        let what: i32 = row.try_get("what")?;
        if what == 0 {
            let now = time(row, "now")?;
            let hi = time(row, "token")?.0;
            let delay_until = time(row, "expires")?;
            let state = LockState { hi, delay_until, ..LockState::default() };
            seen.push((FullName { space: range.space.clone(), name }, state, now));
            continue;
        }
        let (lock, state, _) = seen.last_mut().ok_or_else(odd)?;
        if lock.name != name {
            return Err(odd());
        }
        if what == 1 {
            state.holds.push(hold(row)?);
        } else {
            state.queue.extend([waiter(row)?]);
        }
    }
    Ok(seen)
}

fn time(row: &PgRow, column: &str) -> Result<Micros, Error> {
    let micros: i64 = row.try_get(column)?;
    Ok(Micros(u64::try_from(micros).unwrap_or(0)))
}

fn lasting(row: &PgRow, column: &str) -> Result<Duration, Error> {
    Ok(span(row.try_get(column)?).unwrap_or_default())
}

fn claim(row: &PgRow) -> Result<Claim, Error> {
    let block = u32::try_from(row.try_get::<i64, _>("wish")?).ok().and_then(NonZeroU32::new);
    let mode = mode_of(i64::from(row.try_get::<i32, _>("mode")?));
    Ok(Claim {
        req: ReqId::from_bytes(row.try_get::<&[u8], _>("req")?.try_into().map_err(|_| odd())?),
        owner: Owner::named(row.try_get::<&str, _>("owner")?).map_err(|_| odd())?,
        mode: mode.ok_or_else(odd)?,
        ttl: lasting(row, "ttl")?,
        min_hold: lasting(row, "min_hold")?,
        lock_delay: lasting(row, "lock_delay")?,
        label: Label::new(row.try_get::<&str, _>("label")?),
        block: block.ok_or_else(odd)?,
        via: row.try_get("via")?,
    })
}

fn hold(row: &PgRow) -> Result<Hold, Error> {
    let phase = match row.try_get::<i32, _>("phase")? {
        0 => Phase::Held,
        1 => Phase::Claimed { since: time(row, "since")?, deadline: time(row, "deadline")? },
        2 => Phase::Lingering,
        3 => Phase::Revoked,
        _ => return Err(odd()),
    };
    let block = u32::try_from(row.try_get::<i64, _>("block")?).map_err(|_| odd())?;
    let (token, granted) = (time(row, "token")?.0, time(row, "granted")?);
    Ok(Hold { claim: claim(row)?, token, block, expires: time(row, "expires")?, granted, phase })
}

fn waiter(row: &PgRow) -> Result<Waiter, Error> {
    let (since, deadline) = (time(row, "since")?, time(row, "deadline")?);
    Ok(Waiter { claim: claim(row)?, since, deadline, unreachable: row.try_get("deaf")? })
}
