//! Removes the rows of locks that are free and have not been used for the retention.
//!
//! 1. One process at a time, by `GET_LOCK`; a process that finds another at it does nothing.
//! 2. Read the next few rows after the cursor, which is kept in the table: processes that come and go
//!    would otherwise look at the first rows for ever.
//! 3. Raise the floor above the tokens of those that are free, so that a row made anew starts above
//!    it, then delete them. A `DELETE` names the version and the highest token that were read: versions
//!    of new rows start at the clock, and a row that was made anew and granted has a higher token, so a
//!    late `DELETE` never hits a lock that somebody took meanwhile.
//!
//! A step costs the same whatever the number of rows. A process takes one for every [`FRESH`] rows it
//! made, which keeps up with any rate of new names, and one now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::state::Now;
use distlock_core::{Clock, Micros, Op, engine};
use distlock_sql::{ConnectionWorker, Trouble, work};
use sqlx::{MySqlConnection, Row};

use crate::errors::{LOCK_WAIT, NOT_NOW, calling, number as code};
use crate::record::{COLUMNS, Record, rules};
use crate::sql::{NOW, execute, hex, micros, number, run};
use crate::{connector::Connector, schema::Tables};

/// How long a free lock is remembered, and news that nobody fetched.
pub(crate) const RETENTION: Duration = Duration::from_secs(3600);
/// Between two steps: after one that removed something, and after one that did not.
const PERIOD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How many rows one step reads.
const STEP: usize = 256;
/// A step is due after this many new rows. Well below [`STEP`], so that the cursor goes round
/// faster than the table grows.
const FRESH: u64 = 64;
/// How many rows of row locks are removed at once.
const ROWS: usize = 64;

/// When this process sweeps next.
#[derive(Default)]
pub(crate) struct Pace {
    last: AtomicU64,
    /// Rows made since then.
    fresh: AtomicU64,
    /// Whether the last step removed something: then there may be more.
    found: AtomicBool,
}

impl Pace {
    /// This process has made a row.
    pub(crate) fn made_a_row(&self) {
        self.fresh.fetch_add(1, Ordering::Relaxed);
    }

    fn is_due(&self, now: u64) -> bool {
        let (often, seldom) = PERIOD;
        let period = if self.found.load(Ordering::Relaxed) { often } else { seldom };
        let last = self.last.load(Ordering::Relaxed);
        let waited = last == 0 || Duration::from_micros(now.saturating_sub(last)) >= period;
        if !waited && self.fresh.load(Ordering::Relaxed) < FRESH {
            return false;
        }
        if self.last.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.fresh.store(0, Ordering::Relaxed);
        true
    }

    /// Takes a step in the background, if it is time; with `row_locks` also over their rows.
    pub(crate) fn step(
        self: &Arc<Self>,
        worker: &Arc<ConnectionWorker<Connector>>,
        tables: &Tables,
        clock: &Clock,
        row_locks: bool,
    ) {
        if !self.is_due(clock.now().as_micros()) {
            return;
        }
        let (pace, worker, tables) = (Arc::clone(self), Arc::clone(worker), tables.clone());
        engine::spawn(async move {
            let swept = worker.call(work!(|conn, tables| alone(conn, &tables, row_locks)));
            match swept.await {
                Ok(removed) => pace.found.store(removed > 0, Ordering::Relaxed),
                Err(e) => tracing::debug!(error = %e, "no sweep this time"),
            }
        });
    }
}

/// The name that the one process that sweeps has taken; of the tables, not of the process.
pub(crate) fn sweep_lock(tables: &Tables) -> String {
    format!("CONCAT('dl:w:', MD5(CONCAT(DATABASE(), '.', '{}')))", tables.meta)
}

