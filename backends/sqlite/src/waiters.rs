//! A long queue: one row a waiter, read and written by difference. A short one is in the lock's state.
//!
//! 1. A transaction that changes a lock raises the lock's version. A waiter's row carries the version
//!    that last changed it; the lock's row lists the departures of its last few versions.
//! 2. A store keeps long queues in memory, each with its version. Under the write lock it brings one up
//!    to date: it drops the departed waiters and reads the rows with a newer version.
//! 3. After the step it writes the rows of the waiters that changed, and no others.
//!
//! So a move costs by what it changes, not by how many wait.

use std::collections::{HashMap, VecDeque};

use distlock_core::state::{Queue, Waiter};
use distlock_core::{FullName, Micros};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

use crate::database_file::Files;
use crate::lock_row::{from_json, to_json};
use crate::transaction::{signed, unsigned};

/// The table, the index by which changes are found, and what ends the queue of a deleted lock.
pub(crate) const TABLE: &str = "
    CREATE TABLE waiters (
        space       TEXT NOT NULL,
        name        TEXT NOT NULL,
        since       INTEGER NOT NULL,  -- its place in the queue, on the lease clock
        version     INTEGER NOT NULL,  -- the version of the lock that wrote this row
        deadline    INTEGER NOT NULL,  -- dropped then, unless a heartbeat comes before
        unreachable INTEGER NOT NULL,  -- did not confirm its promotion
        claim       TEXT NOT NULL,     -- JSON
        PRIMARY KEY (space, name, since)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX waiters_version ON waiters (space, name, version);
    CREATE TRIGGER waiters_of_deleted AFTER DELETE ON locks BEGIN
        DELETE FROM waiters WHERE space = OLD.space AND name = OLD.name;
    END;";

/// A queue that grows to this length gets rows.
const LONG: usize = 32;
/// Rows that are fewer than this go back into the state.
const SHORT: usize = 16;
/// Max queues in memory.
const KEPT: usize = 64;
/// Max departures listed in a lock's row. A process that missed more reads the whole queue.
const LISTED: usize = 32;

/// The waiters that left a long queue under its last few versions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Departures {
    /// Complete for every version after this one.
    after: u64,
    /// Version and `since` of each, oldest first.
    list: VecDeque<(u64, Micros)>,
}

impl Departures {
    /// None yet after a version.
    pub(crate) fn after(version: u64) -> Self {
        Self { after: version, list: VecDeque::new() }
    }
}

/// Whether a queue of this length belongs into rows; one that is there already stays a little longer.
pub(crate) fn is_long(len: usize, in_rows: bool) -> bool {
    len >= if in_rows { SHORT } else { LONG }
}

/// The long queues of one database as of some commit. Both workers of a store share them.
///
/// A queue is taken out under the write lock and put back after COMMIT, when another connection may have
/// committed a later version already. That does no harm: it is put back with its own version, and the
/// next reader brings it up to date from the rows and departures of the later versions, or reads it anew.
#[derive(Default)]
pub(crate) struct LongQueues {
    files: Option<Files>,
    queues: HashMap<FullName, (u64, Queue)>,
}

impl LongQueues {
    /// Takes out the queue of a lock and its version. It is put back after the commit: a transaction
    /// that fails must leave nothing of itself here.
    pub(crate) fn take(&mut self, files: Files, lock: &FullName) -> Option<(u64, Queue)> {
        if self.files != Some(files) {
            self.queues.clear();
            self.files = Some(files);
        }
        self.queues.remove(lock)
    }

    /// Keeps the queue of a lock as it was committed to rows.
    pub(crate) fn keep(&mut self, files: Files, lock: &FullName, version: u64, mut queue: Queue) {
        if self.files != Some(files) {
            return;
        }
        if self.queues.len() >= KEPT {
            self.queues.clear();
        }
        queue.index();
        self.queues.insert(lock.clone(), (version, queue));
    }

    /// Forgets everything: versions may start anew.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
    }
}

