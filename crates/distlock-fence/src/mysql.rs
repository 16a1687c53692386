//! Fence, optimistic update and once-only effects in MySQL and MariaDB, through `sqlx`.
//!
//! The fence of a resource is a row:
//!
//! 1. Insert it, or raise it, in one statement. That locks it for the rest of the transaction;
//!    inserting it with `IGNORE` would only share it, and two who share it and both want to raise
//!    it are a deadlock.
//! 2. Read it `FOR UPDATE`: what counts is the latest row, not the snapshot of the transaction.
//! 3. If it is above our token, roll back and go on as a read-only transaction: whoever overlooks
//!    the error has written nothing, and the next write fails.
//!
//! Several who wait for the first insert of a resource, when that is rolled back, can still meet
//! in a deadlock (1213); that, a lock wait that timed out (1205) and a row that changed under a
//! snapshot (1020) are [`Error::Retry`].

use std::time::Duration;

use distlock_core::{Name, Token};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Acquire, AssertSqlSafe, Executor, MySql, MySqlConnection, Transaction};

use crate::optimistic::{self, Tries};
use crate::sql::{self, Dialect, judge, known, name, number};
use crate::{Column, Error, First, Once, Stale, Versioned};

/// The tables, for people who create them by themselves.
pub const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS distlock_fence (
  resource VARBINARY(255) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL,
  layout SMALLINT NOT NULL DEFAULT 1
) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS distlock_once (
  effect VARBINARY(255) NOT NULL PRIMARY KEY,
  answer LONGBLOB,
  at BIGINT NOT NULL,
  layout SMALLINT NOT NULL DEFAULT 1,
  KEY distlock_once_at (at)
) ENGINE=InnoDB",
];

/// Microseconds since 1970. Not UNIX_TIMESTAMP: that goes through the session's time zone, and an
/// hour of every year has two meanings there.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

const DUPLICATE: u16 = 1062;
const NO_SUCH_TABLE: u16 = 1146;
/// Lock wait timeout, deadlock, record changed since last read, lock not available.
const AGAIN: [u16; 4] = [1205, 1213, 1020, 3572];

fn is(e: &sqlx::Error, numbers: &[u16]) -> bool {
    let e = e.as_database_error().and_then(|e| e.try_downcast_ref::<MySqlDatabaseError>());
    e.is_some_and(|e| numbers.contains(&e.number()))
}

/// The columns are binary, so that no collation makes two names one.
fn id(name: &Name) -> &[u8] {
    name.as_str().as_bytes()
}

/// The refused insert shares a lock on the row, so it stays; and shared reading is of the latest row,
/// not of the snapshot.
const DONE: &str =
    "SELECT answer, at, layout FROM distlock_once WHERE effect = ? LOCK IN SHARE MODE";

/// Creates the tables, where they are missing. Not in a transaction: MySQL commits before DDL.
///
/// # Errors
/// [`Error::Store`] for the database's own, such as a missing right.
///
/// # Cancel safety
/// May be dropped and called again.
pub async fn install(db: impl Acquire<'_, Database = MySql>) -> Result<(), Error> {
    let mut db = db.acquire().await.map_err(trouble)?;
    for statement in SCHEMA {
        db.execute(*statement).await.map_err(trouble)?;
    }
    Ok(())
}

/// Fences this transaction: everything in it happens only if no higher token was here before, and
/// nobody with another token comes in between, because the fence's row stays locked to its end.
///
/// **Make it the first statement.** At the usual `REPEATABLE READ` the first plain `SELECT` fixes
/// what the transaction sees; one before the fence would show it the data of before its turn.
///
/// After [`Error::Stale`] the transaction is rolled back and read-only: writes in it fail, and its
/// commit changes nothing.
///
/// # Errors
/// [`Error::Stale`] when a higher token was here; [`Error::Retry`] when the transaction has to be
/// run again; [`Error::NotInstalled`] without [`install`].
///
/// # Cancel safety
/// What it did is part of the transaction: roll that back.
pub async fn fence(
    tx: &mut Transaction<'_, MySql>,
    resource: &str,
    token: Token,
) -> Result<(), Error> {
    let resource = name(resource)?;
    let token_is = number(token);
    sqlx::query(
        "INSERT INTO distlock_fence (resource, token) VALUES (?, ?)
         ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)",
    )
    .bind(id(&resource))
    .bind(token_is)
    .bind(token_is)
    .execute(&mut **tx)
    .await
    .map_err(ours)?;
    let (seen, layout): (i64, i16) =
        sqlx::query_as("SELECT token, layout FROM distlock_fence WHERE resource = ? FOR UPDATE")
            .bind(id(&resource))
            .fetch_one(&mut **tx)
            .await
            .map_err(trouble)?;
    known(layout)?;
    admit(tx, resource.as_str(), token, seen).await
}

/// Undoes the transaction and lets nothing more be written in it. In one packet: between the two,
/// statements would be outside of any transaction, and a dropped future could leave them there.
async fn spoil(tx: &mut Transaction<'_, MySql>, stale: Stale) -> Error {
    match tx.execute("ROLLBACK; START TRANSACTION READ ONLY").await {
        Ok(_) => stale.into(),
        Err(e) => trouble(e),
    }
}

crate::sqlx_rows::rows!(MySql, MySqlConnection, Dialect::MySql);

/// Asks whether the effect `key` has happened. The first to ask does it, in this transaction; all
/// others wait for its end and learn what it answered, or are first if it was rolled back.
///
/// # Errors
/// [`Error::Retry`] when the transaction has to be run again; [`Error::NotInstalled`] without
/// [`install`].
///
/// # Cancel safety
/// What it did is part of the transaction: roll that back.
pub async fn once(tx: &mut Transaction<'_, MySql>, key: &str) -> Result<Once, Error> {
    let key = name(key)?;
    // A plain insert: IGNORE would hide other faults, and how many rows an update of a duplicate
    // affects depends on a flag of the connection.
    let insert = AssertSqlSafe(format!("INSERT INTO distlock_once (effect, at) VALUES (?, {NOW})"));
    match sqlx::query(insert).bind(id(&key)).execute(&mut **tx).await {
        Ok(_) => Ok(Once::First(First { key })),
        Err(e) if is(&e, &[DUPLICATE]) => already_done(tx, &key).await,
        Err(e) => Err(ours(e)),
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
    tx: &mut Transaction<'_, MySql>,
    first: First,
    answer: &[u8],
) -> Result<(), Error> {
    let update = sqlx::query("UPDATE distlock_once SET answer = ? WHERE effect = ?");
    let update = update.bind(answer).bind(id(&first.key));
    update.execute(&mut **tx).await.map(drop).map_err(trouble)
}

/// Forgets at most `limit` effects that are older than `age`, the oldest first, and says how many.
/// Whoever asks for one of them again does it again. Run it by itself, not in a transaction with
/// other work.
///
/// # Errors
/// [`Error::Retry`] when it met others; [`Error::NotInstalled`] without [`install`].
///
/// # Cancel safety
/// It may still happen.
pub async fn forget_older_than(
    db: &mut MySqlConnection,
    age: Duration,
    limit: u32,
) -> Result<u64, Error> {
    let delete = format!("DELETE FROM distlock_once WHERE at < {NOW} - ? ORDER BY at LIMIT ?");
    let delete = sqlx::query(AssertSqlSafe(delete)).bind(sql::micros(age)).bind(i64::from(limit));
    Ok(delete.execute(db).await.map_err(ours)?.rows_affected())
}
