//! `?algorithm=version`: the whole state of a lock in one row, changed only if its version is still
//! what it was when it was read. Plain statements and one table, nothing else of the database.
//!
//! A statement is one message with its values in it, so one transaction on whichever connection a
//! pooler has for it: what is prepared or set on a connection would not be there the next time.

use std::sync::Arc;

use distlock_core::{Error, FullName, Micros, Mutex, Name};
use distlock_sql::{ConnectionWorker, Page, Row, Rows, Write};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::{connector::Connector, errors::work, inspect::behind, schema::Schema};

/// How many connections the process has: one may be kept waiting by a listing.
pub(crate) const CONNECTIONS: usize = 2;
/// How many rows a sweep looks at.
const WINDOW: usize = 200;
/// The database's clock, in microseconds.
const NOW: &str = "(extract(epoch FROM pg_catalog.clock_timestamp()) \
    OPERATOR(pg_catalog.*) 1000000)::bigint";
/// This very transaction is on disk before it is answered: what was set on the connection may have
/// been set by somebody else, behind a pooler.
const DURABLE: &str = "CASE WHEN pg_catalog.current_setting('synchronous_commit') \
    OPERATOR(pg_catalog.=) 'off' \
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END";

/// A text as a literal that means the same whatever the server's settings are. There is no NUL in a
/// name, nor in a state.
fn quote(text: &str) -> String {
    format!("E'{}'", text.replace('\\', r"\\").replace('\'', "''"))
}

/// The statements, for one schema.
pub(crate) struct Statements {
    table: String,
}

impl Statements {
    pub(crate) fn new(schema: &Schema) -> Self {
        Self { table: schema.fill("distlock.state") }
    }

    /// Time is read while the rows are, after the moment they are seen as of. Each row is found by its
    /// key: the LIMIT keeps the planner from reading the whole table for a join.
    fn read(&self, locks: &[FullName]) -> String {
        let all = |part: fn(&FullName) -> &str| {
            locks.iter().map(|l| quote(part(l))).collect::<Vec<_>>().join(",")
        };
        let (spaces, names) = (all(|l| l.space.as_str()), all(|l| l.name.as_str()));
        let table = &self.table;
        format!(
            "SELECT s.version, s.state, {NOW} FROM unnest(ARRAY[{spaces}]::text[], \
             ARRAY[{names}]::text[]) WITH ORDINALITY AS k (space, name, place) \
             LEFT JOIN LATERAL (SELECT version, state FROM {table} t \
             WHERE t.space = k.space AND t.name = k.name LIMIT 1) s ON true ORDER BY k.place"
        )
    }

    /// A new row's version is the time, so that one that was swept and made again has no version
    /// twice.
    fn write(&self, row: &Write) -> String {
        let (space, name) = (quote(row.lock.space.as_str()), quote(row.lock.name.as_str()));
        let state = quote(&row.text);
        let idle_from = i64::try_from(row.idle_from.0).unwrap_or(i64::MAX);
        let table = &self.table;
        match row.was {
            None => format!(
                "INSERT INTO {table} (space, name, version, state, idle_from) \
                 VALUES ({space}, {name}, {NOW}, {state}, {idle_from}) \
                 ON CONFLICT DO NOTHING RETURNING {DURABLE}"
            ),
            Some(was) => format!(
                "UPDATE {table} SET version = version + 1, state = {state}, \
                 idle_from = {idle_from} WHERE space = {space} AND name = {name} \
                 AND version = {} RETURNING {DURABLE}",
                was.cast_signed()
            ),
        }
    }

    fn page(&self, page: &Page) -> String {
        let (space, low, high) =
            (quote(page.space.as_str()), quote(&page.prefix), quote(&behind(&page.prefix)));
        let after = quote(page.after.as_ref().map_or("", Name::as_str));
        let (table, limit) = (&self.table, page.limit);
        format!(
            "SELECT s.version, s.state, {NOW}, s.name FROM (SELECT) one LEFT JOIN LATERAL ( \
             SELECT version, state, name FROM {table} WHERE space = {space} AND name >= {low} \
             AND name <= {high} AND name > {after} ORDER BY name LIMIT {limit}) s ON true \
             ORDER BY s.name"
        )
    }

    /// Looks at some rows after this one and deletes what has been idle for a day. That is looked at
    /// again once the row is locked: somebody may have taken the lock meanwhile.
    fn sweep(&self, (space, name): &(String, String)) -> String {
        let (space, name, table) = (quote(space), quote(name), &self.table);
        format!(
            "WITH seen AS MATERIALIZED (SELECT space, name, idle_from, ctid AS place \
             FROM {table} WHERE (space, name) > ({space}, {name}) \
             ORDER BY space, name LIMIT {WINDOW}), \
             gone AS (DELETE FROM {table} s WHERE s.ctid = ANY (ARRAY( \
             SELECT w.place FROM seen w WHERE w.idle_from < {NOW} - 86400000000)) \
             AND s.idle_from < {NOW} - 86400000000) \
             SELECT space, name FROM seen ORDER BY space DESC, name DESC LIMIT 1"
        )
    }
}

