//! What can be asked of a lock, and what it answers.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::brief;
use crate::{
    Ask, Error, Force, Forced, Holder, Kind, Label, LossReason, Mode, Owner, ReqId, Token,
};

/// What a request wants. Durations only: the store's clock alone counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Which request.
    pub req: ReqId,
    /// The owner of the request.
    pub owner: Owner,
    /// How it wants to hold.
    #[serde(default, skip_serializing_if = "brief::is_usual")]
    pub mode: Mode,
    /// For how long without a renewal.
    #[serde(with = "brief")]
    pub ttl: Duration,
    /// A release before this age takes effect only then.
    #[serde(default, with = "brief", skip_serializing_if = "Duration::is_zero")]
    pub min_hold: Duration,
    /// What follows an expiry.
    #[serde(default, with = "brief", skip_serializing_if = "Duration::is_zero")]
    pub lock_delay: Duration,
    /// What others see.
    pub label: Label,
    /// How many tokens it wants.
    #[serde(default = "brief::one", skip_serializing_if = "brief::is_one")]
    pub block: NonZeroU32,
    /// Where it can be told that it is its turn; the store's affair.
    pub via: String,
}

impl Claim {
    /// The claim of an ask, reachable through `via`.
    #[must_use]
    pub fn of(ask: &Ask, via: impl Into<String>) -> Self {
        Self {
            req: ask.req,
            owner: ask.owner.clone(),
            mode: ask.mode,
            ttl: ask.ttl,
            min_hold: ask.min_hold,
            lock_delay: ask.lock_delay,
            label: ask.label.clone(),
            block: ask.block,
            via: via.into(),
        }
    }
}

/// An operation on a lock. Each is idempotent by its request id.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Asks, asks again, confirms a promotion, or polls: one operation for all of them. With `wait`
    /// the request stands in the queue and is dropped if not heard of for that long.
    Acquire {
        /// What is wanted.
        claim: Claim,
        /// How long it may be silent in the queue; `None` does not stand in the queue.
        wait: Option<Duration>,
    },
    /// Says that a waiter is alive. Unlike an acquire it never puts a request in the queue, so that
    /// one that was overtaken by a cancel cannot bring it back.
    Heartbeat {
        /// Which waiter.
        req: ReqId,
        /// How long it may be silent from now on.
        wait: Duration,
    },
    /// Extends a hold that still lives. Never brings back one that has ended.
    Renew {
        /// Which hold.
        req: ReqId,
        /// For how long from now.
        ttl: Duration,
    },
    /// Gives a hold back.
    Release {
        /// Which hold.
        req: ReqId,
    },
    /// Undoes a request, whatever became of it, and keeps it from coming back.
    Cancel {
        /// Which request.
        req: ReqId,
    },
    /// Takes the lock away from its holders; with a token only if it is one of theirs.
    Force {
        /// One of the holder's tokens.
        token: Option<Token>,
        /// At once, or with the end of the lease.
        how: Force,
    },
    /// Takes a promotion back because its waiter could not be told.
    Withdraw {
        /// Which promoted request.
        req: ReqId,
        /// Its process is gone for certain: drop it. Otherwise it keeps its place, passed over
        /// until it is heard of again.
        gone: bool,
    },
    /// Nothing but what time brings: expiries and the promotions they allow.
    Settle,
}

/// How long something lasts and what is in the way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Left {
    /// The holder.
    pub holder: Option<Holder>,
    /// When something could change by itself.
    pub left: Option<Duration>,
}

/// Why a request can never be granted as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The lock is in use with another number of permits.
    PermitsDiffer(NonZeroU32),
    /// The same owner holds it in another mode, and would wait for itself.
    ModeDiffers(Mode),
}

/// The answer to an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Held.
    Granted {
        /// The fencing token.
        token: Token,
        /// How many tokens from there on.
        block: NonZeroU32,
        /// What is left of the lease: less than the TTL when this is a replay.
        remaining: Duration,
        /// How many wait.
        waiters: u32,
        /// The lowest token alive: what a resource shared by permits compares with.
        floor: Token,
    },
    /// In line.
    Waiting {
        /// How many are ahead.
        ahead: u32,
        /// The holder, and when something could change.
        why: Left,
    },
    /// Not granted, and not in the queue.
    Busy {
        /// How many stand in the queue.
        ahead: u32,
        /// The holder, and when something could change.
        why: Left,
    },
    /// Can never be granted as it stands.
    Refused(Refusal),
    /// This request was ended before, and stays so.
    Tombstoned(super::End),
    /// Where the waiter is.
    Pulse(Pulse),
    /// Renewed.
    Renewed {
        /// What is left of the lease.
        remaining: Duration,
        /// How many wait.
        waiters: u32,
    },
    /// Not held (any more).
    Lost(LossReason),
    /// Given back.
    Released,
    /// Undone.
    Cancelled,
    /// Taken away.
    Forced,
    /// Nobody holds it, or not with that token.
    NoMatch,
    /// Time was allowed to do its work.
    Settled,
}

impl Reply {
    /// As the answer to a forced release.
    ///
    /// # Errors
    /// When it answers another operation.
    pub fn forced(self) -> Result<Forced, Error> {
        match self {
            Self::Forced => Ok(Forced::Done),
            Self::NoMatch => Ok(Forced::NoMatch),
            other => Err(other.unexpected()),
        }
    }

    /// The error of a reply that its operation cannot have: a fault of the store.
    #[must_use]
    pub fn unexpected(&self) -> Error {
        Error::new(Kind::Store, format!("an answer to another question: {self:?}")).unknown()
    }
}

/// What a heartbeat found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pulse {
    /// Still in the queue.
    Queued {
        /// How many are ahead.
        ahead: u32,
        /// When something could change by itself.
        left: Option<Duration>,
    },
    /// Promoted: ask again to confirm.
    Turn,
    /// Not known: ask again to join anew.
    Unknown,
}

/// The wake-ups to send, after the state has been stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Promoted: `(request, via)`.
    pub turns: Vec<(ReqId, String)>,
    /// Holders that are now waited for, and were not before.
    pub contended: Vec<(ReqId, String)>,
    /// Holders whose lock was taken away.
    pub revoked: Vec<(ReqId, String)>,
}

impl Effects {
    /// Whether there is nobody to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.contended.is_empty() && self.revoked.is_empty()
    }
}

/// The result of one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The answer.
    pub reply: Reply,
    /// The wake-ups to send.
    pub effects: Effects,
}
