//! What many processes of one host saw of their locks, and whether it can have been true.
//!
//! Each process appends what happens to it, with the time of the host's shared boot clock, to a
//! file of its own ([`Recorder`]). [`check`] reads them together and finds: two holds valid at one
//! moment, tokens that go back or repeat, waiters served out of turn, and requests that were
//! forgotten.

mod check;
mod record;

use serde::{Deserialize, Serialize};

pub use check::{Rules, Violation, check};
pub use record::{Note, Recorder, read};

/// One thing that happened to one request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds of the boot clock.
    pub at: u64,
    /// The request: unique over all files.
    pub who: String,
    /// The lock; empty for the end of a file.
    pub lock: String,
    /// What happened.
    pub what: What,
}

/// What can happen to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// It was about to be sent.
    Asked,
    /// The store said that it stands in line.
    Enqueued,
    /// It was granted.
    Granted {
        /// With this token.
        token: u64,
        /// Valid until then, without another renewal.
        until: u64,
    },
    /// It was granted inside a hold of the same owner.
    Entered {
        /// With this token.
        token: u64,
        /// Valid until then, without another renewal.
        until: u64,
        /// The request that had the lock already.
        outer: String,
    },
    /// It was checked and found valid.
    Valid {
        /// Until then.
        until: u64,
    },
    /// Its release was about to be sent.
    ReleaseSent,
    /// Its release was acknowledged: it was held up to then.
    Released,
    /// Its holder was told, or found out, that it was lost.
    Lost,
    /// It ended without a grant: busy, cancelled, an error.
    GaveUp,
    /// Its process was about to be killed: from then on it believes in nothing. Written down by
    /// whoever kills it.
    Killed,
    /// The process ended in order: a request of it without an end was forgotten.
    End,
}
