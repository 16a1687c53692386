//! The waiters of this client, and how a node's wake-ups reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::{Ask, BootInstant, Clock, FullName, HashMap, Mutex, Owner, ReqId, SameOwner};

/// After a first node's word the waiter gives the others this long: a release reaches them at
/// about the same time, and asking before it has reached a majority would be asking in vain.
const GRACE: Duration = Duration::from_millis(3);

/// The requests of one client that wait.
#[derive(Default)]
pub(super) struct Waiters(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_req: HashMap<ReqId, Arc<Waiter>>,
    by_owner: SameOwner<Waiter>,
}

/// One request that waits.
pub(super) struct Waiter {
    lock: FullName,
    owner: Owner,
    /// The nodes that have woken it since it last asked.
    woken_by: AtomicU64,
    enough: u32,
    notify: Notify,
}

/// Takes its waiter off the list when dropped.
pub(super) struct Registered<'a> {
    waiters: &'a Waiters,
    req: ReqId,
    pub(super) waiter: Arc<Waiter>,
}

impl Waiters {
    /// Registers a waiter, before the request is sent: a wake-up may come before its answer.
    pub(super) fn register(&self, ask: &Ask, enough: u32) -> Registered<'_> {
        let (lock, owner) = (ask.lock.clone(), ask.owner.clone());
        let waiter =
            Waiter { lock, owner, woken_by: AtomicU64::new(0), enough, notify: Notify::new() };
        let waiter = Arc::new(waiter);
        let mut all = self.0.lock();
        all.by_owner.add(&ask.lock, &ask.owner, ask.req, waiter.clone());
        all.by_req.insert(ask.req, waiter.clone());
        drop(all);
        Registered { waiters: self, req: ask.req, waiter }
    }

    /// A node says that it may be this request's turn.
    pub(super) fn wake(&self, node: usize, req: &ReqId) {
        if let Some(waiter) = self.0.lock().by_req.get(req) {
            waiter.woken_by.fetch_or(1 << node, Ordering::AcqRel);
            waiter.notify.notify_one();
        }
    }

    /// Everybody asks again.
    pub(super) fn wake_all(&self) {
        self.0.lock().by_req.values().for_each(|w| w.wake_up());
    }

    /// The same owner's other requests may enter now.
    pub(super) fn wake_owner(&self, lock: &FullName, owner: &Owner) {
        self.0.lock().by_owner.of(lock, owner).for_each(|w| w.wake_up());
    }
}

impl Waiter {
    fn wake_up(&self) {
        self.woken_by.store(u64::MAX, Ordering::Release);
        self.notify.notify_one();
    }

    /// Forgets the wake-ups before the question that is about to be sent.
    pub(super) fn reset(&self) {
        self.woken_by.store(0, Ordering::Release);
    }

    /// Sleeps until a moment, or until enough nodes have woken it, or one has and its grace is
    /// over.
    pub(super) async fn doze(&self, clock: &Clock, until: BootInstant) {
        let mut until = until;
        loop {
            let woken_by = self.woken_by.load(Ordering::Acquire).count_ones();
            if woken_by >= self.enough {
                return;
            }
            if woken_by > 0 {
                until = until.min(clock.now().plus(GRACE));
            }
            tokio::select! {
                biased;
                () = self.notify.notified() => {}
                () = clock.sleep_until(until) => return,
            }
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut all = self.waiters.0.lock();
        // The same request may have been asked again, and has a waiter of its own.
        if all.by_req.get(&self.req).is_some_and(|w| Arc::ptr_eq(w, &self.waiter)) {
            all.by_req.remove(&self.req);
            all.by_owner.remove(&self.waiter.lock, &self.waiter.owner, &self.req);
        }
    }
}
