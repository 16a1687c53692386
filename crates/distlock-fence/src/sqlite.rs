//! Fence, optimistic update and once-only effects in a SQLite database, through `rusqlite`.
//!
//! SQLite has one writer at a time: the first statement here makes the transaction that writer,
//! and it stays so until its end. A deferred transaction that has read before and was overtaken
//! cannot become the writer any more (`SQLITE_BUSY_SNAPSHOT`); that is [`Error::Retry`], and so is
//! waiting longer than the connection's busy timeout.

use std::time::Duration;

use distlock_core::Token;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, ToSql, Transaction, TransactionBehavior, params,
    types::FromSql,
};

use crate::optimistic::{self, Tries};
use crate::sql::{self, Dialect, judge, known, name, number};
use crate::{Column, Error, First, Once, Versioned};

const D: Dialect = Dialect::Sqlite;

/// The tables, for people who create them by themselves.
pub const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS distlock_fence (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL,
  layout INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS distlock_once (
  effect TEXT NOT NULL PRIMARY KEY,
  answer BLOB,
  at INTEGER NOT NULL,
  layout INTEGER NOT NULL DEFAULT 1
)",
    "CREATE INDEX IF NOT EXISTS distlock_once_at ON distlock_once (at)",
];

/// Microseconds since 1970, to the millisecond.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000";

impl From<rusqlite::Error> for Error {
    fn from(e: rusqlite::Error) -> Self {
        match e.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Retry(Box::new(e)),
            _ => Error::Store(Box::new(e)),
        }
    }
}

/// Trouble with a statement about a table of ours.
fn ours(e: rusqlite::Error) -> Error {
    if e.to_string().contains("no such table: distlock_") {
        return Error::NotInstalled(Box::new(e));
    }
    e.into()
}

/// Creates the tables, where they are missing.
///
/// # Errors
/// [`Error::Retry`] when the database is busy, [`Error::Store`] for SQLite's own.
pub fn install(db: &Connection) -> Result<(), Error> {
    for statement in SCHEMA {
        db.execute(statement, [])?;
    }
    Ok(())
}

/// Fences this transaction: everything in it happens only if no higher token was here before, and
/// nobody with another token comes in between. Make it the first statement.
///
/// On an error, roll back (dropping the transaction does): what was written before the refusal is
/// still in it. [`fenced`] leaves no way to forget that.
///
/// # Errors
/// [`Error::Stale`] when a higher token was here; [`Error::Retry`] when the database is busy or
/// this transaction was overtaken; [`Error::NotInstalled`] without [`install`].
pub fn fence(tx: &Transaction<'_>, resource: &str, token: Token) -> Result<(), Error> {
    let resource = name(resource)?;
    let mut statement = tx
        .prepare_cached(
            "INSERT INTO distlock_fence (resource, token) VALUES (?1, ?2)
             ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token)
             RETURNING token, layout",
        )
        .map_err(ours)?;
    let (seen, layout) = statement
        .query_row(params![resource.as_str(), number(token)], |r| Ok((r.get(0)?, r.get(1)?)))?;
    known(layout)?;
    Ok(judge(resource.as_str(), token, seen)?)
}

/// Runs work in a transaction of its own behind a fence: begun as a writer, committed when the
/// work is done, rolled back when it fails, and never begun with a stale token.
///
/// # Errors
/// Those of [`fence`] and of the work.
pub fn fenced<T, E: From<Error>>(
    db: &mut Connection,
    resource: &str,
    token: Token,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::from)?;
    fence(&tx, resource, token)?;
    let done = work(&tx)?;
    tx.commit().map_err(Error::from)?;
    Ok(done)
}

/// Fences one row of a table of yours that has a column for it (an integer, 0 or NULL at first).
///
/// # Errors
/// [`Error::Stale`] when a higher token was here, [`Error::Missing`] when there is no such row,
/// else as [`fence`].
pub fn fence_row(
    tx: &Transaction<'_>,
    fence: &Column,
    key: impl ToSql + std::fmt::Display,
    token: Token,
) -> Result<(), Error> {
    let seen: Option<Option<i64>> =
        tx.query_row(&fence.lock(D), params![key], |r| r.get(0)).optional()?;
    let seen = seen.ok_or_else(|| fence.missing(&key))?;
    judge(&fence.row(&key), token, seen.unwrap_or(0))?;
    // Also when it is the same: a write makes this transaction the writer.
    tx.execute(&fence.put(D), params![number(token), key])?;
    Ok(())
}

