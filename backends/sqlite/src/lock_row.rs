//! The row of a lock: its state as JSON, without a long queue and without cancelled requests, which have
//! tables of their own.

use distlock_core::state::Queue;
use distlock_core::{FullName, LockState, Micros};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::tombstones::Tombstones;
use crate::transaction::{signed, unsigned};
use crate::waiters::{self, Departures};

/// The table of the locks.
pub(crate) const LOCKS: &str = "locks";

/// `hi` and `touched` stand beside the state so that the sweep need not decode it.
pub(crate) const TABLE: &str = "
    CREATE TABLE locks (
        space      TEXT NOT NULL,
        name       TEXT NOT NULL,
        hi         INTEGER NOT NULL,            -- the highest token, as in the state
        touched    INTEGER NOT NULL,            -- when it was last written, on the lease clock
        state      TEXT NOT NULL,               -- JSON
        version    INTEGER NOT NULL DEFAULT 0,  -- rises with every write
        waiters    INTEGER NOT NULL DEFAULT 0,  -- the length of a queue in rows; 0: it is in the state
        departures TEXT NOT NULL DEFAULT '',    -- JSON: the waiters that left last
        PRIMARY KEY (space, name)
    ) STRICT, WITHOUT ROWID;";

/// Makes that table of the one that layouts 1 and 2 had.
pub(crate) const MIGRATE: &str = "
    ALTER TABLE lock RENAME TO locks;
    ALTER TABLE locks ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE locks ADD COLUMN waiters INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE locks ADD COLUMN departures TEXT NOT NULL DEFAULT '';";

/// The columns that [`LockRow::of`] reads, in its order.
pub(crate) const COLUMNS: &str = "state, version, waiters, departures";

/// The table under an older layout, for a client that only looks: there every queue is in the state.
pub(crate) const OLD_TABLE: &str =
    "(SELECT space, name, state, 0 AS version, 0 AS waiters, '' AS departures FROM lock)";

/// A lock within a transaction, and what its row said.
pub(crate) struct LockRow {
    pub(crate) state: LockState,
    pub(crate) tombstones: Tombstones,
    /// Rises with every write.
    pub(crate) version: u64,
    /// Whether the queue is in rows of its own.
    pub(crate) in_rows: bool,
    /// The state as it was read; `None` when there is no row yet.
    text: Option<String>,
    departures: Departures,
}

impl LockRow {
    /// Reads a lock; one without a row is free, with tokens above the floor. `kept` is its queue at an
    /// earlier version.
    pub(crate) fn read(
        conn: &Connection,
        table: &str,
        lock: &FullName,
        floor: u64,
        kept: Option<(u64, Queue)>,
    ) -> rusqlite::Result<Self> {
        let sql = format!("SELECT {COLUMNS} FROM {table} WHERE space = ?1 AND name = ?2");
        let mut statement = conn.prepare_cached(&sql)?;
        let key = [lock.space.as_str(), lock.name.as_str()];
        let found = statement.query_row(key, |row| Self::of(conn, lock, row, kept)).optional()?;
        Ok(found.unwrap_or_else(|| {
            let mut state = LockState::above(floor);
            state.queue.record();
            let (tombstones, departures) = (Tombstones::default(), Departures::default());
            Self { state, tombstones, version: 0, in_rows: false, text: None, departures }
        }))
    }

    /// Reads a lock from its row.
    pub(crate) fn of(
        conn: &Connection,
        lock: &FullName,
        row: &Row<'_>,
        kept: Option<(u64, Queue)>,
    ) -> rusqlite::Result<Self> {
        let mut state: LockState = from_json(row, 0)?;
        let version = unsigned(row.get(1)?);
        let waiters: u32 = row.get(2)?;
        let mut departures = Departures::default();
        if waiters > 0 {
            departures = from_json(row, 3)?;
            state.queue = waiters::read(conn, lock, (version, waiters), &departures, kept)?;
        }
        state.queue.record();
        let (text, in_rows) = (Some(row.get(0)?), waiters > 0);
        let tombstones = Tombstones::default();
        Ok(Self { state, tombstones, version, in_rows, text, departures })
    }

    /// Whether there was no row.
    pub(crate) fn is_new(&self) -> bool {
        self.text.is_none()
    }

    /// Writes what changed, under a new version; says whether anything did.
    pub(crate) fn write(
        &mut self,
        conn: &Connection,
        lock: &FullName,
        floor: u64,
        now: Micros,
    ) -> rusqlite::Result<bool> {
        let mut changes = self.state.queue.take_changes();
        let in_rows = waiters::is_long(self.state.queue.len(), self.in_rows);
        let queue = in_rows.then(|| std::mem::take(&mut self.state.queue));
        let text = to_json(&self.state)?;
        let same = match &self.text {
            Some(was) => *was == text,
            None => self.state == LockState::above(floor),
        };
        let wrote = !same || !changes.is_empty();
        if wrote {
            // Never a version that this name had before, even if its row was deleted meanwhile.
            self.version = now.0.max(self.version + 1);
            let mut departures = String::new();
            if let Some(queue) = &queue {
                if !self.in_rows {
                    self.departures = Departures::after(self.version);
                    changes = queue.iter().map(|waiter| waiter.since).collect();
                }
                let listed = &mut self.departures;
                waiters::write(conn, lock, self.version, queue, &changes, listed)?;
                departures = to_json(listed)?;
            } else if self.in_rows {
                waiters::clear(conn, lock)?;
            }
            let mut statement = conn.prepare_cached(
                "INSERT INTO locks (space, name, hi, touched, state, version, waiters, departures)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT DO UPDATE SET hi = ?3, touched = ?4, state = ?5, version = ?6,
                     waiters = ?7, departures = ?8",
            )?;
            let (space, name) = (lock.space.as_str(), lock.name.as_str());
            let (hi, touched) = (signed(self.state.hi), signed(now.0));
            let version = signed(self.version);
            let waiters = queue.as_ref().map_or(0, |queue| queue.len());
            let waiters = u32::try_from(waiters).unwrap_or(u32::MAX);
            statement
                .execute(params![space, name, hi, touched, text, version, waiters, departures])?;
        }
        self.in_rows = in_rows;
        self.state.queue = queue.unwrap_or_else(|| std::mem::take(&mut self.state.queue));
        Ok(wrote)
    }
}

/// A value as JSON.
pub(crate) fn to_json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

/// A column's JSON, decoded where it lies.
pub(crate) fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, e.into()))
}
