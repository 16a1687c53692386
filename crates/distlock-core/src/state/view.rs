//! The state as an operator sees it.

use super::{LockState, Micros, Phase};
use crate::info::{HoldInfo, LockInfo, WaiterInfo};
use crate::name::FullName;

impl LockState {
    /// Who holds and who waits at a moment; what has ended by then is left out. `None` when there
    /// is nobody.
    #[must_use]
    pub fn view(&self, lock: &FullName, now: Micros) -> Option<LockInfo> {
        let mut live = self.clone();
        live.drop_ended(now);
        let holds: Vec<_> = live
            .holds
            .iter()
            .map(|h| HoldInfo {
                req: h.claim.req,
                holder: h.seen_by_others(now),
                mode: h.claim.mode,
                lingering: h.phase == Phase::Lingering,
                revoked: h.phase == Phase::Revoked,
            })
            .collect();
        let waiters: Vec<_> = live
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
