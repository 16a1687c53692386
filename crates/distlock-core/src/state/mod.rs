//! The pure specification of a lock: [`LockState::step`].
//!
//! Memory and SQLite run this function as it is; the scripts and statements of other stores are
//! translations of it, held to it by generated sequences of operations run on both. It knows no
//! I/O and no clock: every call is told what time it is.

mod brief;
mod op;
mod queue;
mod rules;
mod step;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use op::{Claim, Effects, Left, Op, Pulse, Refusal, Reply, Step};
pub use queue::Queue;
pub use rules::Rules;

use crate::ReqId;

/// A moment on the store's lease clock, in microseconds. What it counts from is the store's affair.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// `self` + `d`.
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; nothing when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Micros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// What time it is at the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// On the clock that leases run on.
    pub lease: Micros,
    /// On the wall, since 1970: for tokens only.
    pub wall: Micros,
}

/// The whole state of one lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct LockState {
    /// The holds, in the order of the grants. Each has an expiry of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Hold>,
    /// The waiters, in the order of arrival.
    #[serde(default, skip_serializing_if = "brief::is_usual")]
    pub queue: Queue,
    /// The highest token ever given out.
    pub hi: u64,
    /// Nobody is granted before this: a hold with a lock-delay expired.
    #[serde(default, skip_serializing_if = "brief::is_usual")]
    pub delay_until: Micros,
    /// Requests that were cancelled or released and must never come back.
    #[serde(default, rename = "spent", skip_serializing_if = "VecDeque::is_empty")]
    pub tombstones: VecDeque<Tombstone>,
}

/// One hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// What was asked for.
    pub claim: Claim,
    /// The fencing token; the same for every hold of a re-entrant owner.
    pub token: u64,
    /// How many tokens from there on belong to it.
    pub block: u32,
    /// When it ends unless renewed.
    pub expires: Micros,
    /// Since when it is held.
    pub granted: Micros,
    /// How far it is.
    pub phase: Phase,
}

/// How far a hold is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Promoted from the queue; passes on soon unless its waiter confirms by asking again. The
    /// waiter then keeps its place in the queue as long as it would have without.
    Claimed {
        /// Since when it had waited.
        since: Micros,
        /// When the waiter would have been dropped.
        deadline: Micros,
    },
    /// Held, and its holder knows it.
    Held,
    /// Released, but its `min_hold` is not over.
    Lingering,
    /// Taken away by an operator; blocks others until its lease ends, because its holder may not
    /// know yet.
    Revoked,
}

/// One waiter.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// What it asks for.
    pub claim: Claim,
    /// Since when it waits; made to differ from that of the waiter before it.
    pub since: Micros,
    /// Dropped at this moment unless heard of before.
    pub deadline: Micros,
    /// Could not be reached when it was promoted, or did not confirm in time: passed over, but it
    /// keeps its place until it is heard of again.
    #[serde(default, rename = "deaf", skip_serializing_if = "brief::is_usual")]
    pub unreachable: bool,
}

/// A request that must never come back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    /// Which.
    pub req: ReqId,
    /// How it ended.
    pub end: End,
    /// Remembered until then.
    pub until: Micros,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Given back by its holder.
    Released,
    /// Cancelled, or taken away.
    Cancelled,
}

impl LockState {
    /// A lock nobody has ever held, whose tokens start above `floor`.
    #[must_use]
    pub fn above(floor: u64) -> Self {
        Self { hi: floor, ..Self::default() }
    }

    /// Whether nothing but the highest token needs remembering.
    #[must_use]
    pub fn is_idle(&self, now: Micros) -> bool {
        let over = |h: &Hold| match h.phase {
            Phase::Claimed { deadline, .. } => h.expires <= now && deadline <= now,
            _ => h.expires <= now && h.claim.lock_delay.is_zero(),
        };
        self.holds.iter().all(over)
            && self.queue.iter().all(|w| w.deadline <= now)
            && self.tombstones.iter().all(|s| s.until <= now)
            && self.delay_until <= now
    }
}
