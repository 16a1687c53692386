//! How a connection is opened, and the layout of the file.
//!
//! One row a lock, a waiter and a tombstone each, with JSON in them so that the `sqlite3` shell can read
//! it; one row about the whole.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use distlock_core::host::Boot;
use distlock_core::{BootInstant, Clock, Error, Kind};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::database_file::absent;
use crate::errors::{passing, trouble};
use crate::{lock_row, tombstones, waiters};

/// Marks the file as ours ("dstl").
const APPLICATION: i32 = 0x6473_746C;
/// The layout written here.
const LAYOUT: i32 = 3;
/// How long to wait for another process's transaction.
pub(crate) const BUSY: Duration = Duration::from_secs(9);
/// How long a process that only looks waits for one that makes the tables.
const MAKING: Duration = Duration::from_millis(500);
/// How long to sleep between two looks at a lock that another process has: SQLite's own handler
/// sleeps up to 100 ms, which is many commits.
const NAP: Duration = Duration::from_micros(100);
const LONGEST_NAP: Duration = Duration::from_millis(2);

const TABLES: &str = "
    CREATE TABLE meta (
        one     INTEGER PRIMARY KEY CHECK (one = 1),
        boot    TEXT NOT NULL,     -- leases count from this boot
        shift   TEXT NOT NULL,     -- and in this time namespace
        floor   INTEGER NOT NULL,  -- tokens of a new row start above it
        ceiling INTEGER NOT NULL,  -- no token told under synchronous=NORMAL is above it
        swept_space TEXT NOT NULL, -- the sweep goes on after this row
        swept_name  TEXT NOT NULL
    ) STRICT;";

thread_local! {
    /// How long the statement that this thread runs waits for other processes. Here and not in a
    /// closure: before rusqlite 0.38 a busy handler is a plain function.
    static PATIENCE: Cell<Duration> = const { Cell::new(BUSY) };
    /// When that statement first found the database locked.
    static SINCE: Cell<BootInstant> = const { Cell::new(BootInstant::FAR) };
}

/// Runs `work` with a busy timeout of `most` instead of [`BUSY`].
pub(crate) fn impatiently<T>(most: Duration, work: impl FnOnce() -> T) -> T {
    PATIENCE.set(most);
    let done = work();
    PATIENCE.set(BUSY);
    done
}

/// Opens a connection to a database of ours, made new if the file is empty and `create`.
pub(crate) fn connect(file: &Path, boot: &Boot, create: bool) -> Result<Connection, Error> {
    let wrong = |e| trouble(file, e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(file, flags).map_err(wrong)?;
    conn.busy_handler(Some(nap as fn(i32) -> bool)).map_err(wrong)?;
    // A process that comes and goes would otherwise pay for a checkpoint at each end.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(wrong)?;
    conn.set_prepared_statement_cache_capacity(32);
    // Lock rows are small and hot; SQLite's own two megabytes a connection would be mostly idle.
    conn.pragma_update(None, "cache_size", -64).map_err(wrong)?;
    retried(|| layout(&conn, file, boot, create)).map_err(wrong)??;
    Ok(conn)
}

/// The table of the locks, for a client that only looks. To be called in the transaction that reads it:
/// another process may migrate the file at any time.
pub(crate) fn table(conn: &Connection) -> rusqlite::Result<&'static str> {
    let version: i32 = conn.pragma_query_value(None, "user_version", |r| r.get(0))?;
    Ok(if version < LAYOUT { lock_row::OLD_TABLE } else { lock_row::LOCKS })
}

/// The busy handler: waits for another's lock in naps, and says whether to look again.
fn nap(n: i32) -> bool {
    let clock = Clock::system();
    if n == 0 {
        SINCE.set(clock.now());
    }
    let nap = (NAP * (u32::try_from(n).unwrap_or(0) + 1)).min(LONGEST_NAP);
    // SQLite calls from inside a statement: the thread must wait here. Parking may end early,
    // which only means one more look.
    std::thread::park_timeout(nap);
    clock.now().since(SINCE.get()) < PATIENCE.get()
}

/// What the layout says: SQLite's error outside, ours inside.
type Layout = rusqlite::Result<Result<(), Error>>;

/// Repeats what loses against another process that opens the same file: the switch to the
/// write-ahead log answers "busy" without asking the busy handler.
fn retried(mut work: impl FnMut() -> Layout) -> Layout {
    let clock = Clock::system();
    let start = clock.now();
    loop {
        let done = work();
        let most = match &done {
            Err(e) if passing(e) => BUSY,
            // There are no tables, and none are to be made. Somebody may be making them.
            Ok(Err(e)) if e.kind() == Kind::Unreachable => MAKING,
            _ => Duration::ZERO,
        };
        if clock.now().since(start) >= most {
            return done;
        }
        std::thread::park_timeout(LONGEST_NAP);
    }
}

/// What the file says about itself: the program, the layout, how many tables and indices.
fn header(conn: &Connection) -> rusqlite::Result<(i32, i32, i64)> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |r| r.get::<_, i32>(0));
    let tables = "SELECT count(*) FROM sqlite_schema";
    Ok((
        number("application_id")?,
        number("user_version")?,
        conn.query_row(tables, [], |r| r.get(0))?,
    ))
}

fn layout(conn: &Connection, file: &Path, boot: &Boot, create: bool) -> Layout {
    // One snapshot: somebody may be making the tables right now.
    conn.execute_batch("BEGIN")?;
    let read = header(conn);
    conn.execute_batch("ROLLBACK")?;
    let (application, version, tables) = read?;
    let ours = application == APPLICATION;
    if ours && version > LAYOUT {
        let newer = format!("the database has the newer layout {version}");
        return Ok(Err(Error::new(Kind::Layout, newer)
            .with_hint(format!("this build knows layout {LAYOUT}: upgrade distlock"))));
    }
    if !ours && tables > 0 {
        return Ok(Err(Error::new(Kind::Layout, "this is a database of another program")
            .with_hint("give the locks a file of their own")));
    }
    if !ours && !create {
        return Ok(Err(absent(file)));
    }
    let mode: String = conn.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    if mode != "wal" {
        conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    }
    // A client that only looks changes nothing, and can read every layout.
    if ours && (version == LAYOUT || !create) {
        return Ok(Ok(()));
    }
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let made = make(conn, boot);
    conn.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    made.map(Ok)
}

/// Makes or migrates the tables under the write lock; another process may have done it by then.
///
/// Migration renames the tables, so that a process of an older build that has the file open fails
/// instead of writing the old way. Rows are rewritten when their lock is next used.
fn make(conn: &Connection, boot: &Boot) -> rusqlite::Result<()> {
    let version: i32 = conn.pragma_query_value(None, "user_version", |r| r.get(0))?;
    if version == LAYOUT {
        return Ok(());
    }
    if version == 0 {
        conn.execute_batch(TABLES)?;
        conn.execute_batch(lock_row::TABLE)?;
        let meta = "INSERT INTO meta VALUES (1, ?1, ?2, 0, 0, '', '')";
        conn.execute(meta, [&boot.id, &boot.shift])?;
        conn.pragma_update(None, "application_id", APPLICATION)?;
    } else {
        conn.execute_batch(lock_row::MIGRATE)?;
    }
    if version == 2 {
        conn.execute_batch("ALTER TABLE spent RENAME TO tombstones")?;
    } else {
        conn.execute_batch(tombstones::TABLE)?;
    }
    conn.execute_batch(waiters::TABLE)?;
    conn.pragma_update(None, "user_version", LAYOUT)
}