/// Takes `n` from a number unless less is there, in one statement: whether it was taken.
///
/// # Errors
/// [`Error::Missing`] when there is no such row; [`Error::Retry`] when the database is busy.
pub fn take(
    db: &Connection,
    stock: &Column,
    key: impl ToSql + std::fmt::Display,
    n: u32,
) -> Result<bool, Error> {
    if db.execute(&stock.take(D), params![n, key, n])? > 0 {
        return Ok(true);
    }
    let there = db.query_row(&stock.exists(D), params![key], |_| Ok(())).optional()?;
    there.map(|()| false).ok_or_else(|| stock.missing(&key))
}

/// Changes a value by its version: reads it, asks `change` for the new one (`None` leaves it), and
/// writes it if nobody wrote meanwhile. Gives what was written. Run it outside of a transaction.
///
/// # Errors
/// [`Error::Conflict`] when others were quicker in every try, [`Error::Missing`] when there is no
/// such row.
pub fn change<T: ToSql + FromSql>(
    db: &Connection,
    row: &Versioned,
    key: impl ToSql + std::fmt::Display,
    tries: &Tries,
    mut change: impl FnMut(&T) -> Option<T>,
) -> Result<Option<T>, Error> {
    let read = || {
        let found = db.query_row(&row.read(D), params![key], |r| Ok((r.get(0)?, r.get(1)?)));
        found.optional()?.ok_or_else(|| row.column().missing(&key))
    };
    let write = |value: T, version: i64| {
        let Some(new) = change(&value) else { return Ok(Some(None)) };
        match db.execute(&row.write(D), params![new, key, version]).map_err(Error::from) {
            Ok(0) | Err(Error::Retry(_)) => Ok(None),
            Ok(_) => Ok(Some(Some(new))),
            Err(e) => Err(e),
        }
    };
    optimistic::update_blocking(tries, &row.column().row(&key), read, write)
}

/// Asks whether the effect `key` has happened. The first to ask does it, in this transaction; all
/// others wait for its end and learn what it answered, or are first if it was rolled back.
///
/// # Errors
/// [`Error::Retry`] when the database is busy or this transaction was overtaken;
/// [`Error::NotInstalled`] without [`install`].
pub fn once(tx: &Transaction<'_>, key: &str) -> Result<Once, Error> {
    let key = name(key)?;
    let insert = format!(
        "INSERT INTO distlock_once (effect, at) VALUES (?1, {NOW}) ON CONFLICT (effect) DO NOTHING"
    );
    if tx.prepare_cached(&insert).map_err(ours)?.execute([key.as_str()])? == 1 {
        return Ok(Once::First(First { key }));
    }
    let (answer, at, layout) = tx.query_row(
        "SELECT answer, at, layout FROM distlock_once WHERE effect = ?1",
        [key.as_str()],
        |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)),
    )?;
    sql::done(answer, at, layout)
}

/// Stores what the first run answered, for those who ask later.
///
/// # Errors
/// [`Error::Store`] for SQLite's own.
pub fn answer(tx: &Transaction<'_>, first: First, answer: &[u8]) -> Result<(), Error> {
    let key = first.key.as_str();
    tx.execute("UPDATE distlock_once SET answer = ?1 WHERE effect = ?2", params![answer, key])?;
    Ok(())
}

/// Forgets at most `limit` effects that are older than `age`, the oldest first, and says how many.
/// Whoever asks for one of them again does it again.
///
/// # Errors
/// [`Error::Retry`] when the database is busy; [`Error::NotInstalled`] without [`install`].
pub fn forget_older_than(db: &Connection, age: Duration, limit: u32) -> Result<u64, Error> {
    let delete = format!(
        "DELETE FROM distlock_once WHERE effect IN
         (SELECT effect FROM distlock_once WHERE at < {NOW} - ?1 ORDER BY at LIMIT ?2)"
    );
    let gone = db.execute(&delete, params![sql::micros(age), limit]).map_err(ours)?;
    Ok(gone as u64)
}
