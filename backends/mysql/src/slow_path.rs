//! The slow path, for contended locks: one short transaction that locks the lock's row first.
//!
//! 1. Lock the row, then read the clock, then as much of the queue as the moves need: one round
//!    trip. Everything that writes to a lock's queue holds this lock, so nothing else can deadlock,
//!    and what was read stays true.
//! 2. Run [`LockState::step`] as it is.
//! 3. Wake the processes of promoted waiters, write what changed, and commit: one round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use distlock_core::state::{Now, Phase};
use distlock_core::{Effects, Error, FullName, Kind, LockState, Micros, Op, Reply, ReqId};
use distlock_sql::Trouble;
use sqlx::MySqlConnection;

use crate::errors::{DEADLOCK, LOCK_WAIT, calling, demoted, number};
use crate::queue::{self, Line};
use crate::record::{COLUMNS, Record, rules};
use crate::schema::Tables;
use crate::sql::{
    Given, NOW, READ_ONLY, at, execute, hex, micros, number as number_of, run, run_far,
};
use crate::sweep::Pace;
use crate::wakeup::{News, ring};

/// Begins a transaction. A client that falls silent in the midst of one must not keep the row: the
/// server ends a connection that says nothing for this many seconds.
pub(crate) const BEGIN: &str = "SET SESSION wait_timeout=5; START TRANSACTION";
/// After a transaction a connection may rest for as long as the server allows.
pub(crate) const END: &str = "SET SESSION wait_timeout=DEFAULT";

/// Reads the clock, and whether the server may be believed.
pub(crate) fn read_moment() -> String {
    format!("SELECT {NOW} AS now, {READ_ONLY} AS read_only")
}

/// What time it is at a server that takes writes.
pub(crate) fn moment(given: &Given) -> Result<Micros, Fault> {
    let row = given.rows.first().ok_or_else(odd)?;
    // Also where nothing would be written: what a demoted server says about a lock may be over.
    if number_of(row, "read_only")? != 0 {
        return Err(Fault::Ours(demoted()));
    }
    Ok(micros(row, "now")?)
}

/// How often the database had to undo or refuse a move of ours because of others.
#[derive(Debug, Default)]
pub struct Collisions {
    deadlocks: AtomicU64,
    lock_waits: AtomicU64,
}

impl Collisions {
    /// Transactions that were undone to break a deadlock (1213).
    #[must_use]
    pub fn deadlocks(&self) -> u64 {
        self.deadlocks.load(Ordering::Relaxed)
    }

    /// Statements that waited too long for a row (1205).
    #[must_use]
    pub fn lock_waits(&self) -> u64 {
        self.lock_waits.load(Ordering::Relaxed)
    }
}

/// What the moves came to.
pub(crate) struct Played {
    pub(crate) replies: Vec<Reply>,
    /// For waiters and holders of this very process.
    pub(crate) ours: Effects,
    /// Promoted, but nobody hears them.
    pub(crate) unheard: Vec<ReqId>,
}

impl Played {
    /// An answer, and nobody to be told.
    pub(crate) fn quietly(reply: Reply) -> Self {
        Self { replies: vec![reply], ours: Effects::default(), unheard: Vec::new() }
    }
}

pub(crate) struct SlowPath {
    pub(crate) tables: Tables,
    /// This process, as others reach it.
    pub(crate) session: String,
    pub(crate) collisions: Arc<Collisions>,
    /// How long a queue is read as it is.
    pub(crate) short: usize,
    /// Told of every row that is made.
    pub(crate) sweep: Arc<Pace>,
}

impl SlowPath {
    /// Makes some moves on one lock, in order. Askers are reachable through `via` from now on.
    pub(crate) async fn play(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
        ops: &[Op],
        via: &str,
    ) -> Result<Played, Trouble> {
        loop {
            match self.attempt(conn, lock, ops, via).await {
                Ok(played) => return Ok(played),
                Err(fault) => self.undo(conn, fault).await?,
            }
        }
    }

