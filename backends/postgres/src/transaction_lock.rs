//! `with_row_lock`: a lock inside the caller's own transaction. (`?algorithm=row-lock` is in
//! `session_lock.rs`.)

use distlock_core::{Error, FullName, Kind, Name};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::{errors::trouble, schema::Schema};

const ISOLATION: &str = "SELECT current_setting('transaction_isolation')";
const MAKE: &str =
    "INSERT INTO distlock.rowlock (space, name) VALUES ('', $1) ON CONFLICT DO NOTHING";
const LOCK: &str = "SELECT FROM distlock.rowlock WHERE space = '' AND name = $1 FOR UPDATE";

/// Takes a lock inside the caller's own transaction: nobody else, by this function or by
/// `?algorithm=row-lock` without a namespace, has it until the transaction ends.
///
/// If what the lock protects is written in the same transaction, no fence is needed: when the lock
/// goes, so do the writes. The tables must be there (open the store once, or `distlock schema
/// postgres`); `schema` is `distlock` unless the store was opened with another.
///
/// # Errors
/// [`Kind::Usage`] for an invalid name, and in a transaction that is not READ COMMITTED: it
/// would go on to read what was there before it waited. Transient when somebody else has the lock
/// for longer than the session's `lock_timeout`: roll back and try again.
///
/// # Cancel safety
/// As any statement of a transaction: roll it back.
pub async fn with_row_lock(
    tx: &mut Transaction<'_, Postgres>,
    schema: &str,
    name: &str,
) -> Result<(), Error> {
    let lock = FullName { space: Default::default(), name: Name::new(name)? };
    let told = |e| trouble(e).error.during("acquire").lock(&lock);
    let schema = Schema::new(schema)?;
    let isolation: String =
        sqlx::query_scalar(ISOLATION).fetch_one(&mut **tx).await.map_err(told)?;
    if isolation != "read committed" {
        return Err(Error::new(
            Kind::Usage,
            format!("a {isolation} transaction cannot take a lock"),
        )
        .lock(&lock)
        .with_hint("it would read what was there before it waited: use READ COMMITTED"));
    }
    loop {
        let make = sqlx::query(AssertSqlSafe(schema.fill(MAKE))).bind(name);
        make.execute(&mut **tx).await.map_err(told)?;
        let take = sqlx::query(AssertSqlSafe(schema.fill(LOCK))).bind(name);
        // None when it was swept in between.
        if take.fetch_optional(&mut **tx).await.map_err(told)?.is_some() {
            return Ok(());
        }
    }
}
