//! Requests of which a copy may still arrive: one that was never answered, repeated by the driver or
//! by the store itself.
//!
//! A hold that is given back by a plain release would be granted to the late copy once the store has
//! forgotten the release, which it does after a few others; a cancelled request is remembered for
//! certain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::ids::ReqId;
use crate::simulation::HashMap;

/// No question is under way for longer: a hold that was detached is forgotten then.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

#[derive(Default)]
pub(crate) struct Doubts {
    /// Whether there ever was one: nearly always there was none, and a release takes no lock.
    any: AtomicBool,
    by_req: Mutex<HashMap<ReqId, Doubt>>,
    /// The same for acquires under way that the store itself has sent again.
    any_repeated: AtomicBool,
    repeated: Mutex<HashMap<ReqId, ()>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Doubt {
    pub(crate) ttl: Duration,
    /// A release before this frees the lock only then.
    pub(crate) min_until: BootInstant,
    pub(crate) since: BootInstant,
}

impl Doubts {
    fn by_req(&self) -> MutexGuard<'_, HashMap<ReqId, Doubt>> {
        self.by_req.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, req: ReqId, doubt: Doubt) {
        let mut by_req = self.by_req();
        by_req.retain(|_, old| doubt.since.since(old.since) < FORGOTTEN);
        by_req.insert(req, doubt);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn about(&self, req: &ReqId) -> Option<Doubt> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.by_req().get(req).copied()
    }

    fn repeated(&self) -> MutexGuard<'_, HashMap<ReqId, ()>> {
        self.repeated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store sends an acquire again that is under way.
    pub(crate) fn repeat(&self, req: ReqId) {
        self.repeated().insert(req, ());
        self.any_repeated.store(true, Ordering::Release);
    }

    /// Whether the store has sent an acquire again that has just been answered.
    pub(crate) fn was_repeated(&self, req: &ReqId) -> bool {
        if !self.any_repeated.load(Ordering::Acquire) {
            return false;
        }
        let mut repeated = self.repeated();
        let was = repeated.remove(req).is_some();
        self.any_repeated.store(!repeated.is_empty(), Ordering::Release);
        was
    }

    /// The request was cancelled: no copy of it comes to anything.
    pub(crate) fn settle(&self, req: &ReqId) {
        self.was_repeated(req);
        if self.any.load(Ordering::Acquire) {
            let mut by_req = self.by_req();
            by_req.remove(req);
            self.any.store(!by_req.is_empty(), Ordering::Release);
        }
    }
}
