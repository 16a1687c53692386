//! Requests that were sent more than once, because a connection broke under the first.
//!
//! The first may still arrive, after the second was granted and given back. A release is remembered
//! only until eight others of the same lock, so that the late one would be granted to nobody; what
//! is in doubt is given back by a cancel, which is remembered for a minute.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::ReqId;
use distlock_core::seam::Ask;

/// From so many on all are forgotten: holders who never gave back what they had.
const MANY: usize = 4096;

/// Counts how often one request was sent.
#[derive(Clone, Default)]
pub(crate) struct Sent(Arc<AtomicU32>);

impl Sent {
    pub(crate) fn once_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The requests of which a copy may still arrive.
#[derive(Default)]
pub(crate) struct Doubts(Mutex<HashSet<ReqId>>);

impl Doubts {
    fn all(&self) -> MutexGuard<'_, HashSet<ReqId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request that was sent more than once. A cancel would cut a min_hold short, so one
    /// with that is released as always.
    pub(crate) fn note(&self, sent: &Sent, ask: &Ask) {
        if sent.0.load(Ordering::Relaxed) > 1 && ask.min_hold.is_zero() {
            let mut all = self.all();
            if all.len() >= MANY {
                all.clear();
            }
            all.insert(ask.req);
        }
    }

    /// Whether a copy of a request may still arrive.
    pub(crate) fn about(&self, req: &ReqId) -> bool {
        self.all().contains(req)
    }

    /// It was cancelled: no copy comes to anything.
    pub(crate) fn settle(&self, req: &ReqId) {
        self.all().remove(req);
    }
}
