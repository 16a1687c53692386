//! The seats of a lease: keys that serve one request of this client after the other.
//!
//! A seat is given to the next only after all that was sent about it was answered for certain: the
//! put was answered and had no duplicate, and the request is known to be gone. Otherwise it is never
//! given again, and a put that arrives late finds the tombstone of its request. A delete may well
//! arrive late: it names the create revision of whom it is for.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::FullName;

/// Where a request sits.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) key: Arc<str>,
    pub(crate) number: u32,
}

/// The seats of a lease, by lock.
#[derive(Default)]
pub(crate) struct Seats(Mutex<HashMap<FullName, Row>>);

#[derive(Default)]
struct Row {
    /// How many there have been.
    all: u32,
    free: BTreeSet<u32>,
}

impl Seats {
    fn rows(&self) -> MutexGuard<'_, HashMap<FullName, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat that nobody has: the lowest, so that there are as few keys as can be.
    pub(crate) fn take(&self, lock: &FullName) -> u32 {
        let mut rows = self.rows();
        let row = match rows.get_mut(lock) {
            Some(row) => row,
            None => rows.entry(lock.clone()).or_default(),
        };
        row.free.pop_first().unwrap_or_else(|| {
            row.all += 1;
            row.all - 1
        })
    }

    /// A seat is free again.
    pub(crate) fn give(&self, lock: &FullName, number: u32) {
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(lock) else { return };
        row.free.insert(number);
        // All are, and there is nothing to remember.
        if u32::try_from(row.free.len()) == Ok(row.all) {
            rows.remove(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

    use super::*;

    #[test]
    fn a_seat_is_given_again_once_it_is_free_and_no_sooner() {
        let seats = Seats::default();
        let lock = |name| FullName { space: Default::default(), name: Name::new(name).unwrap() };
        let (a, b) = (lock("a"), lock("b"));
        assert_eq!([seats.take(&a), seats.take(&a), seats.take(&b), seats.take(&a)], [0, 1, 0, 2]);
        seats.give(&a, 2);
        seats.give(&a, 1);
        assert_eq!([seats.take(&a), seats.take(&a), seats.take(&a)], [1, 2, 3]);
        // Two of them are never given back: who comes next gets neither.
        seats.give(&a, 3);
        seats.give(&a, 0);
        assert_eq!([seats.take(&a), seats.take(&a), seats.take(&a)], [0, 3, 4]);
        seats.give(&b, 0);
        assert_eq!(seats.rows().len(), 1);
        assert_eq!(seats.take(&b), 0);
    }
}