    /// Undoes a transaction that did not come about. What failed as a whole to break a deadlock is
    /// made again. What was refused for a row that somebody else keeps is not: other locks' moves
    /// wait for this connection, and the caller is told that nothing happened.
    pub(crate) async fn undo(
        &self,
        conn: &mut MySqlConnection,
        fault: Fault,
    ) -> Result<(), Trouble> {
        match fault {
            Fault::Ours(trouble) => {
                if !trouble.broken {
                    // A statement that failed leaves its transaction open.
                    run(conn, format!("ROLLBACK; {END}")).await.map_err(calling)?;
                }
                Err(trouble)
            }
            Fault::Deadlock => {
                self.collisions.deadlocks.fetch_add(1, Ordering::Relaxed);
                execute(conn, "ROLLBACK".to_owned()).await?;
                Ok(())
            }
            Fault::LockWait(trouble) => {
                self.collisions.lock_waits.fetch_add(1, Ordering::Relaxed);
                run(conn, format!("ROLLBACK; {END}")).await.map_err(calling)?;
                Err(trouble)
            }
        }
    }

    async fn attempt(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
        ops: &[Op],
        via: &str,
    ) -> Result<Played, Fault> {
        let (tables, at) = (&self.tables, at(lock));
        let begin = format!(
            "{BEGIN}; SELECT {COLUMNS} FROM {} WHERE {at} FOR UPDATE; {}; {}",
            tables.lock,
            read_moment(),
            queue::short(tables, &at, self.short)
        );
        let given = run(conn, begin).await?;
        let [_, _, row, clock, waiters] = given.as_slice() else { return Err(odd()) };
        let now = moment(clock)?;
        let record = row.rows.first().map(Record::read).transpose()?;
        let (there, record) = (record.is_some(), record.unwrap_or_else(Record::none));
        let mut line = if waiters.rows.len() <= self.short {
            Line::of(&waiters.rows, &[], record.waiters, true)?
        } else {
            let given = run(conn, queue::select(tables, &at, ops, false).join("; ")).await?;
            let [waiters, places] = given.as_slice() else { return Err(odd()) };
            Line::of(&waiters.rows, &places.rows, record.waiters, false)?
        };
        let mut moved = Moved::by(&record, &line, ops, via, now);
        if line.is_used_up(&moved.state) {
            // Rare: many readers at once. The lock is ours, so the queue is what it was.
            let [waiters, _] = queue::select(tables, &at, ops, true);
            let given = run(conn, waiters).await?;
            let rows = given.first().map(|g: &Given| g.rows.as_slice()).unwrap_or_default();
            line = Line::of(rows, &[], record.waiters, true)?;
            moved = Moved::by(&record, &line, ops, via, now);
        }
        let Moved { state, replies, effects } = moved;
        let waiters = line.count(&state);
        let changes = line.changes(tables, lock, &state)?;
        let (ours, news) = News::sort(effects, &self.session);
        // Somebody may have to be told though nothing changes: a second revoke in one moment.
        if changes.is_empty() && news.is_empty() && !record.differs(&state, waiters, now) {
            run(conn, format!("ROLLBACK; {END}")).await?;
            return Ok(Played { replies, ours, unheard: Vec::new() });
        }
        if !there {
            self.create(conn, lock).await?;
            return Box::pin(self.attempt(conn, lock, ops, via)).await;
        }
        let mut sql = format!(
            "UPDATE {} SET {} WHERE {at}",
            tables.lock,
            record.assignments(&state, waiters, (tables, &at))?
        );
        for change in changes {
            sql += ";";
            sql += &change;
        }
        let unheard = self.commit(conn, &sql, &news, &news.insert(tables, lock, now)).await?;
        Ok(Played { replies, ours, unheard })
    }

    /// A row for a lock that has none. By itself: within a transaction two that do it could wait for
    /// each other. It starts above every token of rows that were removed; the shared lock on the
    /// floor keeps it from being raised between the look and the insert. Its version starts at the
    /// clock, so that it is not that of a removed row.
    pub(crate) async fn create(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
    ) -> Result<(), Fault> {
        let Tables { lock: table, meta, .. } = &self.tables;
        let sql = format!(
            "ROLLBACK; INSERT IGNORE INTO {table} (space, name, ver, hi) \
             SELECT {}, {}, {NOW}, floor FROM {meta} WHERE one=1 LOCK IN SHARE MODE",
            hex(lock.space.as_str()),
            hex(lock.name.as_str())
        );
        let given = run(conn, sql).await?;
        if given.last().is_some_and(|g| g.done.rows_affected() > 0) {
            self.sweep.made_a_row();
        }
        Ok(())
    }

