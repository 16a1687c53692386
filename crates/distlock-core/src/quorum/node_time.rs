//! The nodes' time, as estimated from their answers: what tokens and tickets are made of.

use crate::{Clock, Micros, Mutex, Token};

/// How far each node's wall clock is from ours, and the highest token seen.
pub(super) struct NodeTime {
    offsets: Mutex<Vec<Option<i64>>>,
    seen: Mutex<u64>,
}

impl NodeTime {
    pub(super) fn new(nodes: usize) -> Self {
        Self { offsets: Mutex::new(vec![None; nodes]), seen: Mutex::new(0) }
    }

    /// A node told its time in an answer that came just now. The way back counts as no time at
    /// all: a token or ticket a round trip late does no harm.
    pub(super) fn heard(&self, node: usize, at: Micros, clock: &Clock) {
        let offset =
            i64::try_from(at.0).unwrap_or(i64::MAX).saturating_sub_unsigned(clock.wall_micros());
        self.offsets.lock()[node] = Some(offset);
    }

    /// The time of the middle node.
    pub(super) fn now(&self, clock: &Clock) -> u64 {
        let mut known: Vec<i64> = self.offsets.lock().iter().flatten().copied().collect();
        known.sort_unstable();
        let middle = known.get(known.len() / 2).copied().unwrap_or(0);
        clock.wall_micros().saturating_add_signed(middle)
    }

    /// The time of the node that is furthest ahead; `None` before any node has told its own.
    pub(super) fn latest(&self, clock: &Clock) -> Option<u64> {
        let ahead = self.offsets.lock().iter().flatten().copied().max()?;
        Some(clock.wall_micros().saturating_add_signed(ahead))
    }

    /// A token has been seen: the next proposal is above it.
    pub(super) fn seen(&self, token: u64) {
        let mut seen = self.seen.lock();
        *seen = token.max(*seen);
    }

    /// A token to propose: the nodes' time, or one more than any seen or proposed here.
    pub(super) fn proposal(&self, clock: &Clock) -> Token {
        let now = self.now(clock);
        let mut seen = self.seen.lock();
        *seen = now.max(seen.saturating_add(1)).min(Token::MAX.get());
        Token::new(*seen).unwrap_or(Token::MIN)
    }
}