/// The rows of the version algorithm.
pub(crate) struct States {
    worker: ConnectionWorker<Connector>,
    sql: Arc<Statements>,
    /// Up to where rows were swept.
    swept: Mutex<(String, String)>,
}

impl States {
    pub(crate) fn new(worker: ConnectionWorker<Connector>, schema: &Schema) -> Self {
        Self { worker, sql: Arc::new(Statements::new(schema)), swept: Mutex::default() }
    }
}

pub(crate) async fn read(
    conn: &mut PgConnection,
    sql: &Statements,
    locks: &[FullName],
) -> Result<(Vec<Option<Row>>, Micros), sqlx::Error> {
    let found = sqlx::raw_sql(AssertSqlSafe(sql.read(locks))).fetch_all(conn).await?;
    let mut now = Micros::default();
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        now = now.max(time(row.try_get(2)?));
        rows.push(read_row(row)?);
    }
    Ok((rows, now))
}

fn read_row(row: &sqlx::postgres::PgRow) -> Result<Option<Row>, sqlx::Error> {
    let Some(version) = row.try_get::<Option<i64>, _>(0)? else { return Ok(None) };
    Ok(Some(Row { version: version.cast_unsigned(), text: row.try_get(1)? }))
}

fn time(micros: i64) -> Micros {
    Micros(u64::try_from(micros).unwrap_or(0))
}

/// Each row for itself: together they would lock each other out in another order elsewhere.
async fn write(
    conn: &mut PgConnection,
    sql: &Statements,
    rows: &[Write],
) -> Result<Vec<bool>, sqlx::Error> {
    let mut won = Vec::with_capacity(rows.len());
    for row in rows {
        let query = sqlx::raw_sql(AssertSqlSafe(sql.write(row)));
        won.push(match query.execute(&mut *conn).await {
            Ok(done) => done.rows_affected() == 1,
            // Somebody else had the row, and was waited for in vain or had changed it since.
            Err(e) if lost_race(&e) => false,
            Err(e) => return Err(e),
        });
    }
    Ok(won)
}

/// Whether the server undid a write because of others. How it goes about that depends on settings
/// that are not ours: isolation, and for how long a row is waited for.
fn lost_race(e: &sqlx::Error) -> bool {
    let code = e.as_database_error().and_then(|e| e.code());
    matches!(code.as_deref(), Some("40001" | "40P01" | "55P03"))
}

async fn page(
    conn: &mut PgConnection,
    sql: &Statements,
    page: &Page,
) -> Result<(Vec<(Name, Row)>, Micros), sqlx::Error> {
    let found = sqlx::raw_sql(AssertSqlSafe(sql.page(page))).fetch_all(conn).await?;
    let mut now = Micros::default();
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        now = now.max(time(row.try_get(2)?));
        let Some(found) = read_row(row)? else { continue };
        let name = Name::new(row.try_get::<&str, _>(3)?);
        rows.push((name.map_err(|e| sqlx::Error::Decode(e.into()))?, found));
    }
    Ok((rows, now))
}

pub(crate) async fn sweep(
    conn: &mut PgConnection,
    sql: &Statements,
    after: &(String, String),
) -> Result<(String, String), sqlx::Error> {
    let last = sqlx::raw_sql(AssertSqlSafe(sql.sweep(after))).fetch_optional(conn).await?;
    // At the end, from the beginning again.
    let Some(last) = last else { return Ok(Default::default()) };
    Ok((last.try_get(0)?, last.try_get(1)?))
}

impl Rows for States {
    async fn read(&self, locks: Vec<FullName>) -> Result<(Vec<Option<Row>>, Micros), Error> {
        let (sql, locks) = (self.sql.clone(), Arc::new(locks));
        self.worker.call(work!(|conn, sql, locks| read(conn, &sql, &locks))).await
    }

    async fn write(&self, rows: Vec<Write>) -> Result<Vec<bool>, Error> {
        let (sql, rows) = (self.sql.clone(), Arc::new(rows));
        self.worker.call(work!(|conn, sql, rows| write(conn, &sql, &rows))).await
    }

    async fn page(&self, wanted: Page) -> Result<(Vec<(Name, Row)>, Micros), Error> {
        let sql = self.sql.clone();
        self.worker.call(work!(|conn, sql, wanted| page(conn, &sql, &wanted))).await
    }

    async fn sweep(&self) -> Result<(), Error> {
        let swept = || self.swept.lock();
        let (sql, after) = (self.sql.clone(), swept().clone());
        let next = self.worker.call(work!(|conn, sql, after| sweep(conn, &sql, &after))).await?;
        *swept() = next;
        Ok(())
    }

    async fn close(&self) {
        self.worker.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_ends_where_its_text_does() {
        assert_eq!(quote("a"), "E'a'");
        assert_eq!(quote(r"it's \ \'"), r"E'it''s \\ \\'''");
    }
}
