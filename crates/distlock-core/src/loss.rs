//! Why a lock was lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::name::FullName;
use crate::token::Token;

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
        match self {
            LossReason::Expired => "expired",
            LossReason::Gone => "gone",
            LossReason::Revoked => "revoked",
            LossReason::Disconnected => "disconnected",
            LossReason::TooShort => "too-short",
            LossReason::MaxHold => "max-hold",
            LossReason::Closed => "closed",
            LossReason::Forked => "forked",
            LossReason::Released => "released",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            LossReason::Expired => "its lease ran out before a renewal was acknowledged",
            LossReason::Gone => "the store does not know this hold any more",
            LossReason::Revoked => "an operator took it away",
            LossReason::Disconnected => "the connection it was tied to ended",
            LossReason::TooShort => "less of its lease is left than was asked for",
            LossReason::MaxHold => "it was held as long as max_hold allows",
            LossReason::Closed => "its client was closed",
            LossReason::Forked => "this process is a forked copy of its holder",
            LossReason::Released => "its guard was released or detached, or its ticket resumed",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
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
