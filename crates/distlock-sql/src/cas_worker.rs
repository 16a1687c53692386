//! Read, step, compare-and-set, again: the version algorithm for everybody in this process.
//!
//! 1. Take every move that is waiting, of all callers, and sort them by lock.
//! 2. Read the rows, and the database's time with them.
//! 3. Step each state through its moves.
//! 4. Write each state that changed, if its row is still what it was.
//! 5. Tell the winners. Whose row had changed goes back to 1 after a random pause.
//! 6. Where one of ours stands in the queue, look at the row now and then, and ring it when its
//!    turn has come: one read for all of this process, often for the first in the queue, less often
//!    further back and while nothing changes.
//!
//! Callers of one process never race each other, and many moves on one lock cost one write. Time is
//! read before the write, so it is early rather than late: a lease ends earlier in the row than on
//! the database's clock at the moment of the write, never later than its holder thinks.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::state::{Claim, Hold, Now, Phase};
use distlock_core::{
    BootInstant, Clock, Effects, Error, EventSink, FullName, Kind, LockState, Micros, Op, Replies,
    Reply, Rules, Wake,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use crate::effects::wakes;
use crate::rows::{Row, Rows, Write};

/// At most this many moves at once, so that the first is not kept waiting by the last.
const BATCH: usize = 256;
/// The pause after a lost race: random, up to this, doubled each time.
const PAUSE: Duration = Duration::from_millis(2);
/// But never above this.
const LONGEST: Duration = Duration::from_millis(64);
/// After this long a move that keeps losing is given up.
pub(crate) const BOUND: Duration = Duration::from_secs(8);
/// How soon the row is looked at again where one of ours waits, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// One small sweep after this many writes of new rows.
const SWEEP: u32 = 64;

/// One operation on one lock.
pub(crate) type Move = (FullName, Op);

/// What a caller wants.
pub(crate) struct Call {
    pub(crate) moves: Vec<Move>,
    pub(crate) answer: oneshot::Sender<Replies>,
}

/// A call that is not answered yet.
struct Open {
    replies: Vec<Option<Result<Reply, Error>>>,
    missing: usize,
    answer: oneshot::Sender<Replies>,
}

/// A move that is not made yet.
struct Pending {
    call: u64,
    place: usize,
    lock: FullName,
    op: Op,
    until: BootInstant,
    not_before: BootInstant,
    lost: u32,
}

pub(crate) struct CasWorker<R> {
    rows: Arc<R>,
    clock: Clock,
    calls: UnboundedReceiver<Call>,
    /// What our waiters write into their claims, to know their own.
    session: String,
    sink: Arc<OnceLock<EventSink>>,
    open: HashMap<u64, Open>,
    next: u64,
    pending: Vec<Pending>,
    watches: HashMap<FullName, Watch>,
    fresh: u32,
}

/// A lock that one of ours waits for.
struct Watch {
    next: BootInstant,
    pace: Duration,
    /// The row as it was last looked at, and until when time alone changes nothing about it.
    seen: Option<(u64, Micros)>,
}

impl<R: Rows> CasWorker<R> {
    pub(crate) fn new(
        rows: Arc<R>,
        clock: Clock,
        calls: UnboundedReceiver<Call>,
        session: String,
        sink: Arc<OnceLock<EventSink>>,
    ) -> Self {
        let (open, pending, watches) = <(HashMap<_, _>, Vec<_>, HashMap<_, _>)>::default();
        Self { rows, clock, calls, session, sink, open, next: 0, pending, watches, fresh: 0 }
    }

    /// Serves until no caller is left.
    pub(crate) async fn work(mut self) {
        while self.gather().await {
            let now = self.clock.now();
            let ready = |p: &Pending| p.not_before <= now;
            let (due, later) = std::mem::take(&mut self.pending).into_iter().partition(ready);
            self.pending = later;
            self.round(due).await;
            if self.fresh >= SWEEP {
                self.fresh = 0;
                if let Err(e) = self.rows.sweep().await {
                    tracing::debug!(error = %e, "no sweep this time");
                }
            }
        }
    }

    /// Waits until there is something to do and takes in what has come. False when it is over.
    async fn gather(&mut self) -> bool {
        let clock = self.clock.clone();
        let looks = self.watches.values().map(|w| w.next);
        let soonest = self.pending.iter().map(|p| p.not_before).chain(looks).min();
        let first = match soonest {
            None => match self.calls.recv().await {
                Some(call) => Some(call),
                None => return false,
            },
            Some(at) => tokio::select! {
                biased;
                call = self.calls.recv() => match call {
                    Some(call) => Some(call),
                    None if self.pending.is_empty() => return false,
                    // What is pending is still brought to its end.
                    None => { clock.sleep_until(at).await; None }
                },
                () = clock.sleep_until(at) => None,
            },
        };
        let mut calls: Vec<_> = first.into_iter().collect();
        let mut moves = self.pending.len();
        while moves < BATCH {
            let Ok(call) = self.calls.try_recv() else { break };
            moves += call.moves.len();
            calls.push(call);
        }
        let now = clock.now();
        for call in calls {
            self.take_in(call, now);
        }
        true
    }

    fn take_in(&mut self, call: Call, now: BootInstant) {
        // Nobody waits for it, and nothing of it was sent.
        if call.answer.is_closed() {
            return;
        }
        let id = self.next;
        self.next += 1;
        let missing = call.moves.len();
        if missing == 0 {
            let _ = call.answer.send(Vec::new());
            return;
        }
        for (place, (lock, op)) in call.moves.into_iter().enumerate() {
            let until = now.plus(BOUND);
            self.pending.push(Pending {
                call: id,
                place,
                lock,
                op,
                until,
                not_before: now,
                lost: 0,
            });
        }
        let replies = (0..missing).map(|_| None).collect();
        self.open.insert(id, Open { replies, missing, answer: call.answer });
    }

    /// One read, one step, one write for everything that is due.
    async fn round(&mut self, due: Vec<Pending>) {
        // By lock, each in the order of arrival.
        let mut locks: Vec<FullName> = Vec::new();
        let mut by_lock: HashMap<FullName, Vec<Pending>> = HashMap::new();
        for p in due {
            let moves = by_lock.entry(p.lock.clone()).or_default();
            if moves.is_empty() {
                locks.push(p.lock.clone());
            }
            moves.push(p);
        }
        let now = self.clock.now();
        let due = |(lock, w): &(&FullName, &Watch)| w.next <= now && !by_lock.contains_key(lock);
        locks.extend(self.watches.iter().filter(due).map(|(lock, _)| lock.clone()).take(BATCH));
        if locks.is_empty() {
            return;
        }
        let (rows, now) = match self.rows.read(locks.clone()).await {
            Ok(read) => read,
            Err(e) => {
                // Nothing was written, so nothing happened.
                let e = e.not_applied();
                for lock in &locks {
                    self.look_later(lock);
                }
                return by_lock
                    .into_values()
                    .flatten()
                    .for_each(|p| self.answer(&p, Err(e.clone())));
            }
        };
        let mut writes = Vec::new();
        let mut played = Vec::new();
        for (lock, row) in locks.into_iter().zip(rows) {
            let Some(moves) = by_lock.remove(&lock) else {
                self.look(&lock, row, now);
                continue;
            };
            match play(&lock, row, &moves, now) {
                Err(e) => moves.iter().for_each(|p| self.answer(p, Err(e.clone()))),
                Ok((done, Some(write))) => {
                    writes.push(write);
                    played.push((moves, done));
                }
                Ok((Played { replies, state, .. }, None)) => {
                    self.watch(&lock, &state, None);
                    moves.iter().zip(replies).for_each(|(p, r)| self.answer(p, Ok(r)));
                }
            }
        }
        if !writes.is_empty() {
            self.write(writes, played).await;
        }
    }

    async fn write(&mut self, writes: Vec<Write>, played: Vec<(Vec<Pending>, Played)>) {
        let rows: Vec<_> = writes.iter().map(|w| (w.lock.clone(), w.was.is_none())).collect();
        let won = match self.rows.write(writes).await {
            Ok(won) => won,
            Err(e) => {
                // Each is written for itself: some may be, whatever became of the last.
                let e = if played.len() > 1 { e.unknown() } else { e };
                let moves = played.iter().flat_map(|(moves, _)| moves);
                return moves.for_each(|p| self.answer(p, Err(e.clone())));
            }
        };
        let now = self.clock.now();
        for (((moves, done), won), (lock, fresh)) in played.into_iter().zip(won).zip(rows) {
            if !won {
                moves.into_iter().for_each(|p| self.again(p, now));
                continue;
            }
            self.fresh += u32::from(fresh);
            moves.iter().zip(done.replies).for_each(|(p, r)| self.answer(p, Ok(r)));
            self.watch(&lock, &done.state, None);
            done.effects.into_iter().for_each(|e| self.tell(&lock, e));
        }
    }

    /// Sees to it that a lock is looked at again while one of ours waits for it.
    fn watch(&mut self, lock: &FullName, state: &LockState, seen: Option<(u64, Micros)>) {
        let ours = |c: &Claim| c.via == self.session;
        let called = state.holds.iter().any(|h| is_claimed(h) && ours(&h.claim));
        let place = state.queue.iter().position(|w| ours(&w.claim)).filter(|_| !called);
        if !called && place.is_none() {
            self.watches.remove(lock);
            return;
        }
        let ahead = u32::try_from(place.unwrap_or(0)).unwrap_or(u32::MAX);
        let pace = LOOK.0.saturating_mul(ahead.saturating_add(1)).min(LOOK.1);
        let next = self.clock.now().plus(pace);
        self.watches.insert(lock.clone(), Watch { next, pace, seen });
    }

    fn look_later(&mut self, lock: &FullName) {
        let now = self.clock.now();
        if let Some(watch) = self.watches.get_mut(lock) {
            watch.pace = (watch.pace * 2).min(LOOK.1);
            watch.next = now.plus(watch.pace);
        }
    }

    /// Rings those of ours whose turn has come, or would if they asked.
    fn look(&mut self, lock: &FullName, row: Option<Row>, now: Micros) {
        let seen = self.watches.get(lock).and_then(|w| w.seen);
        let Some(row) = row else {
            self.watches.remove(lock);
            return;
        };
        if seen.is_some_and(|(version, until)| version == row.version && now < until) {
            return self.look_later(lock);
        }
        let Ok(mut state) = decode(&row.text, lock) else {
            self.watches.remove(lock); // who asks is told
            return;
        };
        state.step(&Op::Settle, Now { lease: now, wall: now }, &Rules::default());
        let called = state.holds.iter().filter(|h| is_claimed(h)).map(|h| &h.claim);
        // A waiter that was passed over is not any more once it is heard of.
        let unreachable = state.queue.iter().filter(|w| w.unreachable).map(|w| &w.claim);
        if let Some(sink) = self.sink.get() {
            let ours = called.chain(unreachable).filter(|c| c.via == self.session);
            ours.for_each(|c| sink(Wake::Turn(c.req)));
        }
        let delay = Some(state.delay_until).filter(|until| *until > now);
        let until = state.holds.iter().map(|h| h.expires).chain(delay).min();
        self.watch(lock, &state, Some((row.version, until.unwrap_or(Micros(u64::MAX)))));
    }

    /// Somebody else changed the row: once more, after a pause that differs from theirs.
    fn again(&mut self, mut p: Pending, now: BootInstant) {
        if now >= p.until {
            let e = Error::new(Kind::Store, "too many others changed this lock at the same time")
                .transient()
                .with_hint("try again, or use the store's default algorithm, which keeps a line");
            return self.answer(&p, Err(e));
        }
        let most = PAUSE.saturating_mul(1 << p.lost.min(8)).min(LONGEST);
        let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
        p.not_before = now.plus(most.mul_f64(f64::from(dice) / f64::from(u32::MAX)));
        p.lost += 1;
        self.pending.push(p);
    }

    fn answer(&mut self, p: &Pending, reply: Result<Reply, Error>) {
        let Some(open) = self.open.get_mut(&p.call) else { return };
        open.replies[p.place] = Some(reply);
        open.missing -= 1;
        if open.missing > 0 {
            return;
        }
        if let Some(open) = self.open.remove(&p.call) {
            // Nobody may listen any more; what was done is done.
            let _ = open.answer.send(open.replies.into_iter().flatten().collect());
        }
    }

    /// Tells those of this process; others find out by looking.
    fn tell(&self, lock: &FullName, effects: Effects) {
        let Some(sink) = self.sink.get() else { return };
        let ours = wakes(lock, effects).filter(|(via, _)| *via == self.session);
        ours.for_each(|(_, wake)| sink(wake));
    }
}

fn is_claimed(hold: &Hold) -> bool {
    matches!(hold.phase, Phase::Claimed { .. })
}

/// What a lock's moves come to.
struct Played {
    replies: Vec<Reply>,
    effects: Vec<Effects>,
    state: LockState,
}

/// Also what is to be written; nothing when nothing changed.
fn play(
    lock: &FullName,
    row: Option<Row>,
    moves: &[Pending],
    now: Micros,
) -> Result<(Played, Option<Write>), Error> {
    let mut state = match &row {
        Some(row) => decode(&row.text, lock)?,
        None => LockState::default(),
    };
    let before = state.clone();
    let (mut replies, mut effects) = (Vec::new(), Vec::new());
    for p in moves {
        let step = state.step(&p.op, Now { lease: now, wall: now }, &Rules::default());
        replies.push(step.reply);
        effects.push(step.effects);
    }
    if state == before {
        return Ok((Played { replies, effects, state }, None));
    }
    let text = serde_json::to_string(&state).map_err(|e| {
        Error::new(Kind::Store, "the state of this lock could not be encoded").because(e)
    })?;
    let (was, idle_from) = (row.map(|r| r.version), idle_from(&state));
    let write = Write { lock: lock.clone(), was, text, idle_from };
    Ok((Played { replies, effects, state }, Some(write)))
}

/// A row's text as a state.
pub(crate) fn decode(text: &str, lock: &FullName) -> Result<LockState, Error> {
    serde_json::from_str(text).map_err(|e| {
        Error::new(Kind::Layout, "the row of this lock could not be decoded")
            .with_hint(
                "a newer version may have written it; or delete the row once nobody holds it",
            )
            .lock(lock)
            .because(e)
    })
}

/// When nothing but the highest token will need remembering.
fn idle_from(state: &LockState) -> Micros {
    let hold = |h: &Hold| match h.phase {
        Phase::Claimed { deadline, .. } => h.expires.max(deadline),
        _ => h.expires.plus(h.claim.lock_delay),
    };
    let holds = state.holds.iter().map(hold);
    let queue = state.queue.iter().map(|w| w.deadline);
    let tombstones = state.tombstones.iter().map(|s| s.until);
    let all = holds.chain(queue).chain(tombstones).chain([state.delay_until, Micros(state.hi)]);
    all.max().unwrap_or_default()
}
