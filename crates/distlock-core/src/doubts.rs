//! Holds whose grant followed a question that was never answered.
//!
//! That question may still arrive. Given back by a plain release it would be granted again once the
//! store has forgotten the release, which it does after a few others; a cancelled request is
//! remembered for certain.

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

    pub(crate) fn settle(&self, req: &ReqId) {
        if self.any.load(Ordering::Acquire) {
            let mut by_req = self.by_req();
            by_req.remove(req);
            self.any.store(!by_req.is_empty(), Ordering::Release);
        }
    }
}
