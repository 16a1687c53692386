//! One transaction: read, step, write.
//!
//! `begin` takes the write lock; `finish` runs every move on the states, each decoded and encoded
//! once, and commits. Time is read in between, when nobody else can write.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use distlock_core::host::Boot;
use distlock_core::info::{LockInfo, Query};
use distlock_core::state::{Effects, LockState, Micros, Now, Op, Reply, Rules};
use distlock_core::{Clock, Error, FullName, Kind, Name};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::database_file::{DatabaseFile, Files};
use crate::errors::trouble;
use crate::log::Log;
use crate::options::Sync;
use crate::peer_socket::Silent;
use crate::schema;
use crate::sweep::Sweep;
use crate::tombstones::{self, Tombstones};

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
    /// Whom to tell what.
    pub(crate) effects: Vec<(FullName, Effects)>,
}

/// A connection and what it knows of the file.
pub(crate) struct Ledger {
    conn: Connection,
    file: PathBuf,
    /// What the connection works on.
    files: Files,
    boot: Boot,
    clock: Clock,
    sync: Sync,
    /// What the connection's `synchronous` is set to.
    full: bool,
    /// The ceiling as last read.
    ceiling: u64,
    sweep: Sweep,
    log: Log,
}

/// The row about the whole.
#[derive(Clone, PartialEq)]
struct Meta {
    boot: Boot,
    floor: u64,
    ceiling: u64,
    /// How far round the table the sweep is.
    swept: (String, String),
}

/// A lock's state within a transaction, and what it was read from.
struct Sheet {
    state: LockState,
    was: Was,
    tombs: Tombstones,
}

/// What a state was read from.
enum Was {
    /// There is no row yet.
    New,
    /// Its text, to see whether anything changed.
    Text(String),
    /// A long text's length: with a long line in it something always changes, and a thousand
    /// waiters should not be kept twice.
    Long(usize),
}

/// What counts as long.
const LONG: usize = 8 << 10;

enum Tried {
    Done(Applied),
    /// A token came out above the ceiling: again, with a commit that raises it durably.
    Uncovered,
}

/// Calls are delivered once, so a released request is only ever asked about again by a caller
/// whose commit failed: few need remembering.
pub(crate) fn rules() -> Rules {
    Rules { released_cap: 8, ..Rules::default() }
}

impl Ledger {
    /// Opens the database. Without `create` one without tables is refused.
    pub(crate) fn open(
        place: &DatabaseFile,
        boot: Boot,
        clock: Clock,
        sync: Sync,
        create: bool,
    ) -> Result<Self, Error> {
        let log = Log::of(&place.file);
        let conn = schema::connect(&place.file, &boot, create)?;
        let file = place.file.clone();
        // The layout has been read, so both are there.
        let files = Files::at(&file);
        let sweep = Sweep::default();
        let mut ledger =
            Self { conn, file, files, boot, clock, sync, full: false, ceiling: 0, sweep, log };
        ledger.set_full(true)?;
        Ok(ledger)
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
        let tried = match self.attempt(moves, silent) {
            Ok(Tried::Uncovered) => {
                self.rollback();
                self.start(true)?;
                self.attempt(moves, silent)
            }
            tried => tried,
        };
        match tried {
            Ok(Tried::Done(applied)) => Ok(applied),
            Ok(Tried::Uncovered) => Err(Error::new(Kind::Store, "the ceiling was not raised")),
            Err(e) => Err(e),
        }
        .inspect_err(|_| self.rollback())
    }

    /// Keeps the log from growing for ever; now and then, when no caller waits for it.
    pub(crate) fn trim(&mut self) {
        self.log.trim(&self.conn);
    }

    /// Lists locks: a snapshot, without the write lock.
    pub(crate) fn look(&mut self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.run("BEGIN")?;
        let found = self.list(query);
        self.rollback();
        found
    }

    fn start(&mut self, full: bool) -> Result<(), Error> {
        // Opening it again would not help: connections of one process share the old one.
        if Files::at(&self.file).shm != self.files.shm {
            return Err(split(&self.file));
        }
        self.set_full(full)?;
        self.run("BEGIN IMMEDIATE")
    }

