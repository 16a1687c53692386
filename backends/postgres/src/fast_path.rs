//! Fast paths, one plain UPDATE each: acquire a free lock without waiters, release it, and confirm
//! a promotion that was notified.
//!
//! Each does what the function of the same move would do, or nothing at all; then that function
//! decides.

use std::num::NonZeroU32;

use distlock_core::{Ask, Key, Mode, Reply};
use sqlx::{Error, PgConnection, Row};

use crate::columns::{count, micros, number_of, token};
use crate::function_calls::{about, odd};
use crate::statements::Statements;

/// Whether a request can be granted this way at all: how late it is matters to a hold of a least
/// length, and a block of tokens is cut by the clock.
pub(crate) fn fits(ask: &Ask) -> bool {
    ask.min_hold.is_zero() && ask.block == NonZeroU32::MIN
}

/// Takes a lock that nobody holds and nobody waits for.
pub(crate) async fn take(
    conn: &mut PgConnection,
    statements: &Statements,
    ask: &Ask,
    via: &str,
) -> Result<Option<Reply>, Error> {
    let row = about(&statements.take, &ask.lock, &ask.req)
        .bind(ask.owner.as_str())
        .bind(number_of(ask.mode))
        .bind(micros(ask.ttl))
        .bind(micros(ask.lock_delay))
        .bind(ask.label.as_str())
        .bind(via)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let token = token(row.try_get(0)?).ok_or_else(|| odd("take"))?;
    let (block, remaining) = (NonZeroU32::MIN, ask.ttl);
    Ok(Some(Reply::Granted { token, block, remaining, waiters: 0, floor: token }))
}

/// Whether a turn can be confirmed this way at all: readers are let in with each other.
pub(crate) fn fits_a_turn(ask: &Ask) -> bool {
    ask.mode == Mode::Exclusive && ask.min_hold.is_zero()
}

/// Confirms the turn of a request that was told of it.
pub(crate) async fn confirm(
    conn: &mut PgConnection,
    statements: &Statements,
    ask: &Ask,
    via: Option<&str>,
) -> Result<Option<Reply>, Error> {
    let row = about(&statements.confirm, &ask.lock, &ask.req)
        .bind(micros(ask.ttl))
        .bind(via)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let (first, block, waiters): (i64, i64, i32) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let granted = || {
        let (token, block) = (token(first)?, NonZeroU32::new(count(block)?)?);
        let waiters = count(waiters.into())?;
        Some(Reply::Granted { token, block, remaining: ask.ttl, waiters, floor: token })
    };
    granted().map(Some).ok_or_else(|| odd("confirm"))
}

/// Gives back a hold that nobody waits for; whether it did.
pub(crate) async fn give(
    conn: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> Result<bool, Error> {
    let done = about(&statements.give, &key.lock, &key.req).execute(conn).await?;
    Ok(done.rows_affected() > 0)
}
