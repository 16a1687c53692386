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
pub enum Why {
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

impl Why {
    /// A stable word for logs and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Why::Expired => "expired",
            Why::Gone => "gone",
            Why::Revoked => "revoked",
            Why::Disconnected => "disconnected",
            Why::TooShort => "too-short",
            Why::MaxHold => "max-hold",
            Why::Closed => "closed",
            Why::Forked => "forked",
            Why::Released => "released",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Why::Expired => "its lease ran out before a renewal was acknowledged",
            Why::Gone => "the store does not know this hold any more",
            Why::Revoked => "an operator took it away",
            Why::Disconnected => "the connection it was tied to ended",
            Why::TooShort => "less of its lease is left than was asked for",
            Why::MaxHold => "it was held as long as max_hold allows",
            Why::Closed => "its client was closed",
            Why::Forked => "this process is a forked copy of its holder",
            Why::Released => "its guard was released or detached, or its ticket resumed",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

/// The lock is not held any more; whatever it protected must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The lock.
    pub lock: FullName,
    /// The token it was held with.
    pub token: Token,
    /// Why.
    pub why: Why,
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
