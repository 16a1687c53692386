//! `?algorithm=version`: the whole state of a lock in one row, changed only if its version is still
//! what it was when it was read. Plain statements and one table, nothing else of the database.

use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::state::Micros;
use distlock_core::{Capability, Clock, Error, FullName, Name};
use distlock_sql::{Lane, Page, Row, Rows, Write};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::call::call;
use crate::door::Door;
use crate::look::behind;
use crate::statements::Schema;

/// How many connections the process has: one may be kept waiting by a listing.
pub(crate) const CONNECTIONS: usize = 2;
/// How many rows a sweep looks at.
const WINDOW: i64 = 200;

/// The statements. Time is read while the rows are, after the moment they are seen as of. A new
/// row's version is the time, so that one that was swept and made again has no version twice.
const READ: &str = "SELECT s.version, s.state, @NOW FROM unnest($1::text[], $2::text[]) \
    WITH ORDINALITY AS k (space, name, place) LEFT JOIN distlock.state s \
    ON s.space = k.space AND s.name = k.name ORDER BY k.place";
const INSERT: &str = "INSERT INTO distlock.state (space, name, version, state, idle_from) \
    VALUES ($1, $2, @NOW, $3, $4) ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE distlock.state SET version = version + 1, state = $3, idle_from = $4 \
    WHERE space = $1 AND name = $2 AND version = $5";
const PAGE: &str = "SELECT s.version, s.state, @NOW, s.name FROM (SELECT) one LEFT JOIN LATERAL ( \
    SELECT version, state, name FROM distlock.state WHERE space = $1 AND name >= $2 \
    AND name <= $3 AND name > $4 ORDER BY name LIMIT $5) s ON true ORDER BY s.name";
const SWEEP: &str = "WITH window_of AS MATERIALIZED (SELECT space, name, idle_from \
    FROM distlock.state WHERE (space, name) > ($1, $2) ORDER BY space, name LIMIT $3), \
    gone AS (DELETE FROM distlock.state s USING window_of w WHERE s.space = w.space \
    AND s.name = w.name AND s.idle_from < @NOW - 86400000000) \
    SELECT space, name FROM window_of ORDER BY space DESC, name DESC LIMIT 1";
const NOW: &str = "(extract(epoch FROM pg_catalog.clock_timestamp()) \
    OPERATOR(pg_catalog.*) 1000000)::bigint";

struct Statements {
    read: Arc<str>,
    insert: Arc<str>,
    update: Arc<str>,
    page: Arc<str>,
    sweep: Arc<str>,
}

/// The rows of the version algorithm.
pub(crate) struct States {
    capability: Capability,
    site: String,
    clock: Clock,
    lane: Lane<Door>,
    say: Arc<Statements>,
    /// Up to where rows were swept.
    swept: Mutex<(String, String)>,
}

impl States {
    pub(crate) fn new(
        lane: Lane<Door>,
        site: String,
        capability: Capability,
        schema: &Schema,
    ) -> Self {
        let say = |text: &str| schema.fill(text).replace("@NOW", NOW).into();
        let say = Statements {
            read: say(READ),
            insert: say(INSERT),
            update: say(UPDATE),
            page: say(PAGE),
            sweep: say(SWEEP),
        };
        let clock = Clock::system();
        Self { capability, site, clock, lane, say: Arc::new(say), swept: Mutex::default() }
    }
}

async fn read(
    conn: &mut PgConnection,
    say: &Statements,
    locks: &[FullName],
) -> Result<(Vec<Option<Row>>, Micros), sqlx::Error> {
    let spaces: Vec<&str> = locks.iter().map(|l| l.space.as_str()).collect();
    let names: Vec<&str> = locks.iter().map(|l| l.name.as_str()).collect();
    let query = sqlx::query(AssertSqlSafe(say.read.clone())).bind(spaces).bind(names);
    let found = query.fetch_all(conn).await?;
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
    say: &Statements,
    rows: &[Write],
) -> Result<Vec<bool>, sqlx::Error> {
    let mut won = Vec::with_capacity(rows.len());
    for row in rows {
        let text = if row.was.is_some() { &say.update } else { &say.insert };
        let mut query = sqlx::query(AssertSqlSafe(text.clone()))
            .bind(row.lock.space.as_str())
            .bind(row.lock.name.as_str())
            .bind(row.text.as_str())
            .bind(i64::try_from(row.idle_from.0).unwrap_or(i64::MAX));
        if let Some(was) = row.was {
            query = query.bind(was.cast_signed());
        }
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
    say: &Statements,
    page: &Page,
) -> Result<(Vec<(Name, Row)>, Micros), sqlx::Error> {
    let found = sqlx::query(AssertSqlSafe(say.page.clone()))
        .bind(page.space.as_str())
        .bind(page.prefix.as_str())
        .bind(behind(&page.prefix))
        .bind(page.after.as_ref().map_or("", Name::as_str))
        .bind(i64::try_from(page.limit).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
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

async fn sweep(
    conn: &mut PgConnection,
    say: &Statements,
    after: &(String, String),
) -> Result<(String, String), sqlx::Error> {
    let last = sqlx::query(AssertSqlSafe(say.sweep.clone()))
        .bind(after.0.as_str())
        .bind(after.1.as_str())
        .bind(WINDOW)
        .fetch_optional(conn)
        .await?;
    // At the end, from the beginning again.
    let Some(last) = last else { return Ok(Default::default()) };
    Ok((last.try_get(0)?, last.try_get(1)?))
}

impl Rows for States {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn read(&self, locks: Vec<FullName>) -> Result<(Vec<Option<Row>>, Micros), Error> {
        let (say, locks) = (self.say.clone(), Arc::new(locks));
        call!(self.lane, [say, locks], conn, read(conn, &say, &locks)).await
    }

    async fn write(&self, rows: Vec<Write>) -> Result<Vec<bool>, Error> {
        let (say, rows) = (self.say.clone(), Arc::new(rows));
        call!(self.lane, [say, rows], conn, write(conn, &say, &rows)).await
    }

    async fn page(&self, wanted: Page) -> Result<(Vec<(Name, Row)>, Micros), Error> {
        let say = self.say.clone();
        call!(self.lane, [say, wanted], conn, page(conn, &say, &wanted)).await
    }

    async fn sweep(&self) -> Result<(), Error> {
        let swept = || self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let (say, after) = (self.say.clone(), swept().clone());
        let next = call!(self.lane, [say, after], conn, sweep(conn, &say, &after)).await?;
        *swept() = next;
        Ok(())
    }

    async fn close(&self) {
        self.lane.close().await;
    }
}
