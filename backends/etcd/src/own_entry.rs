//! An entry of this client's own, and what it knows of the line ahead of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::Mode;
use distlock_core::queue::{Lease, Line, Spot};

use crate::entry_value::token;
use crate::keys;
use crate::session::Session;

/// An entry of this client's own.
#[derive(Clone)]
pub struct EtcdEntry(pub(crate) Arc<Place>);

pub(crate) struct Place {
    /// The key it sits at.
    pub(crate) key: Arc<str>,
    pub(crate) created: i64,
    /// Both.
    pub(crate) spot: Spot,
    pub(crate) session: Arc<Session>,
    pub(crate) mode: Mode,
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
    /// That entry is the first in line.
    next: bool,
    /// For a shared one: the last ahead that is not, if there is one. `None` before it was looked at.
    other: Option<Option<Spot>>,
    shown: Option<Box<Shown>>,
}

/// It was shown by a write that this entry is there.
struct Shown {
    /// The line as of that write, until somebody has looked at it.
    line: Option<Line>,
    /// What was known of the lease before that write left: the proof is no older than this.
    lease: Lease,
}

impl Place {
    pub(crate) fn new(
        key: Arc<str>,
        created: i64,
        session: Arc<Session>,
        mode: Mode,
        ahead: i64,
        doubt: bool,
    ) -> Self {
        let spot = keys::spot(&key, created);
        Self { key, created, spot, session, mode, ahead, doubt, near: Mutex::default() }
    }

    fn near(&self) -> MutexGuard<'_, Near> {
        self.near.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line was read.
    pub(crate) fn saw(&self, line: &Line) {
        let at = line.place(token(self.created));
        let ahead = at.and_then(|i| i.checked_sub(1)).map(|i| line.entries[i].spot.clone());
        let other = at.filter(|_| self.mode == Mode::Shared).map(|at| {
            let other = line.entries[..at].iter().rfind(|e| e.mode != Mode::Shared);
            other.map(|e| e.spot.clone())
        });
        let mut near = self.near();
        (near.ahead, near.next) = (ahead, at == Some(1) && line.skipped == 0);
        near.other = other;
    }

    /// For a shared one that has looked: the last ahead that is not shared, if there is one.
    pub(crate) fn other(&self) -> Option<Option<Spot>> {
        self.near().other.clone()
    }

    /// Whether its turn may well have come: only the first in line stood ahead of it, or the one just
    /// ahead was told to be gone.
    pub(crate) fn is_next(&self, told: impl FnOnce(&Spot) -> bool) -> bool {
        let near = self.near();
        self.mode == Mode::Exclusive && (near.next || near.ahead.as_ref().is_some_and(told))
    }

    /// Whether it stands just behind this entry.
    pub(crate) fn follows(&self, other: &Spot) -> bool {
        self.mode == Mode::Exclusive && self.near().ahead.as_ref() == Some(other)
    }

    /// A write has shown that it is there, and the first.
    pub(crate) fn show(&self, line: Option<Line>, lease: Lease) {
        self.near().shown = Some(Box::new(Shown { line, lease }));
    }

    /// The line in which it was shown to be there, once. What was shown before and not used by then
    /// is forgotten: whoever looks anew proves anew.
    pub(crate) fn shown_line(&self) -> Option<Line> {
        let mut near = self.near();
        let line = near.shown.as_mut().and_then(|s| s.line.take());
        if line.is_none() {
            near.shown = None;
        }
        line
    }

    /// The lease it was shown to be there with, once.
    pub(crate) fn shown(&self) -> Option<Lease> {
        self.near().shown.take().map(|s| s.lease)
    }
}
