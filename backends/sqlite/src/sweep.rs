//! Forgetting what is free and has not been touched for the retention.
//!
//! A few rows are looked at inside ordinary transactions, going round the table: some every
//! second, and two for every row that was added, so that the sweep keeps up with any load. The
//! highest token of a row that goes is kept in the floor, in the same transaction.

use std::time::Duration;

use distlock_core::state::{LockState, Micros, Now, Op};
use rusqlite::{Connection, params};

use crate::transaction::{rules, unsigned};

/// How long a free lock is remembered.
const RETENTION: Duration = Duration::from_secs(3600);
/// How often rows are looked at when none are added.
const PERIOD: Duration = Duration::from_secs(1);
/// How many then.
const STEP: u32 = 64;
/// How many at most in one transaction.
const MOST: u32 = 256;

/// How much one connection has to look at. Where the next look begins is kept in the file, or
/// processes that come and go would look at the first rows for ever.
#[derive(Default)]
pub(crate) struct Sweep {
    last: Micros,
    owed: u32,
}

impl Sweep {
    /// Looks at a few rows; answers with the highest token of those that went.
    pub(crate) fn step(
        &mut self,
        conn: &Connection,
        now: Now,
        fresh: u32,
        after: &mut (String, String),
    ) -> rusqlite::Result<u64> {
        self.owed += 2 * fresh;
        if now.lease.since(self.last) >= PERIOD {
            self.owed += STEP;
            self.last = now.lease;
        }
        let looks = self.owed.min(MOST);
        self.owed -= looks;
        if looks == 0 {
            return Ok(0);
        }
        let mut free = Vec::new();
        let mut seen = 0;
        {
            let mut statement = conn.prepare_cached(
                "SELECT space, name, touched, hi, state FROM lock
                 WHERE (space, name) > (?1, ?2) ORDER BY space, name LIMIT ?3",
            )?;
            let mut rows = statement.query(params![after.0, after.1, looks])?;
            while let Some(row) = rows.next()? {
                seen += 1;
                *after = (row.get(0)?, row.get(1)?);
                let touched = Micros(unsigned(row.get(2)?));
                if now.lease.since(touched) >= RETENTION && is_free(row.get_ref(4)?.as_str()?, now)
                {
                    free.push((after.clone(), unsigned(row.get(3)?)));
                }
            }
        }
        if seen < looks {
            *after = Default::default();
        }
        let mut top = 0;
        let mut delete = conn.prepare_cached("DELETE FROM lock WHERE space = ?1 AND name = ?2")?;
        for ((space, name), hi) in free {
            delete.execute([space, name])?;
            top = top.max(hi);
        }
        Ok(top)
    }
}

/// Whether nothing but the highest token would be lost. What cannot be read is left alone.
fn is_free(text: &str, now: Now) -> bool {
    let Ok(mut state) = serde_json::from_str::<LockState>(text) else { return false };
    state.step(&Op::Settle, now, &rules());
    state.is_idle(now.lease)
}