    fn attempt(&mut self, moves: &[Move], silent: &Silent) -> Result<Tried, Error> {
        let stored = self.meta()?;
        let mut meta = self.of_this_boot(stored.clone())?;
        let now = self.now();
        let mut sheets: HashMap<&FullName, Result<Sheet, Error>> = HashMap::new();
        let mut applied = Applied::default();
        for moves in moves.chunk_by(together) {
            let (lock, op) = &moves[0];
            if !sheets.contains_key(lock) {
                sheets.insert(lock, self.read(lock, meta.floor)?);
            }
            match sheets.get_mut(lock) {
                Some(Ok(sheet)) => {
                    let fetched = sheet.tombs.fetch(&self.conn, lock, &mut sheet.state, op);
                    fetched.map_err(|e| trouble(&self.file, e))?;
                    let (replies, effects) = play(&mut sheet.state, moves, now, silent);
                    if !effects.is_empty() {
                        applied.effects.push((lock.clone(), effects));
                    }
                    applied.replies.extend(replies.into_iter().map(Ok));
                }
                Some(Err(e)) => applied.replies.extend(moves.iter().map(|_| Err(e.clone()))),
                None => {}
            }
        }
        let top = sheets.values().flatten().map(|s| s.state.hi).max().unwrap_or(0);
        if self.sync == Sync::Normal && !self.full && top > meta.ceiling {
            self.ceiling = meta.ceiling;
            return Ok(Tried::Uncovered);
        }
        // Only by a commit that is synced: others take a ceiling they read for one that will last.
        if self.sync == Sync::Normal
            && self.full
            && top.max(now.wall.0 + micros(NEAR)) > meta.ceiling
        {
            meta.ceiling = top.max(now.wall.0) + micros(AHEAD);
        }
        let (mut wrote, mut fresh, mut buried) = (false, 0, 0);
        for (lock, sheet) in sheets {
            let Ok(mut sheet) = sheet else { continue };
            let Sheet { state, tombs, .. } = &mut sheet;
            let added = tombs.store(&self.conn, lock, state);
            buried += added.map_err(|e| trouble(&self.file, e))?;
            if self.write(lock, &sheet, meta.floor, now.lease)? {
                wrote = true;
                fresh += u32::from(matches!(sheet.was, Was::New));
            }
        }
        if wrote {
            let swept = self.sweep.step(&self.conn, now, fresh, &mut meta.swept);
            meta.floor = meta.floor.max(swept.map_err(|e| trouble(&self.file, e))?);
        }
        tombstones::sweep(&self.conn, now.lease, buried).map_err(|e| trouble(&self.file, e))?;
        if meta != stored {
            self.set_meta(&meta)?;
        }
        // From here on a failure leaves open what became of it.
        self.run("COMMIT").map_err(Error::unknown)?;
        self.ceiling = meta.ceiling;
        Ok(Tried::Done(applied))
    }

    /// The time, read while nobody else can write.
    fn now(&self) -> Now {
        Now { lease: Micros(self.clock.now().as_micros()), wall: Micros(self.clock.wall_micros()) }
    }

    /// Another boot: every lease is over, and every token that was ever told stays below the
    /// floor. Rows need not outlive that.
    fn of_this_boot(&self, mut meta: Meta) -> Result<Meta, Error> {
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
        let top = "SELECT coalesce(max(hi), 0) FROM lock";
        let top: i64 = self.conn.query_row(top, [], |r| r.get(0)).map_err(wrong)?;
        self.run("DELETE FROM lock")?;
        self.run("DELETE FROM spent")?;
        meta.floor = meta.floor.max(meta.ceiling).max(unsigned(top));
        meta.boot = self.boot.clone();
        Ok(meta)
    }

