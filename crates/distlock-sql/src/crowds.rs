//! Which locks others waited for when they were last granted, a moment ago.
//!
//! A short way to take or give back a lock that nobody waits for is a round trip for nothing where
//! somebody does. That is not known before the answer, but it is likely where it was so at the grant. A wrong
//! guess costs time, and nothing else: both ways answer the same.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::state::Reply;
use distlock_core::{BootInstant, Clock, FullName};

/// For so long a lock that was waited for is taken for one that is.
const LATELY: Duration = Duration::from_millis(500);
/// From so many on, those that were waited for before that are forgotten.
const MANY: usize = 1024;

/// The locks that others waited for lately.
pub struct Crowds {
    clock: Clock,
    seen: Mutex<HashMap<FullName, BootInstant>>,
}

impl Crowds {
    /// None yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<FullName, BootInstant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an acquire was told: a grant says whether others wait.
    pub fn hear(&self, lock: &FullName, told: &Reply) {
        match told {
            Reply::Granted { waiters: 1.., .. } => self.note(lock),
            Reply::Granted { waiters: 0, .. } => drop(self.seen().remove(lock)),
            _ => {}
        }
    }

    /// Somebody waits for this lock.
    fn note(&self, lock: &FullName) {
        let (now, mut seen) = (self.clock.now(), self.seen());
        if let Some(at) = seen.get_mut(lock) {
            *at = now;
            return;
        }
        if seen.len() >= MANY {
            seen.retain(|_, at| now.since(*at) < LATELY);
        }
        // More than that at once: one of them has to do without.
        if seen.len() < MANY {
            seen.insert(lock.clone(), now);
        }
    }

    /// Whether somebody waited for this lock a moment ago.
    #[must_use]
    pub fn lately(&self, lock: &FullName) -> bool {
        let mut seen = self.seen();
        // Where nobody ever waits this is all that it costs.
        if seen.is_empty() {
            return false;
        }
        let Some(at) = seen.get(lock) else { return false };
        let lately = self.clock.now().since(*at) < LATELY;
        if !lately {
            seen.remove(lock);
        }
        lately
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use distlock_core::{Name, Namespace, Token};

    use super::*;

    fn lock(n: usize) -> FullName {
        let space = Namespace::new("").expect("a namespace");
        FullName { space, name: Name::new(format!("{n}")).expect("a name") }
    }

    #[test]
    fn a_crowd_is_one_for_a_moment_and_few_are_remembered() {
        let clock = Clock::held();
        let crowds = Crowds::new(clock.clone());
        assert!(!crowds.lately(&lock(0)));
        for n in 0..MANY + 5 {
            crowds.note(&lock(n));
        }
        assert!(crowds.lately(&lock(0)) && !crowds.lately(&lock(MANY)));
        assert_eq!(crowds.seen().len(), MANY);
        clock.advance(LATELY);
        assert!(!crowds.lately(&lock(0)));
        crowds.note(&lock(MANY));
        assert!(crowds.lately(&lock(MANY)));
        crowds.note(&lock(0));
        assert_eq!(crowds.seen().len(), 2);
    }

    #[test]
    fn who_is_granted_and_alone_has_no_crowd() {
        let crowds = Crowds::new(Clock::held());
        for (waiters, crowd) in [(1, true), (0, false), (2, true)] {
            let token = Token::new(1).expect("a token");
            let (block, remaining) = (NonZeroU32::MIN, Duration::ZERO);
            let granted = Reply::Granted { token, block, remaining, waiters, floor: token };
            crowds.hear(&lock(0), &granted);
            assert_eq!(crowds.lately(&lock(0)), crowd);
        }
    }
}
