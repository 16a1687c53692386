//! The waiting requests of each owner at each lock: who can enter when one of them is granted.

use std::sync::Arc;

use crate::ids::{Owner, ReqId};
use crate::name::FullName;
use crate::simulation::HashMap;

/// Waiting requests by lock and owner, so that a grant finds its owner's others without a look at
/// everybody who waits.
pub(crate) struct SameOwner<W>(HashMap<(FullName, Owner), HashMap<ReqId, Arc<W>>>);

impl<W> Default for SameOwner<W> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<W> SameOwner<W> {
    pub(crate) fn add(&mut self, lock: &FullName, owner: &Owner, req: ReqId, waiter: Arc<W>) {
        self.0.entry((lock.clone(), owner.clone())).or_default().insert(req, waiter);
    }

    pub(crate) fn remove(&mut self, lock: &FullName, owner: &Owner, req: &ReqId) {
        let key = (lock.clone(), owner.clone());
        let Some(fellows) = self.0.get_mut(&key) else { return };
        fellows.remove(req);
        if fellows.is_empty() {
            self.0.remove(&key);
        }
    }

    /// All of one owner that wait for one lock.
    pub(crate) fn of(&self, lock: &FullName, owner: &Owner) -> impl Iterator<Item = &Arc<W>> {
        self.0.get(&(lock.clone(), owner.clone())).into_iter().flat_map(HashMap::values)
    }
}
