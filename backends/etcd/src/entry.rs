//! An entry in a lock's queue: the value that other clients read, and this client's own entry with
//! what it knows of the queue ahead.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::{Entry, Snapshot, Spot};
use distlock_core::{Ask, Label, Lease, Mode, Mutex, Owner, ReqId, Token};
use serde::{Deserialize, Serialize};

use crate::wire::{proto::KeyValue, watches::Joins};
use crate::{keys, session::Session};

/// The low bits of a token are for hand-over inside a process. Fixed for ever.
pub(crate) const LOCAL_BITS: u32 = 16;

/// The value of an entry's key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EntryValue {
    /// The request that the entry is of.
    pub(crate) req: ReqId,
    owner: Owner,
    label: Label,
    #[serde(default)]
    mode: Mode,
    /// The client's wall clock when it joined, in microseconds: for people.
    at: u64,
    /// In seconds.
    ttl: u64,
    /// How many tokens it asked for.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    tokens: NonZeroU32,
    /// Taken away by an operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn is_one(tokens: &NonZeroU32) -> bool {
    *tokens == one()
}

impl EntryValue {
    pub(crate) fn of(ask: &Ask, wall_micros: u64) -> Self {
        let (owner, label, mode) = (ask.owner.clone(), ask.label.clone(), ask.mode);
        let (req, ttl) = (ask.req, ask.ttl.as_secs());
        let (at, tokens) = (wall_micros, ask.block);
        Self { req, owner, label, mode, at, ttl, tokens, revoked: false }
    }

    /// What a value says; `None` for one of another kind of client.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn is_revoked(value: &[u8]) -> bool {
        Self::read(value).is_some_and(|entry| entry.revoked)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The token of an entry made at a revision.
pub(crate) fn token(created: i64) -> Token {
    let revision = u64::try_from(created).unwrap_or(0).max(1);
    Token::new(revision << LOCAL_BITS).unwrap_or(Token::MAX)
}

/// The revision behind a token.
pub(crate) fn revision(token: Token) -> i64 {
    i64::try_from(token.get() >> LOCAL_BITS).unwrap_or(i64::MAX)
}

/// An entry as it is told.
pub(crate) fn told(kv: &KeyValue, wall_micros: u64) -> Entry {
    let spot = keys::spot(&String::from_utf8_lossy(&kv.key), kv.create_revision);
    let meta = EntryValue::read(&kv.value);
    let age = |m: &EntryValue| Duration::from_micros(wall_micros.saturating_sub(m.at));
    Entry {
        token: token(kv.create_revision),
        tokens: meta.as_ref().map_or(one(), |m| m.tokens),
        req: meta.as_ref().map(|m| m.req),
        owner: meta.as_ref().map(|m| m.owner.clone()),
        label: meta.as_ref().map_or_else(|| Label::new("another client"), |m| m.label.clone()),
        mode: meta.as_ref().map_or(Mode::Exclusive, |m| m.mode),
        age: meta.as_ref().map_or(Duration::ZERO, age),
        left: meta.as_ref().map(|m| Duration::from_secs(m.ttl)),
        lingering: false,
        revoked: meta.as_ref().is_some_and(|m| m.revoked),
        spot,
    }
}

/// An entry of this client's own.
#[derive(Clone)]
pub struct EtcdEntry(pub(crate) Arc<OwnEntry>);

pub(crate) struct OwnEntry {
    /// The key it sits at.
    pub(crate) key: Arc<str>,
    pub(crate) created: i64,
    /// Both.
    pub(crate) spot: Spot,
    pub(crate) session: Arc<Session>,
    pub(crate) mode: Mode,
    /// Its lock may be handed on inside this process.
    pub(crate) handed_on: bool,
    /// How many stood ahead when it joined: never more since.
    pub(crate) ahead: i64,
    /// A duplicate of its put may still be on its way.
    pub(crate) doubt: bool,
    near: Mutex<Near>,
}

#[derive(Default)]
struct Near {
    /// The entry just ahead, as it was last read.
    ahead: Option<Spot>,
    /// That entry is the first in the queue.
    next: bool,
    /// For a shared one: the last ahead that is not, if there is one. `None` before it was looked at.
    other: Option<Option<Spot>>,
    shown: Option<Box<Shown>>,
}

/// It was shown by a write that this entry is there.
struct Shown {
    /// The queue as of that write, until it was looked at.
    line: Option<Snapshot>,
    /// What was known of the lease before that write left: the proof is no older than this.
    lease: Lease,
}

impl OwnEntry {
    pub(crate) fn new(
        key: Arc<str>,
        created: i64,
        session: Arc<Session>,
        ask: &Ask,
        ahead: i64,
        doubt: bool,
    ) -> Self {
        let (spot, near) = (keys::spot(&key, created), Mutex::default());
        let (mode, handed_on) = (ask.mode, ask.block > NonZeroU32::MIN);
        Self { key, created, spot, session, mode, handed_on, ahead, doubt, near }
    }

