//! Remembers the locks this process had to itself, to decide whether the fast path is worth trying.
//!
//! A lock that is free and that nobody waits for is taken and given back by one plain UPDATE each,
//! which the server runs quicker than a function. Where that finds anything else it changes
//! nothing, and the function is called after it: a round trip for nothing. So it is tried only
//! where it will likely do, and after a wrong guess not again for a while. Both ways answer the
//! same.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, FullName, Mutex, Reply};

/// How long a lock is not taken for quiet after something happened to it: a cancelled request is
/// remembered for a minute, and keeps the fast path closed until then.
const STIRRED: Duration = Duration::from_secs(61);
/// From this many locks on, all are forgotten: they are soon known again.
const MANY: usize = 4096;

/// The locks that a process had to itself.
pub(crate) struct ContentionHint {
    clock: Clock,
    /// Those that were quiet, and until when others are not taken for it.
    seen: Mutex<HashMap<FullName, Option<BootInstant>>>,
}

impl ContentionHint {
    /// None yet.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    /// Whether a lock was quiet when it was last heard of.
    pub(crate) fn knows(&self, lock: &FullName) -> bool {
        matches!(self.seen.lock().get(lock), Some(None))
    }

    /// What an acquire was told: a grant without waiters says that the lock is quiet.
    pub(crate) fn hear(&self, lock: &FullName, told: &Reply) {
        if !matches!(told, Reply::Granted { waiters: 0, .. }) {
            return self.wake(lock);
        }
        let mut seen = self.seen.lock();
        match seen.get_mut(lock) {
            Some(None) => {}
            Some(Some(until)) if self.clock.now() < *until => {}
            Some(known) => *known = None,
            None => Self::put(&mut seen, lock, None),
        }
    }

    /// Somebody else came.
    pub(crate) fn wake(&self, lock: &FullName) {
        let mut seen = self.seen.lock();
        if let Some(None) = seen.get(lock) {
            seen.remove(lock);
        }
    }

    /// Closes the fast path: it missed, or the outcome of a call is unknown.
    pub(crate) fn stir(&self, lock: &FullName) {
        let until = self.clock.now().plus(STIRRED);
        Self::put(&mut self.seen.lock(), lock, Some(until));
    }

    fn put(
        seen: &mut HashMap<FullName, Option<BootInstant>>,
        lock: &FullName,
        known: Option<BootInstant>,
    ) {
        if seen.len() >= MANY && !seen.contains_key(lock) {
            seen.clear();
        }
        seen.insert(lock.clone(), known);
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

    fn granted(waiters: u32) -> Reply {
        let token = Token::new(1).expect("a token");
        let (block, remaining) = (NonZeroU32::MIN, Duration::ZERO);
        Reply::Granted { token, block, remaining, waiters, floor: token }
    }

    #[test]
    fn a_lock_is_quiet_from_a_lonely_grant_until_somebody_comes() {
        let hint = ContentionHint::new(Clock::held());
        assert!(!hint.knows(&lock(0)));
        hint.hear(&lock(0), &granted(0));
        assert!(hint.knows(&lock(0)) && !hint.knows(&lock(1)));
        hint.hear(&lock(0), &granted(1));
        assert!(!hint.knows(&lock(0)));
        hint.hear(&lock(0), &granted(0));
        hint.wake(&lock(0));
        assert!(!hint.knows(&lock(0)));
    }

    #[test]
    fn a_lock_that_was_stirred_is_not_quiet_for_a_minute() {
        let clock = Clock::held();
        let hint = ContentionHint::new(clock.clone());
        hint.hear(&lock(0), &granted(0));
        hint.stir(&lock(0));
        hint.hear(&lock(0), &granted(0));
        hint.wake(&lock(0));
        hint.hear(&lock(0), &granted(0));
        assert!(!hint.knows(&lock(0)));
        clock.advance(STIRRED);
        assert!(!hint.knows(&lock(0)));
        hint.hear(&lock(0), &granted(0));
        assert!(hint.knows(&lock(0)));
    }

    #[test]
    fn few_are_remembered() {
        let hint = ContentionHint::new(Clock::held());
        for n in 0..=MANY {
            hint.hear(&lock(n), &granted(0));
        }
        assert_eq!(hint.seen.lock().len(), 1);
        assert!(hint.knows(&lock(MANY)));
    }
}