/// The queue of a lock, which has `len` waiters at this version; `kept` is the queue at an earlier one.
pub(crate) fn read(
    conn: &Connection,
    lock: &FullName,
    (version, len): (u64, u32),
    departures: &Departures,
    kept: Option<(u64, Queue)>,
) -> rusqlite::Result<Queue> {
    if let Some((known, mut queue)) = kept.filter(|(known, _)| *known >= departures.after) {
        if known != version {
            for (_, since) in departures.list.iter().filter(|(left, _)| *left > known) {
                queue.take(*since);
            }
            rows(conn, lock, known, |waiter| queue.put(waiter))?;
            queue.take_changes();
        }
        if queue.len() == len as usize {
            return Ok(queue);
        }
    }
    let mut queue = Queue::default();
    rows(conn, lock, 0, |waiter| queue.put(waiter))?;
    Ok(queue)
}

/// Writes what changed in a queue under a new version of its lock.
pub(crate) fn write(
    conn: &Connection,
    lock: &FullName,
    version: u64,
    queue: &Queue,
    changes: &[Micros],
    departures: &mut Departures,
) -> rusqlite::Result<()> {
    let (space, name) = (lock.space.as_str(), lock.name.as_str());
    let mut put = conn.prepare_cached(
        "INSERT INTO waiters (space, name, since, version, deadline, unreachable, claim)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET version = ?4, deadline = ?5, unreachable = ?6, claim = ?7",
    )?;
    let mut delete =
        conn.prepare_cached("DELETE FROM waiters WHERE space = ?1 AND name = ?2 AND since = ?3")?;
    for since in changes {
        match queue.at(*since) {
            Some(Waiter { claim, deadline, unreachable, .. }) => {
                let (since, deadline) = (signed(since.0), signed(deadline.0));
                let (version, claim) = (signed(version), to_json(claim)?);
                put.execute(params![space, name, since, version, deadline, unreachable, claim])?;
            }
            None if delete.execute(params![space, name, signed(since.0)])? > 0 => {
                departures.list.push_back((version, *since));
            }
            // It came and went within this transaction.
            None => {}
        }
    }
    let surplus = departures.list.len().saturating_sub(LISTED);
    if let Some((left, _)) = departures.list.drain(..surplus).next_back() {
        departures.after = left;
    }
    Ok(())
}

/// Deletes the rows of a queue that is short again.
pub(crate) fn clear(conn: &Connection, lock: &FullName) -> rusqlite::Result<()> {
    let delete = "DELETE FROM waiters WHERE space = ?1 AND name = ?2";
    conn.prepare_cached(delete)?.execute([lock.space.as_str(), lock.name.as_str()]).map(drop)
}

/// The waiters of a lock that were written after a version, in the order of the queue.
fn rows(
    conn: &Connection,
    lock: &FullName,
    after: u64,
    mut each: impl FnMut(Waiter),
) -> rusqlite::Result<()> {
    let sql = match after {
        0 => {
            "SELECT since, deadline, unreachable, claim FROM waiters
              WHERE space = ?1 AND name = ?2 AND version > ?3 ORDER BY since"
        }
        _ => {
            "SELECT since, deadline, unreachable, claim FROM waiters INDEXED BY waiters_version
              WHERE space = ?1 AND name = ?2 AND version > ?3"
        }
    };
    let mut statement = conn.prepare_cached(sql)?;
    let (space, name) = (lock.space.as_str(), lock.name.as_str());
    let mut rows = statement.query(params![space, name, signed(after)])?;
    while let Some(row) = rows.next()? {
        each(waiter(row)?);
    }
    Ok(())
}

fn waiter(row: &Row<'_>) -> rusqlite::Result<Waiter> {
    let micros = |column| row.get(column).map(|n| Micros(unsigned(n)));
    Ok(Waiter {
        since: micros(0)?,
        deadline: micros(1)?,
        unreachable: row.get(2)?,
        claim: from_json(row, 3)?,
    })
}
