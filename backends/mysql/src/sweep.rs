//! Forgetting what is free and has not been used for the retention.
//!
//! A few rows at a time, going round the table, now and then and behind everybody's back. First the
//! floor is raised above their tokens, then they are deleted, each only if it has not changed: a
//! row that comes back starts above the floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::state::{Micros, Now, Op};
use distlock_core::{Clock, engine};
use distlock_sql::{Lane, Trouble};
use sqlx::{MySqlConnection, Row};

use crate::door::Door;
use crate::record::{COLUMNS, Record, rules};
use crate::schema::Tables;
use crate::sql::{NOW, hex, micros, number, run};
use crate::trouble::{LOCK_WAIT, NOT_NOW, calling, number as code};

/// How long a free lock is remembered, and news that nobody fetched.
pub(crate) const RETENTION: Duration = Duration::from_secs(3600);
/// How often rows are looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// How many then.
const STEP: usize = 256;
/// How many rows of row locks are forgotten at once.
const ROWS: usize = 64;

/// When this process last swept. Where the next look begins is kept in the table, or processes that
/// come and go would look at the first rows for ever.
#[derive(Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// Looks at a few rows in the background, if it is time.
    pub(crate) fn step(&self, lane: &Arc<Lane<Door>>, tables: &Tables, clock: &Clock) {
        let now = clock.now().as_micros();
        let last = self.0.load(Ordering::Relaxed);
        let period = u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX);
        if now.saturating_sub(last) < period
            || self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let (lane, tables) = (Arc::clone(lane), tables.clone());
        engine::spawn(async move {
            let swept = lane.call(move |conn| {
                let tables = tables.clone();
                Box::pin(async move {
                    sweep(conn, &tables, RETENTION).await?;
                    sweep_rows(conn, &tables, RETENTION).await
                })
            });
            if let Err(e) = swept.await {
                tracing::debug!(error = %e, "no sweep this time");
            }
        });
    }
}

/// Looks at the next few rows.
pub(crate) async fn sweep(
    conn: &mut MySqlConnection,
    tables: &Tables,
    retention: Duration,
) -> Result<(), Trouble> {
    let Tables { lock, meta, news, .. } = tables;
    let old = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
    let given = run(
        conn,
        format!(
            "DELETE FROM {news} WHERE at < {NOW} - {old} LIMIT {STEP}; SELECT {NOW} AS now; \
             SELECT l.space, l.name, l.ver, {COLUMNS} FROM {lock} l \
             JOIN {meta} m ON l.space > m.swept_space OR \
             (l.space = m.swept_space AND l.name > m.swept_name) \
             ORDER BY l.space, l.name LIMIT {STEP}"
        ),
    );
    let given = given.await.map_err(calling)?;
    let (Some(clock), Some(rows)) = (given.get(1).and_then(|g| g.rows.first()), given.get(2))
    else {
        return Ok(());
    };
    let now = micros(clock, "now").map_err(calling)?;
    let (mut last, mut top, mut deletes) = <(_, u64, String)>::default();
    for row in &rows.rows {
        let column = |c| row.try_get::<Vec<u8>, _>(c).map_err(calling);
        last = (column("space")?, column("name")?);
        // What cannot be read is left alone.
        let Ok(record) = Record::read(row) else { continue };
        if !is_free(&record, now, retention) {
            continue;
        }
        top = top.max(record.state.hi);
        let ver = number(row, "ver").map_err(calling)?;
        deletes += &format!(
            "; DELETE FROM {lock} WHERE space={} AND name={} AND ver={ver}",
            hex(&last.0),
            hex(&last.1)
        );
    }
    if rows.rows.len() < STEP {
        last = Default::default(); // round once: from the beginning
    }
    let raise = format!(
        "UPDATE {meta} SET floor=GREATEST(floor,{top}), swept_space={}, swept_name={} WHERE one=1",
        hex(&last.0),
        hex(&last.1)
    );
    run(conn, raise + &deletes).await.map_err(calling)?;
    Ok(())
}

/// Forgets a few rows that nobody has locked for the retention, and holders that died.
pub(crate) async fn sweep_rows(
    conn: &mut MySqlConnection,
    tables: &Tables,
    retention: Duration,
) -> Result<(), Trouble> {
    let Tables { row, held, .. } = tables;
    let old = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
    let sql = format!(
        "DELETE FROM {held} WHERE granted < {NOW} - {old} \
         AND IS_USED_LOCK(CONCAT('dl:r:', LOWER(HEX(req)))) IS NULL LIMIT {ROWS}; \
         SELECT space, name, used FROM {row} WHERE used < {NOW} - {old} ORDER BY used LIMIT {ROWS}"
    );
    let given = run(conn, sql).await.map_err(calling)?;
    for idle in given.get(1).map(|g| g.rows.as_slice()).unwrap_or_default() {
        let column = |c| idle.try_get::<Vec<u8>, _>(c).map_err(calling);
        let at = format!("space={} AND name={}", hex(column("space")?), hex(column("name")?));
        let used = number(idle, "used").map_err(calling)?;
        // Only one that nobody has: whoever holds it for long has not changed it.
        let sql = format!(
            "START TRANSACTION; SELECT used FROM {row} WHERE {at} FOR UPDATE NOWAIT; \
             DELETE FROM {row} WHERE {at} AND used={used}; COMMIT"
        );
        if let Err(e) = run(conn, sql).await {
            let taken = matches!(code(&e), Some(LOCK_WAIT | NOT_NOW));
            let trouble = calling(e);
            if !trouble.broken {
                run(conn, "ROLLBACK".to_owned()).await.map_err(calling)?;
            }
            if !taken {
                return Err(trouble);
            }
        }
    }
    Ok(())
}

/// Whether nothing but the highest token would be lost, and has not been for the retention.
fn is_free(record: &Record, now: Micros, retention: Duration) -> bool {
    let mut state = record.state.clone();
    let used = state.holds.iter().map(|h| h.expires).chain([Micros(state.hi), state.delay_until]);
    let used = used.max().unwrap_or_default();
    state.step(&Op::Settle, Now { lease: now, wall: now }, &rules());
    record.waiters == 0 && state.is_idle(now) && now.since(used) >= retention
}
