//! Tombstones: the cancelled requests of a lock, which must never come back.
//!
//! They have a table of their own, because there may be thousands and a move concerns one: the state that
//! is read and written at each move has only the tombstone of the move's own request. The few released
//! requests that are remembered stay in the state.

use std::collections::HashMap;

use distlock_core::state::{End, Tombstone};
use distlock_core::{FullName, LockState, Micros, Op, ReqId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::transaction::{signed, unsigned};

/// The table and the index by which the sweep finds what is over.
pub(crate) const TABLE: &str = "
    CREATE TABLE tombstones (
        space TEXT NOT NULL,
        name  TEXT NOT NULL,
        req   TEXT NOT NULL,     -- a cancelled request
        until INTEGER NOT NULL,  -- remembered until then, on the lease clock
        PRIMARY KEY (space, name, req)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX tombstones_until ON tombstones (until);";

/// How many tombstones that are over a transaction removes for each one it adds.
const SWEEP: usize = 2;

/// The tombstones of one lock that a transaction has looked for; `None`: there is none.
#[derive(Default)]
pub(crate) struct Tombstones(HashMap<ReqId, Option<Micros>>);

impl Tombstones {
    /// Brings the tombstone of a move's request into the state.
    pub(crate) fn fetch(
        &mut self,
        conn: &Connection,
        lock: &FullName,
        state: &mut LockState,
        op: &Op,
    ) -> rusqlite::Result<()> {
        let Some(req) = subject(op).filter(|req| !self.0.contains_key(req)) else { return Ok(()) };
        let sql = "SELECT until FROM tombstones WHERE space = ?1 AND name = ?2 AND req = ?3";
        let key = params![lock.space.as_str(), lock.name.as_str(), req.to_string()];
        let found: Option<i64> =
            conn.prepare_cached(sql)?.query_row(key, |r| r.get(0)).optional()?;
        let until = found.map(|until| Micros(unsigned(until)));
        self.0.insert(req, until);
        if let Some(until) = until.filter(|_| !state.tombstones.iter().any(|t| t.req == req)) {
            state.tombstones.push_back(Tombstone { req, end: End::Cancelled, until });
        }
        Ok(())
    }

    /// Takes the tombstones out of the state and writes what changed about them; says how many were
    /// added.
    pub(crate) fn store(
        &self,
        conn: &Connection,
        lock: &FullName,
        state: &mut LockState,
    ) -> rusqlite::Result<usize> {
        if self.0.values().all(Option::is_none) && state.tombstones.iter().all(released) {
            return Ok(0);
        }
        let (space, name) = (lock.space.as_str(), lock.name.as_str());
        let mut added = 0;
        let sql = "INSERT INTO tombstones (space, name, req, until) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT DO UPDATE SET until = ?4";
        let mut put = conn.prepare_cached(sql)?;
        for tombstone in state.tombstones.iter().filter(|t| !released(t)) {
            if self.0.get(&tombstone.req) != Some(&Some(tombstone.until)) {
                let (req, until) = (tombstone.req.to_string(), signed(tombstone.until.0));
                put.execute(params![space, name, req, until])?;
                added += 1;
            }
        }
        // What time or a step took out of the state.
        let mut remove = conn
            .prepare_cached("DELETE FROM tombstones WHERE space = ?1 AND name = ?2 AND req = ?3")?;
        for (req, _) in self.0.iter().filter(|(_, was)| was.is_some()) {
            if !state.tombstones.iter().any(|t| t.req == *req && !released(t)) {
                remove.execute(params![space, name, req.to_string()])?;
            }
        }
        state.tombstones.retain(released);
        Ok(added)
    }
}

/// Removes tombstones that are over, as many as keeps up with those that were added.
pub(crate) fn sweep(conn: &Connection, now: Micros, added: usize) -> rusqlite::Result<()> {
    if added == 0 {
        return Ok(());
    }
    let most = i64::try_from(SWEEP * added).unwrap_or(i64::MAX);
    let over = "SELECT space, name, req FROM tombstones WHERE until <= ?1 ORDER BY until LIMIT ?2";
    let mut over = conn.prepare_cached(over)?;
    let row = |r: &rusqlite::Row<'_>| Ok([r.get(0)?, r.get(1)?, r.get(2)?]);
    let rows: Vec<[String; 3]> =
        over.query_map(params![signed(now.0), most], row)?.collect::<Result<_, _>>()?;
    let sql = "DELETE FROM tombstones WHERE space = ?1 AND name = ?2 AND req = ?3";
    let mut remove = conn.prepare_cached(sql)?;
    rows.into_iter().try_for_each(|key| remove.execute(key).map(drop))
}

/// The request whose tombstone decides about a move. A renewal or a heartbeat only ever concerns a
/// request that is held or in line, which has none.
fn subject(op: &Op) -> Option<ReqId> {
    match op {
        Op::Acquire { claim, .. } => Some(claim.req),
        Op::Release { req } | Op::Cancel { req } | Op::Withdraw { req, .. } => Some(*req),
        Op::Heartbeat { .. } | Op::Renew { .. } | Op::Force { .. } | Op::Settle => None,
    }
}

fn released(tombstone: &Tombstone) -> bool {
    tombstone.end == End::Released
}
