//! Many waiters of one lock say that they are alive: one transaction, one statement for all.
//!
//! While time brings nothing about and they are all in the queue, listening, a heartbeat does no more
//! than move their deadlines; the rest of the queue need not be read for that, only the first
//! thousand: a waiter further back is told that at least that many are ahead. Anything else goes to
//! the slow path.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::state::{Now, Pulse};
use distlock_core::{FullName, LockState, Op, ReqId};
use sqlx::{MySqlConnection, Row};

use crate::queue::{self, COUNTED, Line};
use crate::record::{COLUMNS, Record, rules};
use crate::slow_path::{BEGIN, END, Fault, SlowPath, moment, odd, read_moment};
use crate::sql::{NOW, at, list, number, run};

/// A request, and whether it asks for a permit.
const PLACE: usize = 16 + 1;

impl SlowPath {
    /// Moves the deadlines of waiters if that is all there is to do; `None` says that it is not.
    pub(crate) async fn beat(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
        waiting: &[(ReqId, Duration)],
    ) -> Result<Option<Vec<Pulse>>, Fault> {
        let (tables, at) = (&self.tables, at(lock));
        let [heads, _] = queue::select(tables, &at, &[Op::Settle], false);
        let sql = format!(
            "{BEGIN}; SELECT {COLUMNS} FROM {} WHERE {at} FOR UPDATE; \
             {}; {heads}; \
             SELECT GROUP_CONCAT(CONCAT(req, permits>0) ORDER BY since SEPARATOR '') AS line \
             FROM (SELECT req, permits, since FROM {wait} WHERE {at} \
             ORDER BY since LIMIT {COUNTED}) counted; \
             SELECT COUNT(*) AS here FROM {wait} WHERE {at} AND deaf=0 AND deadline>{NOW} \
             AND req IN ({mine})",
            tables.lock,
            read_moment(),
            wait = tables.wait,
            mine = list(waiting.iter().map(|(req, _)| req))
        );
        let given = run(conn, sql).await?;
        let [_, _, row, clock, heads, places, here] = given.as_slice() else { return Err(odd()) };
        let now = moment(clock)?;
        let Some(record) = row.rows.first().map(Record::read).transpose()? else {
            return Self::not_so(conn).await;
        };
        // One value, not a row each: a thousand rows cost more than all the rest.
        let line_up = places.rows.first().map(|r| r.try_get::<Option<Vec<u8>>, _>("line"));
        let line_up = line_up.transpose()?.flatten().unwrap_or_default();
        let line = Line::of(&heads.rows, &[], record.waiters, false)?;
        let mut state = LockState { queue: line.read.values().cloned().collect(), ..record.state };
        let before = state.clone();
        let step = state.step(&Op::Settle, Now { lease: now, wall: now }, &rules());
        let quiet = step.effects.is_empty()
            && (&state.holds, &state.queue, state.hi) == (&before.holds, &before.queue, before.hi)
            // All of them are in the queue and were not passed over.
            && number(here.rows.first().ok_or_else(odd)?, "here")? == waiting.len() as u64;
        if !quiet {
            return Self::not_so(conn).await;
        }
        let mut place = HashMap::with_capacity(line_up.len() / PLACE);
        for (i, entry) in line_up.chunks_exact(PLACE).enumerate() {
            let (req, permit) = entry.split_at(PLACE - 1);
            place.insert(req, (i, permit == b"1"));
        }
        let mut pulses = Vec::with_capacity(waiting.len());
        for (req, _) in waiting {
            let place = place.get(req.as_bytes().as_slice()).copied();
            let (i, permit) = place.unwrap_or((COUNTED, false));
            let ahead = u32::try_from(i).unwrap_or(u32::MAX);
            let ends = state.holds.iter().map(|h| h.expires);
            let end = if permit { ends.min() } else { ends.max() };
            let delay = Some(state.delay_until).filter(|until| *until > now);
            let left = end.into_iter().chain(delay).max().map(|end| end.since(now));
            pulses.push(Pulse::Queued { ahead, left });
        }
        let mut by_wait: HashMap<Duration, Vec<&ReqId>> = HashMap::new();
        for (req, wait) in waiting {
            by_wait.entry(*wait).or_default().push(req);
        }
        let mut sql = String::new();
        for (wait, reqs) in by_wait {
            sql += &format!(
                "UPDATE {} SET deadline=GREATEST(deadline,{}) WHERE {at} AND req IN ({});",
                tables.wait,
                now.plus(wait).0,
                list(reqs)
            );
        }
        run(conn, format!("{sql}COMMIT; {END}")).await?;
        Ok(Some(pulses))
    }

    async fn not_so<T>(conn: &mut MySqlConnection) -> Result<Option<T>, Fault> {
        run(conn, format!("ROLLBACK; {END}")).await?;
        Ok(None)
    }
}
