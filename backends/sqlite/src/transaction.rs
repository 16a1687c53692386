//! One transaction: read, step, write.
//!
//! `begin` takes the write lock; `finish` runs every move on the states, each read and written once,
//! and commits. Time is read in between, when nobody else can write.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::host::Boot;
use distlock_core::state::Now;
use distlock_core::{
    Clock, Effects, Error, FullName, Kind, LockState, Micros, Mutex, Op, Reply, Rules,
};
use rusqlite::{Connection, params};

use crate::database_file::{DatabaseFile, Files};
use crate::errors::{damaged, is_damaged, trouble};
use crate::lock_row::{LOCKS, LockRow};
use crate::log::Log;
use crate::options::Sync;
use crate::peer_socket::Silent;
use crate::schema;
use crate::sweep::Sweep;
use crate::tombstones;
use crate::waiters::LongQueues;

/// How far ahead of the wall the ceiling is raised.
const AHEAD: Duration = Duration::from_secs(10);
/// When the wall is this near to the ceiling, the next transaction raises it.
const NEAR: Duration = Duration::from_secs(2);

/// One operation on one lock.
pub(crate) type Move = (FullName, Op);

/// What a transaction brought about.
#[derive(Default)]
pub(crate) struct Applied {
    /// An answer for each move, in order.
    pub(crate) replies: Vec<Result<Reply, Error>>,
    /// The wake-ups to send.
    pub(crate) effects: Vec<(FullName, Effects)>,
}

/// A connection and what it knows of the file.
pub(crate) struct Database {
    pub(crate) conn: Connection,
    pub(crate) file: PathBuf,
    /// What the connection works on.
    files: Files,
    pub(crate) boot: Boot,
    clock: Clock,
    sync: Sync,
    /// What the connection's `synchronous` is set to.
    full: bool,
    /// The ceiling as last read.
    ceiling: u64,
    sweep: Sweep,
    log: Log,
    queues: SharedQueues,
}

/// The long queues that the connections of a store share.
pub(crate) type SharedQueues = Arc<Mutex<LongQueues>>;

/// The row about the whole.
#[derive(Clone, PartialEq)]
pub(crate) struct Meta {
    pub(crate) boot: Boot,
    floor: u64,
    ceiling: u64,
    /// How far round the table the sweep is.
    swept: (String, String),
}

/// Calls are delivered once, so a released request is only ever asked about again by a caller
/// whose commit failed: few need remembering.
pub(crate) fn rules() -> Rules {
    Rules { released_cap: 8, ..Rules::default() }
}

impl Database {
    /// Opens the database. Without `create` one without tables is refused.
    pub(crate) fn open(
        place: &DatabaseFile,
        boot: Boot,
        clock: Clock,
        sync: Sync,
        create: bool,
        queues: SharedQueues,
    ) -> Result<Self, Error> {
        let conn = schema::connect(&place.file, &boot, create)?;
        let file = place.file.clone();
        // The layout has been read, so both are there.
        let files = Files::at(&file);
        let mut database = Self {
            conn,
            files,
            boot,
            clock,
            sync,
            full: false,
            ceiling: 0,
            sweep: Sweep::default(),
            log: Log::of(&file),
            queues,
            file,
        };
        database.set_full(true)?;
        Ok(database)
    }

    /// The files this works on.
    pub(crate) fn files(&self) -> Files {
        self.files
    }

    /// Whether the database was removed or another put in its place: then everybody else uses
    /// that one, and so must we.
    pub(crate) fn is_replaced(&self) -> bool {
        Files::at(&self.file).db != self.files.db
    }

