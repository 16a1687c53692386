//! Who waits here, and how a node's wake-ups reach it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Ask;
use crate::clock::{BootInstant, Clock};
use crate::ids::{Owner, ReqId};
use crate::name::FullName;
use crate::same_owner::SameOwner;
use crate::simulation::HashMap;

/// After a first node's word the waiter gives the others this long: a release reaches them at
/// about the same time, and asking before it has reached a majority would be asking in vain.
const GRACE: Duration = Duration::from_millis(3);

/// The requests of one client that wait.
#[derive(Default)]
pub(super) struct Waiters(Mutex<Hanging>);

#[derive(Default)]
struct Hanging {
    by_req: HashMap<ReqId, Arc<Bell>>,
    by_owner: SameOwner<Bell>,
}

/// One request that waits.
pub(super) struct Bell {
    lock: FullName,
    owner: Owner,
    /// The nodes that have rung since it last asked.
    rung: AtomicU64,
    enough: u32,
    ring: Notify,
}

/// Takes its bell off the list when dropped.
pub(super) struct Hung<'a> {
    bells: &'a Waiters,
    req: ReqId,
    pub(super) bell: Arc<Bell>,
}

impl Waiters {
    fn all(&self) -> MutexGuard<'_, Hanging> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hangs up a bell, before the request is sent: a wake-up may come before its answer.
    pub(super) fn hang(&self, ask: &Ask, enough: u32) -> Hung<'_> {
        let (lock, owner) = (ask.lock.clone(), ask.owner.clone());
        let bell = Bell { lock, owner, rung: AtomicU64::new(0), enough, ring: Notify::new() };
        let bell = Arc::new(bell);
        let mut all = self.all();
        all.by_owner.add(&ask.lock, &ask.owner, ask.req, bell.clone());
        all.by_req.insert(ask.req, bell.clone());
        drop(all);
        Hung { bells: self, req: ask.req, bell }
    }

    /// A node says that it may be this request's turn.
    pub(super) fn ring(&self, node: usize, req: &ReqId) {
        if let Some(bell) = self.all().by_req.get(req) {
            bell.rung.fetch_or(1 << node, Ordering::AcqRel);
            bell.ring.notify_one();
        }
    }

    /// Everybody asks again.
    pub(super) fn ring_all(&self) {
        self.all().by_req.values().for_each(|b| b.ring_out());
    }

    /// The same owner's other requests may enter now.
    pub(super) fn ring_owner(&self, lock: &FullName, owner: &Owner) {
        self.all().by_owner.of(lock, owner).for_each(|b| b.ring_out());
    }
}

impl Bell {
    fn ring_out(&self) {
        self.rung.store(u64::MAX, Ordering::Release);
        self.ring.notify_one();
    }

    /// Forgets what rang before the question that is about to be sent.
    pub(super) fn reset(&self) {
        self.rung.store(0, Ordering::Release);
    }

    /// Sleeps until a moment, or until enough nodes have rung, or one has and its grace is over.
    pub(super) async fn doze(&self, clock: &Clock, until: BootInstant) {
        let mut until = until;
        loop {
            let rung = self.rung.load(Ordering::Acquire).count_ones();
            if rung >= self.enough {
                return;
            }
            if rung > 0 {
                until = until.min(clock.now().plus(GRACE));
            }
            tokio::select! {
                biased;
                () = self.ring.notified() => {}
                () = clock.sleep_until(until) => return,
            }
        }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        let mut all = self.bells.all();
        // The same request may have been asked again, and hangs a bell of its own.
        if all.by_req.get(&self.req).is_some_and(|b| Arc::ptr_eq(b, &self.bell)) {
            all.by_req.remove(&self.req);
            all.by_owner.remove(&self.bell.lock, &self.bell.owner, &self.req);
        }
    }
}
