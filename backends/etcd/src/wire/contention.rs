//! Whose writes may be expected to pass.

use std::collections::HashMap;

use distlock_core::FullName;

/// A lock at which a write did not pass is expected to be free again after so many that did.
const WARY: u8 = 16;
/// After some that went open were kept back by one, so many parties go as they are: where many locks
/// are taken now and then, to be kept back each time would double what everything costs.
const REST: u8 = 16;
/// So many locks are remembered.
const REMEMBERED: usize = 1024;

/// What is known of the locks that were written about lately.
#[derive(Default)]
pub(crate) struct ContentionHint {
    /// For how long not to trust those that were not free.
    wary: HashMap<FullName, u8>,
    rest: u8,
}

impl ContentionHint {
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

    /// A batch that went open was kept back.
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
        let (mut contention, a) = (ContentionHint::default(), lock("a"));
        contention.saw(&a, false);
        for _ in 1..WARY {
            contention.saw(&a, true);
        }
        assert!(!contention.expects(&a) && contention.expects(&lock("b")));
        contention.saw(&a, true);
        assert!(contention.expects(&a));
    }

    #[test]
    fn what_is_kept_back_is_so_once_in_a_while() {
        let mut contention = ContentionHint::default();
        assert!(contention.open() && contention.open());
        contention.kept_back();
        let closed = (0..100).take_while(|_| !contention.open()).count();
        assert_eq!(closed, usize::from(REST));
    }

    #[test]
    fn not_more_is_remembered_than_needs_be() {
        let mut contention = ContentionHint::default();
        (0..3000).for_each(|i| contention.saw(&lock(&i.to_string()), false));
        assert!(contention.wary.len() <= REMEMBERED && !contention.expects(&lock("2999")));
    }
}
