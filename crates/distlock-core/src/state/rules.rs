//! The few numbers of the specification.

use std::time::Duration;

/// The numbers a store may set for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// How long a promoted waiter has to confirm.
    pub claim: Duration,
    /// How long a cancelled or released request is remembered.
    pub tombstone: Duration,
    /// At most this many cancelled requests are remembered.
    pub cancelled_cap: usize,
    /// At most this many released requests are remembered: a store whose calls cannot be delivered
    /// twice needs few.
    pub released_cap: usize,
    /// A block of tokens is cut so that it ends at most this far ahead of the wall clock.
    pub ahead: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            claim: Duration::from_secs(1),
            tombstone: Duration::from_secs(60),
            cancelled_cap: 4096,
            released_cap: 64,
            ahead: Duration::from_secs(1),
        }
    }
}
