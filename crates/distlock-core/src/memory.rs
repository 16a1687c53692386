//! The specification as a store: [`LockState`] behind a mutex, in this process alone.
//!
//! The oracle of every differential test, and a lock between the tasks of one process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::lease::only;
use crate::state::Now;
use crate::{
    Backend, Capability, Class, Clock, Effects, Error, Event, EventSink, Family, Fence, Force,
    Forced, FullName, Key, LeaseDriver, LeaseStore, LockInfo, LockState, LossReason, Micros, Move,
    Mutex, Name, Op, Order, Query, Reentry, Replies, Reply, Rules, Store, StoreInfo, Survives,
    Token, Wake, WakeUp, simulation,
};

/// Moves between two sweeps, at least. A sweep looks at every lock, so after one that kept more
/// locks than this, as many moves go by as it kept: its cost a move does not grow with their number.
const SWEEP_EVERY: usize = 256;
/// A queue longer than this has an index.
const LONG: usize = 64;

static CAPABILITY: Capability = Capability {
    fence: Fence::Clocked,
    ttl_step: Duration::from_micros(1),
    restart: Survives::Ends,
    failover: Survives::NotApplicable,
    partition: Survives::NotApplicable,
    order: Order::Fifo,
    reentry: Reentry::Anywhere,
    shared: true,
    permits: true,
    detach: true,
    force: true,
    lock_delay: true,
    handover: true,
    linger: true,
    wake: WakeUp::Push,
    drift_percent: 0,
    drift_floor: Duration::ZERO,
    wall_witness: false,
    notes: &["Everything is gone when the process ends; tokens then start from the wall clock."],
    ..Capability::new(Family::Lease, "memory", "memory: | memory:NAME", "tasks of one process")
};

/// What [`Memory`] promises.
#[must_use]
pub fn capability() -> &'static Capability {
    &CAPABILITY
}

/// Locks between the tasks of one process. Clones are clients of the same locks.
pub struct Memory {
    shared: Arc<Shared>,
    /// This client's place among the listeners: where its requests are told things.
    via: String,
    listening: OnceLock<()>,
}

impl Clone for Memory {
    /// A client of its own: two that shared a place among the listeners would miss their wake-ups.
    fn clone(&self) -> Self {
        self.client()
    }
}

struct Shared {
    site: String,
    clock: Clock,
    rules: Rules,
    table: Mutex<Table>,
    sink: Mutex<BTreeMap<String, EventSink>>,
}

#[derive(Default)]
struct Table {
    locks: BTreeMap<FullName, LockState>,
    floor: u64,
    /// Moves since the last sweep.
    moves: usize,
    /// Locks that the last sweep kept.
    kept: usize,
}

