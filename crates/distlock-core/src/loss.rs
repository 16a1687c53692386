//! Why a lock was lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, FullName, Kind, Token};

/// Why a hold ended without its holder's doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LossReason {
    /// Its deadline passed without an acknowledged renewal, on the boot-time clock or, with a store
    /// on another host, on the wall clock: so also after a forward step of that.
    Expired,
    /// The store does not know it (any more): deleted, or expired there.
    Gone,
    /// An operator took it away.
    Revoked,
    /// The connection or session it was tied to ended.
    Disconnected,
    /// It is still held, but for less time than was asked for. Does not latch.
    TooShort,
    /// It was held as long as its `max_hold` allows.
    MaxHold,
    /// The client was closed.
    Closed,
    /// This is a forked copy of the process that held it.
    Forked,
    /// It was given back, detached, or taken up by another guard.
    Released,
}

impl LossReason {
    /// A stable word for logs and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.told().0
    }

    /// Its word, and what happened.
    const fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::Expired => ("expired", "its lease ran out before a renewal was acknowledged"),
            Self::Gone => ("gone", "the store does not know this hold any more"),
            Self::Revoked => ("revoked", "an operator took it away"),
            Self::Disconnected => ("disconnected", "the connection it was tied to ended"),
            Self::TooShort => ("too-short", "less of its lease is left than was asked for"),
            Self::MaxHold => ("max-hold", "it was held as long as max_hold allows"),
            Self::Closed => ("closed", "its client was closed"),
            Self::Forked => ("forked", "this process is a forked copy of its holder"),
            Self::Released => {
                ("released", "its guard was released or detached, or its ticket resumed")
            }
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.told().1)
    }
}

/// The lock is not held any more; whatever it protected must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Lost {
    /// The lock.
    pub lock: FullName,
    /// The token it was held with.
    pub token: Token,
    /// Why.
    pub why: LossReason,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} (token {}) was lost: {}", self.lock.to_string(), self.token, self.why)
    }
}

impl std::error::Error for Lost {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::new(Kind::Lost, lost.to_string())
            .with_hint("stop the work; writes already under way are refused only by a fence")
    }
}