/// One step over everything, unless another process is at it; how many rows it removed.
pub(crate) async fn alone(
    conn: &mut MySqlConnection,
    tables: &Tables,
    row_locks: bool,
) -> Result<usize, Trouble> {
    let sweep_lock = sweep_lock(tables);
    let given =
        run(conn, format!("SELECT GET_LOCK({sweep_lock}, 0) AS got")).await.map_err(calling)?;
    let row = given.first().and_then(|g| g.rows.first());
    if !row.is_some_and(|r| number(r, "got").is_ok_and(|got| got == 1)) {
        return Ok(0);
    }
    let swept = async {
        let mut removed = sweep(conn, tables, RETENTION).await?;
        if row_locks {
            removed += sweep_rows(conn, tables, RETENTION).await?;
        }
        Ok(removed)
    };
    let swept = swept.await;
    // The name of a connection that broke is free anyway.
    if !matches!(&swept, Err(Trouble { broken: true, .. })) {
        execute(conn, format!("DO RELEASE_LOCK({sweep_lock})")).await?;
    }
    swept
}

/// Looks at the next few rows and removes those that are free.
pub(crate) async fn sweep(
    conn: &mut MySqlConnection,
    tables: &Tables,
    retention: Duration,
) -> Result<usize, Trouble> {
    let found = look(conn, tables, retention).await?;
    forget(conn, tables, &found).await
}

/// What a step found to be free when it looked.
#[derive(Default)]
pub(crate) struct Found {
    /// The conditions that pick the rows, as they were.
    free: Vec<String>,
    /// The highest token of them.
    top: u64,
    /// Where the next step begins.
    next: (Vec<u8>, Vec<u8>),
    /// News that nobody fetched: session and number.
    news: Vec<String>,
}

/// Reads the next few rows.
pub(crate) async fn look(
    conn: &mut MySqlConnection,
    tables: &Tables,
    retention: Duration,
) -> Result<Found, Trouble> {
    let Tables { lock, meta, news, .. } = tables;
    let old = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
    // Numbers of news rise with time, so the oldest are the first.
    let begin = format!(
        "SELECT swept_space, swept_name FROM {meta} WHERE one=1; \
         SELECT session, id FROM (SELECT session, id, at FROM {news} FORCE INDEX (id) \
         ORDER BY id LIMIT {STEP}) first \
         WHERE at < {NOW} - {old}"
    );
    let given = run(conn, begin).await.map_err(calling)?;
    let Some(cursor) = given.first().and_then(|g| g.rows.first()) else {
        return Ok(Found::default());
    };
    let bytes = |row: &sqlx::mysql::MySqlRow, c| row.try_get::<Vec<u8>, _>(c).map_err(calling);
    let (space, name) = (hex(bytes(cursor, "swept_space")?), hex(bytes(cursor, "swept_name")?));
    let mut found = Found::default();
    for row in given.get(1).map(|g| g.rows.as_slice()).unwrap_or_default() {
        let (session, id) = (hex(bytes(row, "session")?), number(row, "id").map_err(calling)?);
        found.news.push(format!("session={session} AND id={id}"));
    }
    // The cursor as literals: the server would read the whole table to compare with a column.
    let sql = format!(
        "SELECT {NOW} AS now; SELECT space, name, ver, {COLUMNS} FROM {lock} \
         WHERE space>{space} OR (space={space} AND name>{name}) ORDER BY space, name LIMIT {STEP}"
    );
    let given = run(conn, sql).await.map_err(calling)?;
    let (Some(clock), Some(rows)) = (given.first().and_then(|g| g.rows.first()), given.get(1))
    else {
        return Ok(found);
    };
    let now = micros(clock, "now").map_err(calling)?;
    for row in &rows.rows {
        found.next = (bytes(row, "space")?, bytes(row, "name")?);
        // What cannot be read is left alone.
        let Ok(record) = Record::read(row) else { continue };
        let ver = number(row, "ver").map_err(calling)?;
        if is_free(&record, ver, now, retention) {
            let (space, name) = (hex(&found.next.0), hex(&found.next.1));
            let hi = record.state.hi;
            found.top = found.top.max(hi);
            found.free.push(format!("space={space} AND name={name} AND ver={ver} AND hi={hi}"));
        }
    }
    if rows.rows.len() < STEP {
        found.next = Default::default(); // round once: from the beginning
    }
    Ok(found)
}

