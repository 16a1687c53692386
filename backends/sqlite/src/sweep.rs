//! Forgetting what is free and has not been touched for the retention.
//!
//! A few rows are looked at inside ordinary transactions, going round the table: some every
//! second, and two for every row that was added, so that the sweep keeps up with any load. The
//! highest token of a row that goes is kept in the floor, in the same transaction.

use std::time::Duration;

use distlock_core::state::Now;
use distlock_core::{LockState, Micros, Op};
use rusqlite::{Connection, params};

use crate::transaction::{rules, signed, unsigned};

/// How long a free lock is remembered.
const RETENTION: Duration = Duration::from_secs(3600);
/// How often rows are looked at when none are added.
const PERIOD: Duration = Duration::from_secs(1);
/// How many then.
const STEP: u32 = 64;
/// How many at most in one transaction.
const MOST: u32 = 256;

/// Reads the next rows, in the order of the table.
const LOOK: &str = "SELECT space, name, touched, hi, state FROM locks
     WHERE (space, name) > (?1, ?2) ORDER BY space, name LIMIT ?3";

/// Whether a lock has waiters in rows of their own. Asked only about rows that are old: a long queue
/// would else be read with every look at its lock, while others wait to write.
const WAITED: &str = "SELECT 1 FROM waiters WHERE space = ?1 AND name = ?2 AND deadline > ?3";

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
            let mut look = conn.prepare_cached(LOOK)?;
            let mut waited = conn.prepare_cached(WAITED)?;
            let mut rows = look.query(params![after.0, after.1, looks])?;
            while let Some(row) = rows.next()? {
                seen += 1;
                *after = (row.get(0)?, row.get(1)?);
                let touched = Micros(unsigned(row.get(2)?));
                if now.lease.since(touched) >= RETENTION
                    && is_free(row.get_ref(4)?.as_str()?, now)
                    && !waited.exists(params![after.0, after.1, signed(now.lease.0)])?
                {
                    free.push((after.clone(), unsigned(row.get(3)?)));
                }
            }
        }
        if seen < looks {
            *after = Default::default();
        }
        let mut top = 0;
        let mut delete = conn.prepare_cached("DELETE FROM locks WHERE space = ?1 AND name = ?2")?;
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

#[cfg(test)]
mod tests {
    use distlock_core::host::Boot;
    use rusqlite::StatementStatus::VmStep;

    use super::*;
    use crate::schema;

    #[test]
    fn a_look_at_a_lock_in_use_does_not_read_its_queue() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.db");
        std::fs::File::create(&file).unwrap();
        let conn = schema::connect(&file, &Boot::here().unwrap(), true).unwrap();
        let at = |secs: u64| Micros(secs * 1_000_000);
        let now = Now { lease: at(10_000), wall: at(10_000) };
        let state = serde_json::to_string(&LockState::above(0)).unwrap();
        // A lock that is in use, one that was left an hour ago, and one whose waiters are still known.
        for (name, touched, deadline) in [("a", 9_999, 0), ("b", 1, 9_000), ("c", 1, 11_000)] {
            let lock =
                "INSERT INTO locks (space, name, hi, touched, state) VALUES ('', ?1, 7, ?2, ?3)";
            conn.execute(lock, params![name, signed(at(touched).0), state]).unwrap();
            let waiters = "INSERT INTO waiters
                WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
                SELECT '', ?1, i, 1, ?2, 0, '' FROM n";
            conn.execute(waiters, params![name, signed(at(deadline).0)]).unwrap();
        }
        let mut sweep = Sweep::default();
        assert_eq!(sweep.step(&conn, now, 0, &mut Default::default()).unwrap(), 7);
        let left: String =
            conn.query_row("SELECT group_concat(name) FROM locks", [], |r| r.get(0)).unwrap();
        assert_eq!(left, "a,c");
        let steps = |sql| conn.prepare_cached(sql).unwrap().get_status(VmStep);
        assert!((1..200).contains(&steps(LOOK)), "{} steps for three locks", steps(LOOK));
    }
}