impl Memory {
    /// A store of its own, on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Clock::system())
    }

    /// A store of its own, on a given clock.
    #[must_use]
    pub fn on(clock: Clock) -> Self {
        Self::with_rules("memory:".to_owned(), clock, Rules::default())
    }

    /// The store of this name in this process: every client that names it shares its locks.
    #[must_use]
    pub fn named(name: &str) -> Self {
        static NAMED: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());
        NAMED
            .lock()
            .entry(name.to_owned())
            .or_insert_with(|| {
                Self::with_rules(format!("memory:{name}"), Clock::system(), Rules::default())
            })
            .client()
    }

    /// A store of its own by other rules, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rules(site: String, clock: Clock, rules: Rules) -> Self {
        let shared = Shared { site, clock, rules, table: Mutex::default(), sink: Mutex::default() };
        Self { shared: Arc::new(shared), via: String::new(), listening: OnceLock::new() }.client()
    }

    /// Another client of the same locks, as another process would be one.
    #[must_use]
    pub fn client(&self) -> Self {
        let via = crate::ids::ReqId::random().to_string();
        Self { shared: self.shared.clone(), via, listening: OnceLock::new() }
    }

    /// The state of one lock, for tests that look behind the curtain.
    #[must_use]
    pub fn peek(&self, lock: &FullName) -> Option<LockState> {
        self.shared.table.lock().locks.get(lock).cloned()
    }

    /// Forgets a lock, as an operator who deletes its record would.
    pub fn wipe(&self, lock: &FullName) {
        self.shared.table.lock().locks.remove(lock);
    }

    fn now(&self) -> Now {
        let clock = &self.shared.clock;
        Now { lease: Micros(clock.now().as_micros()), wall: Micros(clock.wall_micros()) }
    }

    fn step(&self, lock: &FullName, op: &Op) -> Reply {
        let step = self.with(lock, |state, now| state.step(op, now, &self.shared.rules));
        self.deliver(lock, step.effects);
        step.reply
    }

    fn with<T>(&self, lock: &FullName, change: impl FnOnce(&mut LockState, Now) -> T) -> T {
        let mut table = self.shared.table.lock();
        let now = self.now();
        table.moves += 1;
        if table.moves >= table.kept.max(SWEEP_EVERY) {
            table.sweep(now.lease);
        }
        let floor = table.floor;
        let state = match table.locks.get_mut(lock) {
            Some(state) => state,
            None => table.locks.entry(lock.clone()).or_insert_with(|| LockState::above(floor)),
        };
        if state.queue.len() > LONG {
            state.queue.index();
        }
        change(state, now)
    }

    fn deliver(&self, lock: &FullName, effects: Effects) {
        if effects.is_empty() {
            return;
        }
        let key = |req| Key { lock: lock.clone(), req };
        for (req, via) in effects.turns {
            self.tell(&via, Wake::Turn(req));
        }
        for (req, via) in effects.contended {
            self.tell(&via, Wake::Event(Event::Contended(key(req))));
        }
        for (req, via) in effects.revoked {
            self.tell(&via, Wake::Event(Event::Lost(key(req), LossReason::Revoked)));
        }
    }

    fn tell(&self, via: &str, wake: Wake) {
        let sink = self.shared.sink.lock().get(via).cloned();
        if let Some(sink) = sink {
            sink(wake);
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// Forgets locks nobody needs any more.
    fn sweep(&mut self, now: Micros) {
        let floor = &mut self.floor;
        self.locks.retain(|_, state| {
            let idle = state.is_idle(now);
            if idle {
                *floor = (*floor).max(state.hi);
            }
            !idle
        });
        (self.moves, self.kept) = (0, self.locks.len());
    }
}

impl Store for Memory {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Memory {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &CAPABILITY, site: &self.shared.site, clock: &self.shared.clock }
    }

    /// Nothing is waited for.
    fn ends_in_time(&self) -> bool {
        true
    }

    async fn play_one(&self, class: Class, one: Move) -> Result<Reply, Error> {
        if let Move::Heartbeat(..) = one {
            return only(self.play(class, vec![one]).await);
        }
        let (lock, op) = one.into_op(&self.via);
        Ok(self.step(&lock, &op))
    }

    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::with_capacity(moves.len());
        let mut moves = moves.into_iter().peekable();
        while let Some(one) = moves.next() {
            let Move::Heartbeat(Key { lock, req }, wait) = one else {
                let (lock, op) = one.into_op(&self.via);
                replies.push(Ok(self.step(&lock, &op)));
                continue;
            };
            // Waiters of one lock in a row: one pass over its queue.
            let mut beats = vec![(req, wait)];
            let same = |next: &Move| matches!(next, Move::Heartbeat(key, _) if key.lock == lock);
            while let Some(Move::Heartbeat(key, wait)) = moves.next_if(same) {
                beats.push((key.req, wait));
            }
            let beat = |state: &mut LockState, now| state.beat(&beats, now, &self.shared.rules);
            let (pulses, effects) = self.with(&lock, beat);
            self.deliver(&lock, effects);
            replies.extend(pulses.into_iter().map(|pulse| Ok(Reply::Pulse(pulse))));
        }
        replies
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let now = self.now().lease;
        let table = self.shared.table.lock();
        Ok(match query {
            Query::Name(lock) => {
                table.locks.get(lock).and_then(|s| s.view(lock, now)).into_iter().collect()
            }
            Query::Prefix { space, prefix, after, limit } => {
                let from = |name: &Name| FullName { space: space.clone(), name: name.clone() };
                let start = match (after, Name::new(prefix)) {
                    (Some(after), _) => Bound::Excluded(from(after)),
                    (None, Ok(first)) => Bound::Included(from(&first)),
                    (None, Err(_)) => Bound::Unbounded,
                };
                table
                    .locks
                    .range((start, Bound::Unbounded))
                    .filter(|(lock, _)| lock.space == *space)
                    .filter(|(lock, _)| lock.name.as_str().starts_with(prefix))
                    .filter_map(|(lock, state)| state.view(lock, now))
                    .take(*limit)
                    .collect()
            }
        })
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.step(lock, &Op::Force { token, how }).forced()
    }

    fn listen(&self, sink: EventSink) {
        if self.listening.set(()).is_ok() {
            self.shared.sink.lock().insert(self.via.clone(), simulation::sink(sink));
        }
    }

    async fn close(&self) {
        self.shared.sink.lock().remove(&self.via);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.listening.get().is_some() {
            self.shared.sink.lock().remove(&self.via);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ReqId;
    use crate::{Name, Namespace};

    #[test]
    fn a_sweep_of_many_locks_is_paid_for_by_as_many_moves() {
        let (clock, many) = (Clock::held(), 10 * SWEEP_EVERY);
        let memory = Memory::on(clock.clone());
        let lock = |i: usize| {
            let name = Name::new(format!("{i}")).unwrap();
            FullName { space: Namespace::default(), name }
        };
        // A cancelled request is remembered, and its lock with it.
        for i in 0..many {
            memory.step(&lock(i), &Op::Cancel { req: ReqId::random() });
        }
        let mut looked_at = 0;
        for i in 0..10 * many {
            memory.step(&lock(i % many), &Op::Settle);
            let table = memory.shared.table.lock();
            looked_at += if table.moves == 0 { table.kept } else { 0 };
        }
        assert!((8 * many..=10 * many).contains(&looked_at), "{looked_at} in {} moves", 10 * many);
        clock.advance(memory.shared.rules.tombstone);
        for _ in 0..many {
            memory.step(&lock(0), &Op::Settle);
        }
        assert_eq!(
            memory.shared.table.lock().locks.len(),
            1,
            "locks that nobody needs are forgotten"
        );
    }
}
