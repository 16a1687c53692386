//! The state as an operator sees it.

use std::num::NonZeroU32;

use super::{LockState, Micros, Phase};
use crate::{FullName, HoldInfo, LockInfo, WaiterInfo};

impl LockState {
    /// Who holds and who waits at a moment; what has ended by then is left out. `None` when there
    /// is nobody.
    #[must_use]
    pub fn view(&self, lock: &FullName, now: Micros) -> Option<LockInfo> {
        self.clone().into_view(lock, now)
    }

    /// The same of a state that is not needed any more: a long queue is not copied.
    #[must_use]
    pub fn into_view(mut self, lock: &FullName, now: Micros) -> Option<LockInfo> {
        self.drop_ended(now);
        let holds: Vec<_> = self
            .holds
            .iter()
            .map(|h| HoldInfo {
                req: h.claim.req,
                holder: h.seen_by_others(now),
                tokens: NonZeroU32::new(h.block).unwrap_or(NonZeroU32::MIN),
                mode: h.claim.mode,
                lingering: h.phase == Phase::Lingering,
                revoked: h.phase == Phase::Revoked,
            })
            .collect();
        let waiters: Vec<_> = self
            .queue
            .iter()
            .map(|w| WaiterInfo {
                req: w.claim.req,
                owner: w.claim.owner.clone(),
                label: w.claim.label.clone(),
                mode: w.claim.mode,
                waited: now.since(w.since),
            })
            .collect();
        if holds.is_empty() && waiters.is_empty() {
            return None;
        }
        Some(LockInfo { lock: lock.clone(), holds, waiters })
    }
}
