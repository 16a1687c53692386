//! The waiting requests of each owner at each lock: they can enter when one of them is granted.

use std::sync::Arc;

use crate::{FullName, HashMap, Owner, ReqId};

/// Waiting requests by lock and owner, so that a grant finds its owner's others without a look at
/// all waiters.
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
        let Some(others) = self.0.get_mut(&key) else { return };
        others.remove(req);
        if others.is_empty() {
            self.0.remove(&key);
        }
    }

    /// All of one owner that wait for one lock.
    pub(crate) fn of(&self, lock: &FullName, owner: &Owner) -> impl Iterator<Item = &Arc<W>> {
        self.0.get(&(lock.clone(), owner.clone())).into_iter().flat_map(HashMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Name, Namespace};

    #[test]
    fn a_grant_finds_the_requests_of_its_owner_at_its_lock_only() {
        let lock = |name| FullName { space: Namespace::default(), name: Name::new(name).unwrap() };
        let (a, b, mine, other) = (lock("a"), lock("b"), Owner::new(), Owner::new());
        let mut waiting = SameOwner::default();
        let mut add = |lock: &FullName, owner: &Owner, tag: u32| {
            let req = ReqId::random();
            waiting.add(lock, owner, req, Arc::new(tag));
            req
        };
        let first = add(&a, &mine, 1);
        add(&a, &mine, 2);
        add(&b, &mine, 3);
        for tag in 10..1000 {
            add(&a, &Owner::new(), tag);
        }
        let found = |waiting: &SameOwner<u32>| {
            let mut found: Vec<_> = waiting.of(&a, &mine).map(|tag| **tag).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&waiting), [1, 2]);
        waiting.remove(&a, &other, &first);
        assert_eq!(found(&waiting), [1, 2]);
        waiting.remove(&a, &mine, &first);
        assert_eq!(found(&waiting), [2]);
    }
}
