//! A lease of this client, and how long it is certain to last.
//!
//! One lease for all entries of a TTL: one keep-alive keeps them all. A put does not prolong it; only
//! an acknowledged keep-alive does, and it counts from before that was sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::{ClockReading, Error, FullName, Lease, Mutex, SingleFlight};

use crate::entry_keys::{EntryKey, ReusableKeys};
use crate::keys;

/// With this many tombstones a lease is retired: no new entry is put on it, and it is revoked once its
/// last entry has left, which removes the tombstones.
const TOMBSTONES: usize = 256;

/// One lease.
pub(crate) struct Session {
    /// Chosen by us, so that asking for it twice makes one.
    pub(crate) id: i64,
    state: Mutex<State>,
    /// One grant or keep-alive at a time, for all calls that need one.
    pub(crate) flight: SingleFlight<Result<Option<Lease>, Error>>,
    /// How many entries are on it, or on their way.
    entries: AtomicUsize,
    tombstones: AtomicUsize,
    /// Nothing new is put on it.
    retired: AtomicBool,
    /// A call without an answer may have left an entry that is not on record here.
    doubt: AtomicBool,
    pub(crate) keys: ReusableKeys,
}

#[derive(Clone, Copy)]
struct State {
    ttl: Duration,
    kept: Option<ClockReading>,
    over: bool,
}

impl Session {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            id: random(),
            state: Mutex::new(State { ttl, kept: None, over: false }),
            flight: SingleFlight::default(),
            entries: AtomicUsize::new(0),
            tombstones: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            doubt: AtomicBool::new(false),
            keys: ReusableKeys::default(),
        }
    }

    /// A key for an entry that no request of this client uses.
    pub(crate) fn take_key(&self, lock: &FullName) -> EntryKey {
        let number = self.keys.take(lock);
        EntryKey { key: keys::entry(lock, self.id, number).into(), number }
    }

    /// How long it is to be, or was granted for.
    pub(crate) fn ttl(&self) -> Duration {
        self.state.lock().ttl
    }

    /// From when on it counts, and for how long; `None` before it was granted.
    pub(crate) fn kept(&self) -> Option<(ClockReading, Duration)> {
        let state = self.state.lock();
        state.kept.map(|kept| (kept, state.ttl))
    }

    /// Whether a third of it has not passed yet, so that it need not be kept just now.
    pub(crate) fn is_fresh(&self, now: ClockReading) -> bool {
        self.kept().is_some_and(|(kept, ttl)| now.since(kept) < ttl / 3)
    }

    /// Whether it may have ended: no entry on it counts any more.
    pub(crate) fn is_over(&self, now: ClockReading) -> bool {
        let state = self.state.lock();
        state.over || state.kept.is_some_and(|kept| now.since(kept) >= state.ttl)
    }

    /// It was granted or kept alive by a request sent at this time, for this long.
    pub(crate) fn keep(&self, sent: ClockReading, ttl: Duration) {
        let mut state = self.state.lock();
        state.ttl = ttl;
        if state.kept.is_none_or(|kept| sent.boot > kept.boot) {
            state.kept = Some(sent);
        }
    }

    /// It has ended; true for the first call.
    pub(crate) fn end(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().over, true)
    }

    pub(crate) fn enter(&self) {
        self.entries.fetch_add(1, Ordering::AcqRel);
    }

    /// An entry left; true when it was the last of a retired lease.
    pub(crate) fn exit(&self) -> bool {
        self.entries.fetch_sub(1, Ordering::AcqRel) == 1 && self.retired.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    /// A tombstone was put on it; true when it is to be retired.
    pub(crate) fn add_tombstone(&self) -> bool {
        self.tombstones.fetch_add(1, Ordering::AcqRel) + 1 >= TOMBSTONES
            && !self.retired.swap(true, Ordering::AcqRel)
    }

    /// Whether anything new may be put on it.
    pub(crate) fn takes(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && !self.state.lock().over
    }

    pub(crate) fn in_doubt(&self) {
        self.doubt.store(true, Ordering::Release);
    }

    /// Whether there was doubt since the last time.
    pub(crate) fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::AcqRel)
    }
}

/// From the kernel, so that neither a fork nor a cloned machine has the same.
pub(crate) fn random() -> i64 {
    let bytes = distlock_core::ReqId::random();
    let half: [u8; 8] = std::array::from_fn(|i| bytes.as_bytes()[i]);
    (i64::from_be_bytes(half) & i64::MAX).max(1)
}