/// Removes what is still as it was found; how many rows were.
pub(crate) async fn forget(
    conn: &mut MySqlConnection,
    tables: &Tables,
    found: &Found,
) -> Result<usize, Trouble> {
    let Tables { lock, meta, news, .. } = tables;
    let mut sql = format!(
        "UPDATE {meta} SET floor=GREATEST(floor,{}), swept_space={}, swept_name={} WHERE one=1",
        found.top,
        hex(&found.next.0),
        hex(&found.next.1)
    );
    for (table, which) in [(lock, &found.free), (news, &found.news)] {
        for row in which {
            sql += &format!("; DELETE FROM {table} WHERE {row}");
        }
    }
    let given = run(conn, sql).await.map_err(calling)?;
    Ok(given.iter().skip(1).filter(|g| g.done.rows_affected() > 0).count())
}

/// Whether the connection of a holder that is written down is gone.
const DEAD: &str = "(IS_USED_LOCK(CONCAT('dl:r:', LOWER(HEX(req)))) IS NULL)";

/// Removes a few rows of row locks that nobody has locked for the retention, and what holders that died
/// had written down there.
pub(crate) async fn sweep_rows(
    conn: &mut MySqlConnection,
    tables: &Tables,
    retention: Duration,
) -> Result<usize, Trouble> {
    let Tables { row, held, .. } = tables;
    let old = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
    // Those that somebody has held for long are passed over, or they would keep all others.
    let sql = format!(
        "SELECT r.space, r.name, r.used FROM {row} r WHERE r.used < {NOW} - {old} \
         AND NOT EXISTS (SELECT 1 FROM {held} h WHERE h.space=r.space AND h.name=r.name \
         AND NOT {DEAD}) \
         ORDER BY r.used LIMIT {ROWS}"
    );
    let given = run(conn, sql).await.map_err(calling)?;
    let mut removed = 0;
    for idle in given.first().map(|g| g.rows.as_slice()).unwrap_or_default() {
        let column = |c| idle.try_get::<Vec<u8>, _>(c).map_err(calling);
        let at = format!("space={} AND name={}", hex(column("space")?), hex(column("name")?));
        let used = number(idle, "used").map_err(calling)?;
        // Only a row that is not locked: a long hold does not change it. While this
        // transaction has it, what is written down about a holder is about one that died.
        let sql = format!(
            "START TRANSACTION; SELECT used FROM {row} WHERE {at} FOR UPDATE NOWAIT; \
             DELETE FROM {held} WHERE {at} AND {DEAD}; \
             DELETE FROM {row} WHERE {at} AND used={used}; COMMIT"
        );
        match run(conn, sql).await {
            Ok(_) => removed += 1,
            Err(e) => {
                let taken = matches!(code(&e), Some(LOCK_WAIT | NOT_NOW));
                let trouble = calling(e);
                if !trouble.broken {
                    execute(conn, "ROLLBACK".to_owned()).await?;
                }
                if !taken {
                    return Err(trouble);
                }
            }
        }
    }
    Ok(removed)
}

/// Whether nothing but the highest token would be lost, and has not been for the retention.
/// A version is the time at which its row was made, and a little more.
fn is_free(record: &Record, ver: u64, now: Micros, retention: Duration) -> bool {
    let mut state = record.state.clone();
    let since = [Micros(ver), Micros(state.hi), state.delay_until];
    let used = state.holds.iter().map(|h| h.expires).chain(since);
    let used = used.max().unwrap_or_default();
    state.step(&Op::Settle, Now { lease: now, wall: now }, &rules());
    record.waiters == 0 && state.is_idle(now) && now.since(used) >= retention
}
