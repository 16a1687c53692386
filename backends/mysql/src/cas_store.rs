//! `?algorithm=version`: the whole state of a lock in one row, changed by compare-and-set.
//!
//! The algorithm itself is [`Versioned`]; here are its rows.

use std::sync::Arc;

use distlock_core::{Clock, Error, FullName, Kind, Micros, Name};
use distlock_sql::{ConnectionWorker, Page, Row as LockRow, Rows, Trouble, Versioned, Write, work};
use sqlx::{MySqlConnection, Row};

use crate::errors::{DEADLOCK, LOCK_WAIT, calling, demoted, number as code};
use crate::sql::{self, NOW, READ_ONLY, at, execute, hex, micros, number, run, run_far};
use crate::{connector::Connector, open::Target, schema::Tables};

/// How long a row that is idle is kept: it remembers the highest token.
const RETENTION: u64 = 24 * 3600 * 1_000_000;
/// How many rows one sweep removes.
const STEP: usize = 64;

/// The rows of the version algorithm.
pub(crate) struct Versions {
    tables: Arc<Tables>,
    worker: ConnectionWorker<Connector>,
}

impl Versions {
    /// Connects, and starts the algorithm on the table.
    pub(crate) async fn at(target: Target) -> Result<Versioned<Self>, Error> {
        let capability = target.greet().await?;
        let Target { to, options, tables, site } = target;
        let connector = Arc::new(Connector::new(to, None));
        let worker = ConnectionWorker::new(connector, Clock::system(), options.timeout, 1);
        Versioned::new(Self { tables: Arc::new(tables), worker }, site, capability)
    }
}

fn none() -> Trouble {
    Trouble::answered(Error::new(Kind::Store, "a statement without an answer").unknown())
}

fn row(row: &sqlx::mysql::MySqlRow) -> Result<LockRow, Trouble> {
    let text: Vec<u8> = row.try_get("text").map_err(calling)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(LockRow { version: number(row, "version").map_err(calling)?, text })
}

async fn read(
    conn: &mut MySqlConnection,
    tables: &Tables,
    locks: &[FullName],
) -> Result<(Vec<Option<LockRow>>, Micros), Trouble> {
    let one = |lock: &FullName| {
        format!(
            "SELECT version, text FROM {} WHERE {} LOCK IN SHARE MODE",
            tables.version,
            at(lock)
        )
    };
    // The lock is let go at the end of each statement. It is there so that a proxy does not ask a
    // replica. The time is read first: early rather than late.
    let mut sql = vec![format!("SELECT {NOW} AS now, {READ_ONLY} AS read_only")];
    sql.extend(locks.iter().map(one));
    let given = run(conn, sql.join(";")).await.map_err(calling)?;
    let (clock, rows) = given.split_first().ok_or_else(none)?;
    let clock = clock.rows.first().ok_or_else(none)?;
    if number(clock, "read_only").map_err(calling)? != 0 {
        return Err(demoted());
    }
    let now = micros(clock, "now").map_err(calling)?;
    let rows = rows.iter().map(|g| g.rows.first().map(row).transpose());
    Ok((rows.collect::<Result<_, _>>()?, now))
}

async fn write(
    conn: &mut MySqlConnection,
    tables: &Tables,
    writes: &[Write],
) -> Result<Vec<bool>, Trouble> {
    let table = &tables.version;
    let one = |w: &Write| {
        let (text, idle) = (hex(&w.text), w.idle_from.0);
        match w.was {
            Some(was) => format!(
                "UPDATE {table} SET version=version+1, text={text}, idle_from={idle} \
                 WHERE {} AND version={was}",
                at(&w.lock)
            ),
            None => format!(
                "INSERT IGNORE INTO {table} (space, name, version, text, idle_from) \
                 VALUES ({}, {}, {NOW}, {text}, {idle})",
                hex(w.lock.space.as_str()),
                hex(w.lock.name.as_str())
            ),
        }
    };
    // Each is committed by itself, so no two rows are ever locked at once.
    let sql: Vec<String> = writes.iter().map(one).collect();
    let mut won = Vec::with_capacity(sql.len());
    while won.len() < sql.len() {
        let (given, failed) = run_far(conn, sql[won.len()..].join(";")).await;
        won.extend(given.iter().map(|g| g.done.rows_affected() > 0));
        match failed {
            None if won.len() < sql.len() => return Err(none()),
            None => {}
            // Somebody else has that row: it lost its race, and the others have not run yet.
            Some(e) if matches!(code(&e), Some(DEADLOCK | LOCK_WAIT)) => won.push(false),
            Some(e) => return Err(calling(e)),
        }
    }
    Ok(won)
}

impl Rows for Versions {
    async fn read(&self, locks: Vec<FullName>) -> Result<(Vec<Option<LockRow>>, Micros), Error> {
        let tables = Arc::clone(&self.tables);
        self.worker.call(work!(|conn, tables, locks| read(conn, &tables, &locks))).await
    }

    async fn write(&self, rows: Vec<Write>) -> Result<Vec<bool>, Error> {
        let tables = Arc::clone(&self.tables);
        self.worker.call(work!(|conn, tables, rows| write(conn, &tables, &rows))).await
    }

    async fn page(&self, page: Page) -> Result<(Vec<(Name, LockRow)>, Micros), Error> {
        let which = sql::page(&page.space, &page.prefix, page.after.as_ref());
        let sql = format!(
            "SELECT {NOW} AS now; SELECT name, version, text FROM {} WHERE {which} \
             ORDER BY name LIMIT {} LOCK IN SHARE MODE",
            self.tables.version, page.limit
        );
        let call = self.worker.call(work!(|conn, sql| {
            let given = run(conn, sql).await.map_err(calling)?;
            let [clock, rows] = given.as_slice() else { return Err(none()) };
            let now = micros(clock.rows.first().ok_or_else(none)?, "now").map_err(calling)?;
            let mut found = Vec::new();
            for r in &rows.rows {
                let name: Vec<u8> = r.try_get("name").map_err(calling)?;
                let name = Name::new(String::from_utf8_lossy(&name));
                found.push((name.map_err(Trouble::answered)?, row(r)?));
            }
            Ok((found, now))
        }));
        call.await
    }

    /// What was idle for a day; its tokens are then below the clock, which new rows start from.
    async fn sweep(&self) -> Result<(), Error> {
        let sql = format!(
            "DELETE FROM {} WHERE idle_from < {NOW} - {RETENTION} ORDER BY idle_from LIMIT {STEP}",
            self.tables.version
        );
        self.worker.call(work!(|conn, sql| execute(conn, sql))).await
    }

    async fn close(&self) {
        self.worker.close().await;
    }
}
