//! Predicts per lock whether a write's comparisons will succeed, to decide how it is batched.

use std::collections::HashMap;

use distlock_core::FullName;

/// A lock at which a write did not pass is expected to be free again after this many that did.
const WARY: u8 = 16;
/// After an open batch was kept back by one write, this many batches go as they are: where many locks
/// are taken now and then, to be kept back each time would double what everything costs.
const REST: u8 = 16;
/// Max locks remembered.
const REMEMBERED: usize = 1024;

/// What is known of the locks that were written about lately.
#[derive(Default)]
pub(crate) struct MergeHint {
    /// For how long not to trust those that were not free.
    wary: HashMap<FullName, u8>,
    rest: u8,
}

impl MergeHint {
    /// Whether a batch may go open now.
    pub(crate) fn open(&mut self) -> bool {
        let open = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        open
    }

    /// Whether a write about a lock is expected to pass.
    pub(crate) fn expects(&self, lock: &FullName) -> bool {
        !self.wary.contains_key(lock)
    }

    /// A merged batch failed because one comparison failed.
    pub(crate) fn kept_back(&mut self) {
        self.rest = REST;
    }

    /// A write that went as it was passed, or did not.
    pub(crate) fn saw(&mut self, lock: &FullName, passed: bool) {
        if !passed {
            if self.wary.len() >= REMEMBERED {
                self.wary.clear();
            }
            self.wary.insert(lock.clone(), WARY);
        } else if let Some(left) = self.wary.get_mut(lock) {
            *left -= 1;
            if *left == 0 {
                self.wary.remove(lock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

    use super::*;

    fn lock(name: &str) -> FullName {
        FullName { space: Default::default(), name: Name::new(name).unwrap() }
    }

    #[test]
    fn a_lock_that_was_taken_is_trusted_again_after_a_while() {
        let (mut hint, a) = (MergeHint::default(), lock("a"));
        hint.saw(&a, false);
        for _ in 1..WARY {
            hint.saw(&a, true);
        }
        assert!(!hint.expects(&a) && hint.expects(&lock("b")));
        hint.saw(&a, true);
        assert!(hint.expects(&a));
    }

    #[test]
    fn what_is_kept_back_is_so_once_in_a_while() {
        let mut hint = MergeHint::default();
        assert!(hint.open() && hint.open());
        hint.kept_back();
        let closed = (0..100).take_while(|_| !hint.open()).count();
        assert_eq!(closed, usize::from(REST));
    }

    #[test]
    fn not_more_is_remembered_than_needs_be() {
        let mut hint = MergeHint::default();
        (0..3000).for_each(|i| hint.saw(&lock(&i.to_string()), false));
        assert!(hint.wary.len() <= REMEMBERED && !hint.expects(&lock("2999")));
    }
}
