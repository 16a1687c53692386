//! Statements as text, several in one round trip.
//!
//! The moves of a queue need half a dozen statements in one transaction. As prepared statements each
//! would be a round trip; as text they go in one. Nothing a user wrote is ever quoted into it:
//! bytes are written as hexadecimal literals, everything else is a number.

use distlock_core::{FullName, Micros, Name, Namespace, ReqId};
use distlock_sql::Trouble;
use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Either, MySqlConnection, Row};

use crate::errors::calling;

/// The server's time in microseconds since 1970: one moment within a statement, whatever the
/// session's time zone.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01 00:00:00',UTC_TIMESTAMP(6))";

/// Whether the server is set to take no writes, as a primary is that was demoted. Some users may write
/// there all the same, and would lock beside the users of the new primary. As text: a later MariaDB has
/// words for it.
pub(crate) const READ_ONLY: &str = "(CONCAT(@@GLOBAL.read_only) NOT IN ('0','OFF'))";

/// What one statement gave.
pub(crate) struct Given {
    pub(crate) rows: Vec<MySqlRow>,
    pub(crate) done: MySqlQueryResult,
}

/// Runs statements in one round trip, up to the first that fails.
pub(crate) async fn run(
    conn: &mut MySqlConnection,
    sql: String,
) -> Result<Vec<Given>, sqlx::Error> {
    let (given, failed) = run_far(conn, sql).await;
    failed.map_or(Ok(given), Err)
}

/// Runs statements in one round trip.
pub(crate) async fn execute(conn: &mut MySqlConnection, sql: String) -> Result<(), Trouble> {
    run(conn, sql).await.map(drop).map_err(calling)
}

/// Runs statements in one round trip; what those before a failure gave, and the failure.
pub(crate) async fn run_far(
    conn: &mut MySqlConnection,
    sql: String,
) -> (Vec<Given>, Option<sqlx::Error>) {
    let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(conn);
    let mut given = Vec::new();
    let mut rows = Vec::new();
    loop {
        match answers.try_next().await {
            Ok(None) => return (given, None),
            Ok(Some(Either::Right(row))) => rows.push(row),
            Ok(Some(Either::Left(done))) => {
                given.push(Given { rows: std::mem::take(&mut rows), done });
            }
            Err(e) => return (given, Some(e)),
        }
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Bytes as a literal.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(3 + 2 * bytes.len());
    text.push_str("X'");
    for b in bytes {
        text.push(char::from(DIGITS[usize::from(b >> 4)]));
        text.push(char::from(DIGITS[usize::from(b & 15)]));
    }
    text.push('\'');
    text
}

/// The condition that picks the rows of a lock.
pub(crate) fn at(lock: &FullName) -> String {
    format!("space={} AND name={}", hex(lock.space.as_str()), hex(lock.name.as_str()))
}

/// The condition that picks the rows of the names that begin with a prefix, after a name.
pub(crate) fn page(space: &Namespace, prefix: &str, after: Option<&Name>) -> String {
    let mut which = format!("space={}", hex(space.as_str()));
    if !prefix.is_empty() {
        which += &format!(" AND name>={0} AND LEFT(name,{1})={0}", hex(prefix), prefix.len());
    }
    if let Some(after) = after {
        which += &format!(" AND name>{}", hex(after.as_str()));
    }
    which
}

/// A list of requests as literals.
pub(crate) fn list<'a>(reqs: impl IntoIterator<Item = &'a ReqId>) -> String {
    reqs.into_iter().map(|r| hex(r.as_bytes())).collect::<Vec<_>>().join(",")
}

/// A moment from a row.
pub(crate) fn micros(row: &MySqlRow, column: &str) -> Result<Micros, sqlx::Error> {
    number(row, column).map(Micros)
}

/// A number from a row, signed or not.
pub(crate) fn number(row: &MySqlRow, column: &str) -> Result<u64, sqlx::Error> {
    match row.try_get::<u64, _>(column) {
        Ok(n) => Ok(n),
        Err(_) => Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0)),
    }
}
