//! The keys of the entries on a lease.
//!
//! The keys of a lease serve one request of this client after the other. A key is reused only after
//! everything sent about it was answered for certain: the put was answered and had no duplicate, and
//! the request is known to be gone. Otherwise the key is never used again, and a put that arrives late
//! finds the tombstone of its request. A delete may arrive late: it names the create revision.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use distlock_core::{FullName, Mutex};

/// The key of one entry, and its number among the keys of its lease for that lock.
#[derive(Clone)]
pub(crate) struct EntryKey {
    pub(crate) key: Arc<str>,
    pub(crate) number: u32,
}

/// The key numbers of a lease, by lock.
#[derive(Default)]
pub(crate) struct ReusableKeys(Mutex<HashMap<FullName, Numbers>>);

#[derive(Default)]
struct Numbers {
    /// How many have been made.
    made: u32,
    free: BTreeSet<u32>,
}

impl ReusableKeys {
    /// The lowest number that is free, so that as few keys as possible come to be.
    pub(crate) fn take(&self, lock: &FullName) -> u32 {
        let mut locks = self.0.lock();
        let numbers = match locks.get_mut(lock) {
            Some(numbers) => numbers,
            None => locks.entry(lock.clone()).or_default(),
        };
        numbers.free.pop_first().unwrap_or_else(|| {
            numbers.made += 1;
            numbers.made - 1
        })
    }

    /// A number is free again.
    pub(crate) fn give(&self, lock: &FullName, number: u32) {
        let mut locks = self.0.lock();
        let Some(numbers) = locks.get_mut(lock) else { return };
        numbers.free.insert(number);
        // All are free: there is nothing to remember.
        if u32::try_from(numbers.free.len()) == Ok(numbers.made) {
            locks.remove(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

    use super::*;

    #[test]
    fn a_key_is_reused_once_it_is_free_and_no_sooner() {
        let keys = ReusableKeys::default();
        let lock = |name| FullName { space: Default::default(), name: Name::new(name).unwrap() };
        let (a, b) = (lock("a"), lock("b"));
        assert_eq!([keys.take(&a), keys.take(&a), keys.take(&b), keys.take(&a)], [0, 1, 0, 2]);
        keys.give(&a, 2);
        keys.give(&a, 1);
        assert_eq!([keys.take(&a), keys.take(&a), keys.take(&a)], [1, 2, 3]);
        // Two of them are never given back: the next request gets neither.
        keys.give(&a, 3);
        keys.give(&a, 0);
        assert_eq!([keys.take(&a), keys.take(&a), keys.take(&a)], [0, 3, 4]);
        keys.give(&b, 0);
        assert_eq!(keys.0.lock().len(), 1);
        assert_eq!(keys.take(&b), 0);
    }
}
