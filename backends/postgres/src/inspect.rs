//! Locks as an operator sees them: rows of `look.sql` as states.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::info::Query;
use distlock_core::state::{Claim, Hold, LockState, Micros, Phase, Waiter};
use distlock_core::{FullName, Label, LockInfo, Name, Owner, ReqId};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Error, PgConnection, Row};

use crate::moves::{mode_of, span};
use crate::statements::Statements;

/// What sorts behind every name that starts with this: more of the last character than any name has
/// room for.
pub(crate) fn behind(prefix: &str) -> String {
    format!("{prefix}{}", "\u{10FFFF}".repeat(64))
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

/// The states of the locks a query names, without their memories of spent requests; with `all` of
/// those too that nobody holds or waits for.
pub(crate) async fn states(
    conn: &mut PgConnection,
    statements: &Statements,
    query: &Query,
    all: bool,
) -> Result<Vec<(FullName, LockState, Micros)>, Error> {
    let (space, low, high, after, limit) = match query {
        Query::Name(lock) => (&lock.space, lock.name.as_str(), lock.name.to_string(), "", 1),
        Query::Prefix { space, prefix, after, limit } => {
            let high = behind(prefix);
            let after = after.as_ref().map_or("", Name::as_str);
            (space, prefix.as_str(), high, after, *limit)
        }
    };
    let rows = sqlx::query(AssertSqlSafe(statements.look.clone()))
        .bind(space.as_str())
        .bind(low)
        .bind(high)
        .bind(after)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(all)
        .fetch_all(conn)
        .await?;
    let mut seen: Vec<(FullName, LockState, Micros)> = Vec::new();
    for row in &rows {
        let odd = || Error::Decode("a lock's row that makes no sense".into());
        let name = Name::new(row.try_get::<&str, _>("name")?).map_err(|_| odd())?;
        let what: i32 = row.try_get("what")?;
        if what == 0 {
            let now = time(row, "now")?;
            let hi = time(row, "token")?.0;
            let delay_until = time(row, "expires")?;
            let state = LockState { hi, delay_until, ..LockState::default() };
            seen.push((FullName { space: space.clone(), name }, state, now));
            continue;
        }
        let (lock, state, _) = seen.last_mut().ok_or_else(odd)?;
        if lock.name != name {
            return Err(odd());
        }
        if what == 1 {
            state.holds.push(hold(row)?.ok_or_else(odd)?);
        } else {
            state.queue.extend([waiter(row)?.ok_or_else(odd)?]);
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

fn claim(row: &PgRow) -> Result<Option<Claim>, Error> {
    let (req, mode, wish): (&[u8], i32, i64) =
        (row.try_get("req")?, row.try_get("mode")?, row.try_get("wish")?);
    let Ok(req) = req.try_into() else { return Ok(None) };
    let Ok(owner) = Owner::named(row.try_get::<&str, _>("owner")?) else { return Ok(None) };
    let block = u32::try_from(wish).ok().and_then(NonZeroU32::new);
    let (Some(mode), Some(block)) = (mode_of(i64::from(mode)), block) else { return Ok(None) };
    Ok(Some(Claim {
        req: ReqId::from_bytes(req),
        owner,
        mode,
        ttl: lasting(row, "ttl")?,
        min_hold: lasting(row, "min_hold")?,
        lock_delay: lasting(row, "lock_delay")?,
        label: Label::new(row.try_get::<&str, _>("label")?),
        block,
        via: row.try_get("via")?,
    }))
}

fn hold(row: &PgRow) -> Result<Option<Hold>, Error> {
    let Some(claim) = claim(row)? else { return Ok(None) };
    let phase = match row.try_get::<i32, _>("phase")? {
        0 => Phase::Held,
        1 => Phase::Claimed { since: time(row, "since")?, deadline: time(row, "deadline")? },
        2 => Phase::Lingering,
        3 => Phase::Revoked,
        _ => return Ok(None),
    };
    let Ok(block) = u32::try_from(row.try_get::<i64, _>("block")?) else { return Ok(None) };
    let token = time(row, "token")?.0;
    let (expires, granted) = (time(row, "expires")?, time(row, "granted")?);
    Ok(Some(Hold { claim, token, block, expires, granted, phase }))
}

fn waiter(row: &PgRow) -> Result<Option<Waiter>, Error> {
    let Some(claim) = claim(row)? else { return Ok(None) };
    let (since, deadline) = (time(row, "since")?, time(row, "deadline")?);
    Ok(Some(Waiter { claim, since, deadline, unreachable: row.try_get("deaf")? }))
}
