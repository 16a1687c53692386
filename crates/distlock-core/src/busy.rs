//! The answer "busy": the holder, since when, and the request's place in the queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{FullName, Label, Owner, Token};

/// Who holds a lock, as the store sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// What the holder wants others to see.
    pub label: Label,
    /// The owner.
    pub owner: Owner,
    /// The holder's fencing token.
    pub token: Token,
    /// How long it has held the lock.
    pub age: Duration,
    /// How long until the store would give the lock on without a renewal; `None` where the lock
    /// lasts as long as its process.
    pub left: Option<Duration>,
}

/// Where a request stands: who holds the lock and how many are ahead.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueStatus {
    /// Who holds it; `None` while nobody does (a lock-delay or a quarantine may run).
    pub holder: Option<Holder>,
    /// How many requests are ahead in the queue, if this one stands in a queue.
    pub ahead: Option<u32>,
    /// When something could change by itself.
    pub left: Option<Duration>,
    /// Why the store grants nothing to anybody for now, if so.
    pub note: Option<Arc<str>>,
}

impl QueueStatus {
    /// Whether nobody is known to hold the lock and the store grants it to nobody for now: it is in
    /// quarantine after a restart, or does not answer. That is trouble of the store, not a busy lock.
    #[must_use]
    pub fn is_refused_to_all(&self) -> bool {
        self.holder.is_none() && self.note.is_some()
    }

    /// Whether a waiter that was told `last` should be told this: it has another holder or another
    /// place, or a note came or went.
    pub(crate) fn is_news_after(&self, last: &Self) -> bool {
        let about = |s: &Self| (s.holder.as_ref().map(|h| h.token), s.ahead, s.note.is_some());
        about(self) != about(last) || *last == Self::default()
    }
}

/// Not an error: the lock is held by somebody else.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Busy {
    /// The lock that was asked for.
    pub lock: FullName,
    /// The holder and the request's place in the queue when the wait ended.
    pub status: QueueStatus,
    /// How long this request waited.
    pub waited: Duration,
}

/// A duration for people: `350ms`, `4.2s`, `3m12s`, `2h05m`, `3d04h`.
#[derive(Clone, Copy)]
pub struct Human(pub Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0.as_secs();
        match s {
            0 => write!(f, "{}ms", self.0.as_millis()),
            1..10 => write!(f, "{}.{}s", s, self.0.subsec_millis() / 100),
            10..60 => write!(f, "{s}s"),
            60..3600 => write!(f, "{}m{:02}s", s / 60, s % 60),
            3600..86_400 => write!(f, "{}h{:02}m", s / 3600, s % 3600 / 60),
            _ => write!(f, "{}d{:02}h", s / 86_400, s % 86_400 / 3600),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} (token {}", self.label, Human(self.age), self.token)?;
        if let Some(left) = self.left {
            write!(f, ", {} left", Human(left))?;
        }
        write!(f, ", owner {})", self.owner)
    }
}

impl fmt::Display for QueueStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holder, self.left) {
            _ if self.note.is_some() => f.write_str(self.note.as_deref().unwrap_or_default())?,
            (Some(holder), _) => write!(f, "held by {holder}")?,
            (None, Some(left)) => write!(f, "free, but not granted for another {}", Human(left))?,
            (None, None) => f.write_str("not free")?,
        }
        match self.ahead {
            None => Ok(()),
            Some(0) => f.write_str("; next in line"),
            Some(n) => write!(f, "; {n} ahead in line"),
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.status.is_refused_to_all() { "granted to nobody" } else { "busy" };
        write!(f, "lock {:?} is {state}: {}", self.lock.to_string(), self.status)?;
        if !self.waited.is_zero() {
            write!(f, "; gave up after {}", Human(self.waited))?;
        }
        Ok(())
    }
}

impl std::error::Error for Busy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let h = |ms| Human(Duration::from_millis(ms)).to_string();
        assert_eq!(h(350), "350ms");
        assert_eq!(h(4_250), "4.2s");
        assert_eq!(h(192_000), "3m12s");
        assert_eq!(h(7_500_000), "2h05m");
        assert_eq!(h(273_600_000), "3d04h");
    }
}