    /// Writes, wakes and commits; answers the waiters that could not be woken.
    ///
    /// The wake-up comes as soon as there are news to be read: a woken waiter asks with a look at
    /// this very row, which the server answers once the commit is through, and is on its way while
    /// all else is written. Should that fail, it asked for nothing.
    async fn commit(
        &self,
        conn: &mut MySqlConnection,
        sql: &str,
        news: &News,
        insert: &str,
    ) -> Result<Vec<ReqId>, Fault> {
        let (rings, end) = (news.rings(), format!("COMMIT; {END}"));
        let [one] = rings.as_slice() else {
            let insert = if rings.is_empty() { String::new() } else { format!("{insert}; ") };
            run(conn, format!("{insert}{sql}; {end}")).await?;
            return Ok(news.turns_of(&Self::ring_all(conn, rings).await));
        };
        // The usual hand-over wakes one process: all in one round trip.
        let all = format!("{insert}; {}; {sql}; {end}", ring(*one));
        match run_far(conn, all).await {
            (_, None) => Ok(Vec::new()),
            // Nothing but the ring has failed, and what follows it was not done.
            (given, Some(e)) if given.len() == 1 && number(&e).is_some() => {
                run(conn, format!("{sql}; {end}")).await?;
                Ok(news.turns_of(&[*one]))
            }
            (_, Some(e)) => Err(e.into()),
        }
    }

    /// Rings several; those that could not be.
    async fn ring_all<'b>(
        conn: &mut MySqlConnection,
        rings: Vec<(&'b str, bool)>,
    ) -> Vec<(&'b str, bool)> {
        let mut silent = Vec::new();
        for wakeup in rings {
            if run(conn, ring(wakeup)).await.is_err() {
                silent.push(wakeup);
            }
        }
        silent
    }
}

/// What moves on a state came to.
struct Moved {
    state: LockState,
    replies: Vec<Reply>,
    effects: Effects,
}

impl Moved {
    fn by(record: &Record, line: &Line, ops: &[Op], via: &str, now: Micros) -> Self {
        let mut state = record.state.clone();
        state.queue = line.read.values().cloned().collect();
        let (mut replies, mut effects) = (Vec::new(), Effects::default());
        for op in ops {
            hear_from(&mut state, op, via);
            let step = state.step(op, Now { lease: now, wall: now }, &rules());
            replies.push(line.whole(step.reply, op, &state));
            // A request that asks whether it is its turn is told by the answer.
            let asker = match op {
                Op::Acquire { claim, .. } => Some(claim.req),
                Op::Heartbeat { req, .. } => Some(*req),
                _ => None,
            };
            let others = |(req, _): &(ReqId, String)| Some(*req) != asker;
            effects.turns.extend(step.effects.turns.into_iter().filter(others));
            effects.contended.extend(step.effects.contended);
            effects.revoked.extend(step.effects.revoked);
        }
        Self { state, replies, effects }
    }
}

/// A waiter that speaks up is reachable where it speaks from.
pub(crate) fn hear_from(state: &mut LockState, op: &Op, via: &str) {
    let (Op::Acquire { claim: distlock_core::state::Claim { req, .. }, wait: Some(_) }
    | Op::Heartbeat { req, .. }) = op
    else {
        return;
    };
    let queued = state.queue.iter_mut().map(|w| &mut w.claim);
    let claimed = |p: &Phase| matches!(p, Phase::Claimed { .. });
    let promoted = state.holds.iter_mut().filter(|h| claimed(&h.phase)).map(|h| &mut h.claim);
    if let Some(claim) = queued.chain(promoted).find(|c| c.req == *req)
        && claim.via != via
    {
        claim.via = via.to_owned();
    }
}

/// Why a transaction did not come about.
pub(crate) enum Fault {
    /// It may be made again as it is.
    Deadlock,
    /// Somebody else kept a row for too long.
    LockWait(Trouble),
    Ours(Trouble),
}

pub(crate) fn odd() -> Fault {
    let e = Error::new(Kind::Store, "the server answered another number of statements");
    Fault::Ours(Trouble::answered(
        e.unknown().with_hint("is there a proxy that does not pass several statements at once?"),
    ))
}

impl From<sqlx::Error> for Fault {
    fn from(e: sqlx::Error) -> Self {
        match number(&e) {
            Some(DEADLOCK) => Self::Deadlock,
            Some(LOCK_WAIT) => Self::LockWait(calling(e)),
            _ => Self::Ours(calling(e)),
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::Ours(Trouble::answered(e))
    }
}