    /// Takes the write lock, waiting at most [`schema::BUSY`] for others.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        let near = self.clock.wall_micros() + micros(NEAR) > self.ceiling;
        self.start(self.sync == Sync::Full || near)
    }

    /// Runs the moves in the transaction that was begun. Promotions of waiters of a process that
    /// is known not to hear are withdrawn in the same go.
    pub(crate) fn finish(&mut self, moves: &[Move], silent: &Silent) -> Result<Applied, Error> {
        let mut tried = self.attempt(moves, silent);
        if let Ok(None) = tried {
            self.rollback();
            self.start(true)?;
            tried = self.attempt(moves, silent);
        }
        let uncovered = || Error::new(Kind::Store, "the ceiling was not raised");
        tried.and_then(|applied| applied.ok_or_else(uncovered)).inspect_err(|_| self.rollback())
    }

    /// Keeps the log from growing for ever; now and then, when no caller waits for it.
    pub(crate) fn trim(&mut self) {
        self.log.trim(&self.conn);
    }

    fn start(&mut self, full: bool) -> Result<(), Error> {
        // Opening it again would not help: connections of one process share the old one.
        if Files::at(&self.file).shm != self.files.shm {
            return Err(split(&self.file));
        }
        self.set_full(full)?;
        self.run("BEGIN IMMEDIATE")
    }

    /// Runs the moves and commits. `None` when a token came out above the ceiling: it takes another
    /// transaction whose commit raises the ceiling durably.
    fn attempt(&mut self, moves: &[Move], silent: &Silent) -> Result<Option<Applied>, Error> {
        let stored = self.meta()?;
        let mut meta = self.of_this_boot(stored.clone())?;
        let now = self.now();
        let wrong = |e| trouble(&self.file, e);
        let mut rows: HashMap<&FullName, Result<LockRow, Error>> = HashMap::new();
        let mut applied = Applied::default();
        for moves in moves.chunk_by(together) {
            let (lock, op) = &moves[0];
            if !rows.contains_key(lock) {
                rows.insert(lock, self.read(lock, meta.floor)?);
            }
            match rows.get_mut(lock) {
                Some(Ok(row)) => {
                    row.tombstones.fetch(&self.conn, lock, &mut row.state, op).map_err(wrong)?;
                    let (replies, effects) = play(&mut row.state, moves, now, silent);
                    if !effects.is_empty() {
                        applied.effects.push((lock.clone(), effects));
                    }
                    applied.replies.extend(replies.into_iter().map(Ok));
                }
                Some(Err(e)) => applied.replies.extend(moves.iter().map(|_| Err(e.clone()))),
                None => {}
            }
        }
        let top = rows.values().flatten().map(|row| row.state.hi).max().unwrap_or(0);
        if self.sync == Sync::Normal && !self.full && top > meta.ceiling {
            self.ceiling = meta.ceiling;
            return Ok(None);
        }
        // Only by a commit that is synced: others take a ceiling they read for one that will last.
        if self.sync == Sync::Normal
            && self.full
            && top.max(now.wall.0 + micros(NEAR)) > meta.ceiling
        {
            meta.ceiling = top.max(now.wall.0) + micros(AHEAD);
        }
        let (mut wrote, mut fresh, mut buried) = (false, 0, 0);
        for (lock, row) in &mut rows {
            let Ok(row) = row else { continue };
            buried += row.tombstones.store(&self.conn, lock, &mut row.state).map_err(wrong)?;
            if row.write(&self.conn, lock, meta.floor, now.lease).map_err(wrong)? {
                wrote = true;
                fresh += u32::from(row.is_new());
            }
        }
        if wrote {
            let swept = self.sweep.step(&self.conn, now, fresh, &mut meta.swept);
            meta.floor = meta.floor.max(swept.map_err(wrong)?);
        }
        tombstones::sweep(&self.conn, now.lease, buried).map_err(wrong)?;
        if meta != stored {
            self.set_meta(&meta)?;
        }
        // From here on a failure leaves open what became of it.
        self.run("COMMIT").map_err(Error::unknown)?;
        self.ceiling = meta.ceiling;
        let mut queues = self.queues.lock();
        for (lock, row) in rows {
            if let Ok(LockRow { in_rows: true, version, state, .. }) = row {
                queues.keep(self.files, lock, version, state.queue);
            }
        }
        Ok(Some(applied))
    }

    /// The time, read while nobody else can write.
    pub(crate) fn now(&self) -> Now {
        Now { lease: Micros(self.clock.now().as_micros()), wall: Micros(self.clock.wall_micros()) }
    }

    /// Another boot: every lease is over, and every token that was ever told stays below the
    /// floor. Rows need not outlive that.
    pub(crate) fn of_this_boot(&self, mut meta: Meta) -> Result<Meta, Error> {
        if meta.boot == self.boot {
            return Ok(meta);
        }
        if meta.boot.id == self.boot.id {
            return Err(Error::new(Kind::Refused, "the store is used in another time namespace")
                .with_hint("leases count time since boot: use one namespace, or another file")
                .store(self.file.display()));
        }
        tracing::info!(file = %self.file.display(), "another boot: every lease is over");
        let wrong = |e| trouble(&self.file, e);
        let top = "SELECT coalesce(max(hi), 0) FROM locks";
        let top: i64 = self.conn.query_row(top, [], |r| r.get(0)).map_err(wrong)?;
        self.run("DELETE FROM locks")?;
        self.run("DELETE FROM tombstones")?;
        self.queues.lock().clear();
        meta.floor = meta.floor.max(meta.ceiling).max(unsigned(top));
        meta.boot = self.boot.clone();
        Ok(meta)
    }

    /// Reads a lock. The inner error is about its own row; other locks of the transaction go on.
    fn read(&self, lock: &FullName, floor: u64) -> Result<Result<LockRow, Error>, Error> {
        let kept = self.queues.lock().take(self.files, lock);
        match LockRow::read(&self.conn, LOCKS, lock, floor, kept) {
            Ok(row) => Ok(Ok(row)),
            Err(e) if is_damaged(&e) => Ok(Err(damaged(lock, e))),
            Err(e) => Err(trouble(&self.file, e)),
        }
    }

    pub(crate) fn meta(&self) -> Result<Meta, Error> {
        let wrong = |e| trouble(&self.file, e);
        let sql = "SELECT boot, shift, floor, ceiling, swept_space, swept_name FROM meta";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrong)?;
        let row = |r: &rusqlite::Row<'_>| {
            let boot = Boot { id: r.get(0)?, shift: r.get(1)? };
            let (floor, ceiling) = (unsigned(r.get(2)?), unsigned(r.get(3)?));
            Ok(Meta { boot, floor, ceiling, swept: (r.get(4)?, r.get(5)?) })
        };
        statement.query_row([], row).map_err(wrong)
    }

    fn set_meta(&self, meta: &Meta) -> Result<(), Error> {
        let wrong = |e| trouble(&self.file, e);
        let sql = "UPDATE meta SET boot = ?1, shift = ?2, floor = ?3, ceiling = ?4,
                   swept_space = ?5, swept_name = ?6";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrong)?;
        let Meta { boot, floor, ceiling, swept } = meta;
        let (floor, ceiling) = (signed(*floor), signed(*ceiling));
        statement
            .execute(params![boot.id, boot.shift, floor, ceiling, swept.0, swept.1])
            .map_err(wrong)?;
        Ok(())
    }

    fn set_full(&mut self, full: bool) -> Result<(), Error> {
        if self.full != full {
            let level = if full { "FULL" } else { "NORMAL" };
            self.run(&format!("PRAGMA synchronous = {level}"))?;
            self.full = full;
        }
        Ok(())
    }

    pub(crate) fn run(&self, sql: &str) -> Result<(), Error> {
        let done = self.conn.prepare_cached(sql).and_then(|mut s| s.execute([]));
        done.map(drop).map_err(|e| trouble(&self.file, e))
    }

    pub(crate) fn rollback(&self) {
        if !self.conn.is_autocommit()
            && let Err(e) = self.run("ROLLBACK")
        {
            tracing::warn!(error = %e, "a transaction could not be rolled back");
        }
    }
}

