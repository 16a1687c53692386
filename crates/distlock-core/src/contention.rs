//! Contention hint: which locks had waiters a moment ago.
//!
//! The fast path of a store serves a lock that nobody waits for, and is a round trip for nothing where
//! somebody does. Whether it is one is known only afterwards, but likely to be as it was a moment ago. A
//! wrong guess costs time and nothing else: both paths give the same answer.

use std::collections::HashMap;
use std::time::Duration;

use crate::{BootInstant, Clock, FullName, Mutex, Reply};

/// For so long a lock that was waited for is taken for one that is.
const LATELY: Duration = Duration::from_millis(500);
/// From so many on, those that were waited for before that are forgotten.
const MANY: usize = 1024;

/// The locks that others waited for lately.
pub struct ContentionHint {
    clock: Clock,
    seen: Mutex<HashMap<FullName, BootInstant>>,
}

impl ContentionHint {
    /// None yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    /// What an acquire was told: a grant says whether others wait.
    pub fn hear(&self, lock: &FullName, told: &Reply) {
        match told {
            Reply::Granted { waiters: 1.., .. } => self.note(lock),
            Reply::Granted { waiters: 0, .. } => drop(self.seen.lock().remove(lock)),
            _ => {}
        }
    }

    /// Somebody waits for this lock.
    pub fn note(&self, lock: &FullName) {
        let (now, mut seen) = (self.clock.now(), self.seen.lock());
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
        let mut seen = self.seen.lock();
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

    use super::*;
    use crate::{Name, Namespace, Token};

    fn lock(n: usize) -> FullName {
        let space = Namespace::new("").expect("a namespace");
        FullName { space, name: Name::new(format!("{n}")).expect("a name") }
    }

    #[test]
    fn a_crowd_is_one_for_a_moment_and_few_are_remembered() {
        let clock = Clock::held();
        let crowds = ContentionHint::new(clock.clone());
        assert!(!crowds.lately(&lock(0)));
        for n in 0..MANY + 5 {
            crowds.note(&lock(n));
        }
        assert!(crowds.lately(&lock(0)) && !crowds.lately(&lock(MANY)));
        assert_eq!(crowds.seen.lock().len(), MANY);
        clock.advance(LATELY);
        assert!(!crowds.lately(&lock(0)));
        crowds.note(&lock(MANY));
        assert!(crowds.lately(&lock(MANY)));
        crowds.note(&lock(0));
        assert_eq!(crowds.seen.lock().len(), 2);
    }

    #[test]
    fn who_is_granted_and_alone_has_no_crowd() {
        let crowds = ContentionHint::new(Clock::held());
        for (waiters, crowd) in [(1, true), (0, false), (2, true)] {
            let token = Token::new(1).expect("a token");
            let (block, remaining) = (NonZeroU32::MIN, Duration::ZERO);
            let granted = Reply::Granted { token, block, remaining, waiters, floor: token };
            crowds.hear(&lock(0), &granted);
            assert_eq!(crowds.lately(&lock(0)), crowd);
        }
    }
}
