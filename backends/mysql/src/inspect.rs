//! Looking at locks: one snapshot of lock rows and their queues.

use std::collections::HashMap;

use distlock_core::{Error, FullName, Kind, LockInfo, Name, Query};
use distlock_sql::Trouble;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use crate::record::{COLUMNS, Record};
use crate::sql::{self, NOW, at, execute, hex, micros, run};
use crate::{errors::calling, queue::Line, schema::Tables};

/// How many rows one look takes.
const PAGE: usize = 500;

/// Lists locks that are held or waited for.
pub(crate) async fn inspect(
    conn: &mut MySqlConnection,
    tables: &Tables,
    query: &Query,
) -> Result<Vec<LockInfo>, Trouble> {
    let (space, prefix, mut after, limit) = match query {
        Query::Name(lock) => return Ok(page(conn, tables, &at(lock), &lock.space, 1).await?.0),
        Query::Prefix { space, prefix, after, limit } => (space, prefix, after.clone(), *limit),
    };
    let mut found = Vec::new();
    loop {
        let which = sql::page(space, prefix, after.as_ref());
        // Rows of locks that are free are passed over, so a page of rows may be none of locks.
        let (locks, last) = page(conn, tables, &which, space, PAGE).await?;
        found.extend(locks);
        match last {
            Some(last) if found.len() < limit => after = Some(last),
            _ => break,
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// The locks of some rows, and the name of the last row if there may be more.
async fn page(
    conn: &mut MySqlConnection,
    tables: &Tables,
    which: &str,
    space: &distlock_core::Namespace,
    rows: usize,
) -> Result<(Vec<LockInfo>, Option<Name>), Trouble> {
    let Tables { lock, wait, .. } = tables;
    // In a transaction, so that a proxy does not ask a replica, and both tables are of one moment.
    let sql = format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; SELECT {NOW} AS now; \
         SELECT name, {COLUMNS} FROM {lock} WHERE {which} ORDER BY name LIMIT {rows}; \
         SELECT w.name AS name, w.req, w.since, w.deadline, w.deaf, w.claim FROM {wait} w \
         JOIN (SELECT name FROM {lock} WHERE {which} AND nwait>0 ORDER BY name LIMIT {rows}) l \
         ON l.name = w.name WHERE w.space={}; ROLLBACK",
        hex(space.as_str())
    );
    let given = match run(conn, sql).await.map_err(calling) {
        Ok(given) => given,
        Err(trouble) => {
            // What comes next on this connection must not find itself in a transaction.
            if !trouble.broken {
                execute(conn, "ROLLBACK".to_owned()).await?;
            }
            return Err(trouble);
        }
    };
    let odd = || Trouble::answered(Error::new(Kind::Store, "a look without an answer"));
    let [_, _, clock, locks, waiters, _] = given.as_slice() else { return Err(odd()) };
    let now = micros(clock.rows.first().ok_or_else(odd)?, "now").map_err(calling)?;
    let mut queues: HashMap<Vec<u8>, Vec<&MySqlRow>> = HashMap::new();
    for row in &waiters.rows {
        queues.entry(row.try_get("name").map_err(calling)?).or_default().push(row);
    }
    let (mut found, mut last) = (Vec::new(), None);
    for row in &locks.rows {
        let bytes: Vec<u8> = row.try_get("name").map_err(calling)?;
        let queue = queues.remove(&bytes).unwrap_or_default();
        let name = Name::new(String::from_utf8_lossy(&bytes)).map_err(Trouble::answered)?;
        last = Some(name.clone());
        let mut state = Record::read(row).map_err(Trouble::answered)?.state;
        let read = Line::of(queue, &[], 0, true).map_err(Trouble::answered)?.read;
        state.queue = read.into_values().collect();
        let full = FullName { space: space.clone(), name };
        found.extend(state.view(&full, now));
    }
    Ok((found, last.filter(|_| locks.rows.len() == rows && rows > 1)))
}