/// Somebody removed the file with the locks while the database was in use.
pub(crate) fn split(file: &Path) -> Error {
    Error::new(Kind::Store, "the -shm file was removed while the database was in use")
        .with_hint("stop every process that uses the database, then start them again")
        .store(format!("sqlite:{}", file.display()))
}

/// Whether two moves that follow each other are played as one: the heartbeats of a crowd at one lock
/// are one pass over its line, not one for each.
fn together(a: &Move, b: &Move) -> bool {
    let beats = |m: &Move| matches!(m.1, Op::Heartbeat { .. });
    beats(a) && beats(b) && a.0 == b.0
}

/// One step, or the heartbeats of a crowd, and the withdrawal of every promotion in it that nobody
/// can hear of.
fn play(state: &mut LockState, moves: &[Move], now: Now, silent: &Silent) -> (Vec<Reply>, Effects) {
    let rules = rules();
    let (replies, mut effects) = match moves {
        [(_, op)] => {
            let step = state.step(op, now, &rules);
            (vec![step.reply], step.effects)
        }
        crowd => {
            let beat = |(_, op): &Move| match op {
                Op::Heartbeat { req, wait } => Some((*req, *wait)),
                _ => None,
            };
            let waiting: Vec<_> = crowd.iter().filter_map(beat).collect();
            let (pulses, effects) = state.beat(&waiting, now, &rules);
            (pulses.into_iter().map(Reply::Pulse).collect(), effects)
        }
    };
    while let Some(i) = effects.turns.iter().position(|(_, via)| silent.contains_key(via)) {
        let (req, via) = effects.turns.remove(i);
        let gone = silent.get(&via).copied().unwrap_or(false);
        let more = state.step(&Op::Withdraw { req, gone }, now, &rules).effects;
        effects.turns.extend(more.turns);
        effects.contended.extend(more.contended);
        effects.revoked.extend(more.revoked);
    }
    (replies, effects)
}