    fn read(&self, lock: &FullName, floor: u64) -> Result<Result<Sheet, Error>, Error> {
        let wrong = |e| trouble(&self.file, e);
        let sql = "SELECT state FROM lock WHERE space = ?1 AND name = ?2";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrong)?;
        let key = [lock.space.as_str(), lock.name.as_str()];
        // Decoded where it lies: a long line need not be copied first.
        let read = |row: &Row<'_>| {
            let text = row.get_ref(0)?.as_str()?;
            let was =
                if text.len() > LONG { Was::Long(text.len()) } else { Was::Text(text.into()) };
            Ok(decode(text, lock).map(|state| Sheet { state, was, tombs: Tombstones::default() }))
        };
        let found = statement.query_row(key, read).optional().map_err(wrong)?;
        let (was, tombs) = (Was::New, Tombstones::default());
        let new = || Ok(Sheet { state: LockState::above(floor), was, tombs });
        Ok(found.unwrap_or_else(new))
    }

    /// Writes what changed; says whether anything did.
    fn write(
        &self,
        lock: &FullName,
        sheet: &Sheet,
        floor: u64,
        now: Micros,
    ) -> Result<bool, Error> {
        let room = match &sheet.was {
            Was::New if sheet.state == LockState::above(floor) => return Ok(false),
            Was::New => 512,
            Was::Text(text) => text.len() + 512,
            Was::Long(len) => len + len / 8,
        };
        let mut text = Vec::with_capacity(room);
        serde_json::to_writer(&mut text, &sheet.state)
            .map_err(|e| Error::new(Kind::Store, "a state cannot be written").because(e))?;
        let text = String::from_utf8_lossy(&text);
        if matches!(&sheet.was, Was::Text(was) if *was == text) {
            return Ok(false);
        }
        let wrong = |e| trouble(&self.file, e);
        let sql = "INSERT INTO lock (space, name, hi, touched, state) VALUES (?1, ?2, ?3, ?4, ?5)
                   ON CONFLICT DO UPDATE SET hi = ?3, touched = ?4, state = ?5";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrong)?;
        let (space, name) = (lock.space.as_str(), lock.name.as_str());
        statement
            .execute(params![space, name, signed(sheet.state.hi), signed(now.0), &*text])
            .map_err(wrong)?;
        // The statement is kept for the next time; what it was given need not be.
        statement.clear_bindings();
        Ok(true)
    }

    fn list(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let meta = self.meta()?;
        if meta.boot.id != self.boot.id {
            return Ok(Vec::new());
        }
        self.of_this_boot(meta)?;
        let now = self.now().lease;
        let (space, prefix, after, limit) = match query {
            Query::Name(lock) => {
                let sheet = self.read(lock, 0)??;
                return Ok(sheet.state.view(lock, now).into_iter().collect());
            }
            Query::Prefix { space, prefix, after, limit } => (space, prefix, after, *limit),
        };
        let wrong = |e| trouble(&self.file, e);
        let sql = "SELECT name, state FROM lock WHERE space = ?1 AND name >= ?2 AND name > ?3
                   ORDER BY name";
        let mut statement = self.conn.prepare_cached(sql).map_err(wrong)?;
        let after = after.as_ref().map_or("", Name::as_str);
        let mut rows = statement.query([space.as_str(), prefix, after]).map_err(wrong)?;
        let mut found = Vec::new();
        while found.len() < limit {
            let Some(row) = rows.next().map_err(wrong)? else { break };
            let name: String = row.get(0).map_err(wrong)?;
            // Names come in the order of their bytes: those with the prefix stand together.
            if !name.starts_with(prefix.as_str()) {
                break;
            }
            let lock = FullName { space: space.clone(), name: Name::new(name)? };
            let text: String = row.get(1).map_err(wrong)?;
            found.extend(decode(&text, &lock)?.view(&lock, now));
        }
        Ok(found)
    }

    fn meta(&self) -> Result<Meta, Error> {
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
            self.run(if full {
                "PRAGMA synchronous = FULL"
            } else {
                "PRAGMA synchronous = NORMAL"
            })?;
            self.full = full;
        }
        Ok(())
    }

    fn run(&self, sql: &str) -> Result<(), Error> {
        let done = self.conn.prepare_cached(sql).and_then(|mut s| s.execute([]));
        done.map(drop).map_err(|e| trouble(&self.file, e))
    }

    fn rollback(&self) {
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

fn decode(text: &str, lock: &FullName) -> Result<LockState, Error> {
    serde_json::from_str(text).map_err(|e| {
        Error::new(Kind::Layout, "the row of this lock makes no sense")
            .with_hint(
                "with the sqlite3 shell: UPDATE meta SET floor = max(floor, (SELECT max(hi) FROM \
                 lock)); then DELETE the row from lock",
            )
            .lock(lock)
            .because(e)
    })
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
    use distlock_core::{Label, Mode, Namespace, Owner, ReqId};
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

    fn cycle(ledger: &mut Ledger) -> u64 {
        let (lock, op) = touch("x");
        let Op::Acquire { claim: Claim { req, .. }, .. } = op else { unreachable!() };
        let moves = [(lock.clone(), op), (lock, Op::Release { req })];
        ledger.begin().unwrap();
        let applied = ledger.finish(&moves, &Silent::new()).unwrap();
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
        let open = |sync| Ledger::open(&place, boot.clone(), clock.clone(), sync, true).unwrap();
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
        let mut ledger = Ledger::open(&place, boot, clock.clone(), Sync::Normal, true).unwrap();
        cycle(&mut ledger);
        let synced = ledger.meta().unwrap().ceiling;
        // Far from the ceiling when the write lock is asked for, near to it when it comes.
        clock.advance(Duration::from_secs(7));
        ledger.begin().unwrap();
        assert!(!ledger.full);
        clock.advance(Duration::from_secs(2));
        let (lock, op) = touch("y");
        ledger.finish(&[(lock, op)], &Silent::new()).unwrap();
        assert_eq!(ledger.meta().unwrap().ceiling, synced, "raised, and a power cut undoes it");
        cycle(&mut ledger);
        assert!(ledger.full && ledger.meta().unwrap().ceiling > synced, "the next one raises it");
    }
}
