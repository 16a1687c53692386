//! What an operator sees: who holds what, since when, and who waits.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{FullName, Holder, Human, Label, Mode, Name, Namespace, Owner, ReqId, TokenRange};

/// Which locks to list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// One lock.
    Name(FullName),
    /// A page of those whose name starts with a prefix, in order of name.
    Prefix {
        /// The namespace to look in.
        space: Namespace,
        /// What the names start with; empty for all.
        prefix: String,
        /// Only names after this one.
        after: Option<Name>,
        /// At most this many.
        limit: usize,
    },
}

/// A hold, as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HoldInfo {
    /// The request that holds.
    pub req: ReqId,
    /// The holder, since when, until when.
    #[serde(flatten)]
    pub holder: Holder,
    /// How many tokens it may use, from the holder's own on: several where a process hands the lock
    /// on among its tasks.
    pub tokens: NonZeroU32,
    /// The mode it is held in.
    pub mode: Mode,
    /// Released already, kept by its `min_hold`.
    pub lingering: bool,
    /// Taken away by an operator, ends with its lease.
    pub revoked: bool,
}

impl HoldInfo {
    /// The tokens it may use. The store does not know which of them is in use just now.
    #[must_use]
    pub fn tokens(&self) -> TokenRange {
        let first = self.holder.token;
        TokenRange::new(first, self.tokens).unwrap_or(TokenRange::one(first))
    }
}

/// A waiter, as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaiterInfo {
    /// The request that waits.
    pub req: ReqId,
    /// The owner of the request.
    pub owner: Owner,
    /// What it wants others to see.
    pub label: Label,
    /// How it wants to hold.
    pub mode: Mode,
    /// How long it has waited.
    pub waited: Duration,
}

/// A lock, as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockInfo {
    /// The lock.
    pub lock: FullName,
    /// The holds. Empty when it is only waited for.
    pub holds: Vec<HoldInfo>,
    /// The waiters, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lock)?;
        match self.holds.first() {
            Some(hold) => write!(f, " held by {}", hold.holder)?,
            None => f.write_str(" free")?,
        }
        if self.holds.len() > 1 {
            write!(f, " and {} more", self.holds.len() - 1)?;
        }
        let Some(first) = self.waiters.first() else { return Ok(()) };
        write!(f, "; {} waiting, the first for {}", self.waiters.len(), Human(first.waited))
    }
}
