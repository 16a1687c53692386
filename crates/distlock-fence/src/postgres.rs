//! Fence, optimistic update and once-only effects in PostgreSQL, through `sqlx`.
//!
//! The fence of a resource is a row:
//!
//! 1. Insert it, or raise it, and read what is there now, in one statement. That locks it for the
//!    rest of the transaction.
//! 2. If it is above our token, raise an error inside the database: the transaction is aborted,
//!    whatever else is asked of it fails, and its commit is a rollback.
//!
//! At `REPEATABLE READ` and `SERIALIZABLE` a fence that somebody moved since the transaction began
//! is a serialization failure (40001); that, a deadlock (40P01) and a lock that was not to be had
//! in time (55P03) are [`Error::Retry`].

use std::time::Duration;

use distlock_core::{Name, Token};
use sqlx::{Acquire, AssertSqlSafe, Executor, PgConnection, Postgres, Transaction};

use crate::optimistic::{self, Tries};
use crate::sql::{self, Dialect, judge, known, name, number};
use crate::{Column, Error, First, Once, Stale, Versioned};

/// The tables, for people who create them by themselves.
pub const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS distlock_fence (
  resource text COLLATE \"C\" NOT NULL PRIMARY KEY,
  token bigint NOT NULL,
  layout smallint NOT NULL DEFAULT 1
)",
    "CREATE TABLE IF NOT EXISTS distlock_once (
  effect text COLLATE \"C\" NOT NULL PRIMARY KEY,
  answer bytea,
  at bigint NOT NULL,
  layout smallint NOT NULL DEFAULT 1
)",
    "CREATE INDEX IF NOT EXISTS distlock_once_at ON distlock_once (at)",
];

/// Microseconds since 1970.
const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)";
/// Serialization failure, deadlock, lock not available.
const AGAIN: [&str; 3] = ["40001", "40P01", "55P03"];
const NO_SUCH_TABLE: &str = "42P01";
/// `distlock` in a 64-bit number: what `install` runs under, because two who create one table at
/// once fail in PostgreSQL, also with IF NOT EXISTS.
const INSTALL: i64 = 0x6469_7374_6c6f_636b;

fn is(e: &sqlx::Error, codes: &[&str]) -> bool {
    e.as_database_error().and_then(|e| e.code()).is_some_and(|code| codes.contains(&&*code))
}

fn id(name: &Name) -> &str {
    name.as_str()
}

const DONE: &str = "SELECT answer, at, layout FROM distlock_once WHERE effect = $1";

/// Creates the tables, where they are missing.
///
/// # Errors
/// [`Error::Store`] for the database's own, such as a missing right.
///
/// # Cancel safety
/// All or nothing is created.
pub async fn install(db: impl Acquire<'_, Database = Postgres>) -> Result<(), Error> {
    let mut tx = db.begin().await.map_err(trouble)?;
    let alone = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(INSTALL);
    alone.execute(&mut *tx).await.map_err(trouble)?;
    for statement in SCHEMA {
        tx.execute(*statement).await.map_err(trouble)?;
    }
    tx.commit().await.map_err(trouble)
}

/// Fences this transaction: everything in it happens only if no higher token was here before, and
/// nobody with another token comes in between, because the fence's row stays locked to its end.
///
/// **Make it the first statement**, so that all that is read afterwards is of one's own turn.
///
/// After [`Error::Stale`] the transaction is aborted: all else in it fails, and committing it
/// changes nothing. (A savepoint from before the fence can still be returned to.)
///
/// # Errors
/// [`Error::Stale`] when a higher token was here; [`Error::Retry`] when the transaction has to be
/// run again; [`Error::NotInstalled`] without [`install`].
///
/// # Cancel safety
/// What it did is part of the transaction: roll that back.
pub async fn fence(
    tx: &mut Transaction<'_, Postgres>,
    resource: &str,
    token: Token,
) -> Result<(), Error> {
    let resource = name(resource)?;
    let (seen, layout): (i64, i16) = sqlx::query_as(
        "INSERT INTO distlock_fence AS f (resource, token) VALUES ($1, $2)
         ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, excluded.token)
         RETURNING token, layout",
    )
    .bind(id(&resource))
    .bind(number(token))
    .fetch_one(&mut **tx)
    .await
    .map_err(ours)?;
    known(layout)?;
    admit(tx, resource.as_str(), token, seen).await
}

/// Aborts the transaction with an error of the database's own, which also leaves a line in its
/// log.
async fn spoil(tx: &mut Transaction<'_, Postgres>, stale: Stale) -> Error {
    let raise = sqlx::query("SELECT CAST($1::text AS integer)");
    match raise.bind(format!("distlock-fence: {stale}")).execute(&mut **tx).await {
        // 22P02: that this is no integer is what was to be.
        Err(e) if !is(&e, &["22P02"]) => trouble(e),
        _ => stale.into(),
    }
}

crate::sqlx_rows::rows!(Postgres, PgConnection, Dialect::Postgres);

/// Asks whether the effect `key` has happened. The first to ask does it, in this transaction; all
/// others wait for its end and learn what it answered, or are first if it was rolled back.
///
/// # Errors
/// [`Error::Retry`] when the transaction has to be run again; [`Error::NotInstalled`] without
/// [`install`].
///
/// # Cancel safety
/// What it did is part of the transaction: roll that back.
pub async fn once(tx: &mut Transaction<'_, Postgres>, key: &str) -> Result<Once, Error> {
    let key = name(key)?;
    // Not a plain insert: its failure would abort the caller's transaction.
    let insert = AssertSqlSafe(format!(
        "INSERT INTO distlock_once (effect, at) VALUES ($1, {NOW}) ON CONFLICT DO NOTHING"
    ));
    let insert = sqlx::query(insert).bind(id(&key));
    match insert.execute(&mut **tx).await.map_err(ours)?.rows_affected() {
        1 => Ok(Once::First(First { key })),
        _ => already_done(tx, &key).await,
    }
}

/// Stores what the first run answered, for those who ask later.
///
/// # Errors
/// [`Error::Store`] for the database's own.
///
/// # Cancel safety
/// What it did is part of the transaction: roll that back.
pub async fn answer(
    tx: &mut Transaction<'_, Postgres>,
    first: First,
    answer: &[u8],
) -> Result<(), Error> {
    let update = sqlx::query("UPDATE distlock_once SET answer = $1 WHERE effect = $2");
    let update = update.bind(answer).bind(id(&first.key));
    update.execute(&mut **tx).await.map(drop).map_err(trouble)
}

/// Forgets at most `limit` effects that are older than `age`, the oldest first, and says how many.
/// Whoever asks for one of them again does it again.
///
/// # Errors
/// [`Error::Retry`] when it met others; [`Error::NotInstalled`] without [`install`].
///
/// # Cancel safety
/// It may still happen.
pub async fn forget_older_than(
    db: &mut PgConnection,
    age: Duration,
    limit: u32,
) -> Result<u64, Error> {
    let delete = format!(
        "DELETE FROM distlock_once WHERE effect IN (SELECT effect FROM distlock_once
         WHERE at < {NOW} - $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)"
    );
    let delete = sqlx::query(AssertSqlSafe(delete)).bind(sql::micros(age)).bind(i64::from(limit));
    Ok(delete.execute(db).await.map_err(ours)?.rows_affected())
}
