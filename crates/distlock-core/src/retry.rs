//! The schedule of calls that are repeated until the store has acknowledged them.

use std::time::Duration;

/// On top of a TTL: a request under way may start its lease this much later.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// The pause before the next try: twice as long after each, between 50 milliseconds and a second.
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(50))
    }
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let longer = (self.0 * 2).min(Duration::from_secs(1));
        std::mem::replace(&mut self.0, longer)
    }
}