    /// When joins behind it are watched for, once it is alone in its queue.
    pub(crate) fn joins(&self) -> Joins {
        if self.handed_on { Joins::Now } else { Joins::Soon }
    }

    /// The queue was read.
    pub(crate) fn saw(&self, line: &Snapshot) {
        let at = line.place(token(self.created));
        let ahead = at.and_then(|i| i.checked_sub(1)).map(|i| line.entries[i].spot.clone());
        let other = at.filter(|_| self.mode == Mode::Shared).map(|at| {
            let other = line.entries[..at].iter().rfind(|e| e.mode != Mode::Shared);
            other.map(|e| e.spot.clone())
        });
        let mut near = self.near.lock();
        (near.ahead, near.next) = (ahead, at == Some(1) && line.skipped == 0);
        near.other = other;
    }

    /// For a shared one that has looked: the last ahead that is not shared, if there is one.
    pub(crate) fn other(&self) -> Option<Option<Spot>> {
        self.near.lock().other.clone()
    }

    /// Whether its turn may well have come: only the first in the queue stood ahead of it, or the
    /// one just ahead was told to be gone.
    pub(crate) fn is_next(&self, told: impl FnOnce(&Spot) -> bool) -> bool {
        let near = self.near.lock();
        self.mode == Mode::Exclusive && (near.next || near.ahead.as_ref().is_some_and(told))
    }

    /// Whether it stands just behind this entry.
    pub(crate) fn follows(&self, other: &Spot) -> bool {
        self.mode == Mode::Exclusive && self.near.lock().ahead.as_ref() == Some(other)
    }

    /// A write has shown that it is there, and the first.
    pub(crate) fn show(&self, line: Option<Snapshot>, lease: Lease) {
        self.near.lock().shown = Some(Box::new(Shown { line, lease }));
    }

    /// The queue in which it was shown to be there, once. What was shown before and not used by then
    /// is forgotten: a new look needs a new proof.
    pub(crate) fn shown_queue(&self) -> Option<Snapshot> {
        let mut near = self.near.lock();
        let line = near.shown.as_mut().and_then(|s| s.line.take());
        if line.is_none() {
            near.shown = None;
        }
        line
    }

    /// The lease it was shown to be there with, once.
    pub(crate) fn shown(&self) -> Option<Lease> {
        self.near.lock().shown.take().map(|s| s.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_of_an_entry_are_of_its_revision_and_below_those_of_the_next() {
        for created in [1, 2, 77, (1 << 47) - 2] {
            let (first, next) = (token(created).get(), token(created + 1).get());
            let last = first + (1 << LOCAL_BITS) - 1;
            assert!(last < next && first.trailing_zeros() >= LOCAL_BITS, "{first} {next}");
            assert_eq!([first, last].map(|t| revision(Token::new(t).unwrap())), [created; 2]);
        }
    }
}