/// SQLite's integers have a sign; ours stay below 2^63.
pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::state::Claim;
    use distlock_core::{Label, Mode, Name, Namespace, Owner, ReqId};
    use std::num::NonZeroU32;

    fn touch(name: &str) -> Move {
        let lock = FullName { space: Namespace::default(), name: Name::new(name).unwrap() };
        let claim = Claim {
            req: ReqId::random(),
            owner: Owner::new(),
            mode: Mode::Exclusive,
            ttl: AHEAD,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::new(""),
            block: NonZeroU32::MIN,
            via: String::new(),
        };
        (lock, Op::Acquire { claim, wait: None })
    }

    fn cycle(database: &mut Database) -> u64 {
        let (lock, op) = touch("x");
        let Op::Acquire { claim: Claim { req, .. }, .. } = op else { unreachable!() };
        let moves = [(lock.clone(), op), (lock, Op::Release { req })];
        database.begin().unwrap();
        let applied = database.finish(&moves, &Silent::new()).unwrap();
        match &applied.replies[0] {
            Ok(Reply::Granted { token, .. }) => token.get(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_above_the_ceiling_waits_for_a_synced_commit() {
        let dir = tempfile::tempdir().unwrap();
        let place = DatabaseFile::prepare(&dir.path().join("x.db")).unwrap();
        let boot = Boot::here().unwrap();
        let clock = Clock::held();
        let open = |sync| {
            Database::open(&place, boot.clone(), clock.clone(), sync, true, Default::default())
                .unwrap()
        };
        let (mut normal, mut full) = (open(Sync::Normal), open(Sync::Full));
        let mut raised = 0;
        for i in 0..60 {
            clock.advance(Duration::from_millis(900));
            if i % 20 == 10 {
                // Somebody who syncs goes far ahead: no ceiling covers what comes after.
                clock.step_wall(86_400);
                cycle(&mut full);
                clock.step_wall(-86_400);
            }
            let before = normal.meta().unwrap().ceiling;
            let token = cycle(&mut normal);
            let after = normal.meta().unwrap().ceiling;
            assert!(token <= after, "{token} was told above {after}");
            if after != before {
                assert!(normal.full, "the ceiling was raised without a sync");
                raised += 1;
            }
        }
        assert!((4..30).contains(&raised), "raised {raised} times");
    }

    #[test]
    fn a_ceiling_that_came_near_during_a_long_wait_is_not_raised_without_a_sync() {
        let dir = tempfile::tempdir().unwrap();
        let place = DatabaseFile::prepare(&dir.path().join("x.db")).unwrap();
        let boot = Boot::here().unwrap();
        let clock = Clock::held();
        let mut database =
            Database::open(&place, boot, clock.clone(), Sync::Normal, true, Default::default())
                .unwrap();
        cycle(&mut database);
        let synced = database.meta().unwrap().ceiling;
        // Far from the ceiling when the write lock is asked for, near to it when it comes.
        clock.advance(Duration::from_secs(7));
        database.begin().unwrap();
        assert!(!database.full);
        clock.advance(Duration::from_secs(2));
        let (lock, op) = touch("y");
        database.finish(&[(lock, op)], &Silent::new()).unwrap();
        assert_eq!(database.meta().unwrap().ceiling, synced, "raised, and a power cut undoes it");
        cycle(&mut database);
        assert!(
            database.full && database.meta().unwrap().ceiling > synced,
            "the next one raises it"
        );
    }
}
