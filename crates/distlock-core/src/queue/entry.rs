//! A line as a store tells it.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Owner, ReqId};
use crate::label::Label;
use crate::mode::Mode;
use crate::token::Token;

/// The store's own word for an entry: its key or node. What a watch is put on.
pub type Spot = Arc<str>;

/// One entry in a line: a holder or a waiter, which of the two [`turn`](super::turn()) decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The store's own word for it.
    pub spot: Spot,
    /// Its fencing token: unique, and rising in the order of the line. It is what tells entries
    /// apart.
    pub token: Token,
    /// The request it is of; `None` for one of another kind of client.
    pub req: Option<ReqId>,
    /// Who asked; `None` for one of another kind of client.
    pub owner: Option<Owner>,
    /// What others may see of it.
    pub label: Label,
    /// How it is to be held. Exclusive for one of another kind of client: they know nothing else.
    pub mode: Mode,
    /// How long it has been there, as far as the store can tell.
    pub age: Duration,
    /// How long it could outlast its client's silence, at most.
    pub left: Option<Duration>,
    /// Released already, kept by its `min_hold`.
    pub lingering: bool,
    /// Taken away by an operator.
    pub revoked: bool,
}

/// A line, first entry first.
///
/// A store may leave out what an exclusive request has no need of: what lies between the first
/// entry and the one just ahead of it, and what is behind it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// The entries, in the order of their tokens.
    pub entries: Vec<Entry>,
    /// How many were left out after the first.
    pub skipped: u32,
    /// How many were left out at the end.
    pub behind: u32,
    /// The store's count of changes when it read this: a watch that starts here misses nothing.
    pub seen: u64,
}

impl Line {
    /// Where an entry stands among those that are told.
    #[must_use]
    pub fn place(&self, me: Token) -> Option<usize> {
        self.entries.binary_search_by_key(&me, |e| e.token).ok()
    }

    /// How many stand behind an entry.
    #[must_use]
    pub fn waiting_behind(&self, me: Token) -> u32 {
        let told = self.place(me).map_or(0, |i| self.entries.len() - 1 - i);
        u32::try_from(told).unwrap_or(u32::MAX).saturating_add(self.behind)
    }
}
