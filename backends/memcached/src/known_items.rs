//! What a client remembers: the items it wrote, the fences it raised, and the requests that are
//! over. All of it is bounded, and none of it is believed against the server's word: each use is a
//! compare-and-swap that fails when the note is out of date.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use distlock_core::{BootInstant, FullName, ReqId, Token};

use crate::record::Record;
use crate::wire::Version;

/// So many fences and ended requests are remembered.
const MANY: usize = 4096;

/// A lock of this client, as it last wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) record: Record,
    pub(crate) version: Version,
    /// When it was granted.
    pub(crate) since: BootInstant,
    /// The item has surely ended then.
    pub(crate) end: BootInstant,
    /// No other client can have been granted it before, unless the server lost it.
    pub(crate) safe: BootInstant,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spent {
    /// Released.
    Released,
    /// A release was sent and never answered. If the lock is gone before this moment, it was that
    /// release which ended it.
    Doubtful(BootInstant),
    /// Cancelled, or lost.
    Cancelled,
}

#[derive(Default)]
struct Book {
    locks: HashMap<FullName, Note>,
    fences: HashMap<FullName, (Token, Version)>,
    spent: HashMap<ReqId, Spent>,
    order: VecDeque<ReqId>,
}

/// The notes of a client.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Book>);

impl Notes {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock as this client last wrote it.
    pub(crate) fn lock(&self, lock: &FullName) -> Option<Note> {
        self.book().locks.get(lock).cloned()
    }

    /// Remembers what was written, and forgets holds that nobody gave back once they are many.
    pub(crate) fn wrote(&self, note: Note, now: BootInstant) {
        let mut book = self.book();
        if book.locks.len() == book.locks.capacity() {
            book.locks.retain(|_, n| n.end > now);
        }
        book.locks.insert(note.record.lock.clone(), note);
    }

    /// Forgets a lock, if this request is one of its holders.
    pub(crate) fn forget(&self, lock: &FullName, req: ReqId) {
        let mut book = self.book();
        if book.locks.get(lock).is_some_and(|n| n.record.has(req)) {
            book.locks.remove(lock);
        }
    }

    /// The fence as this client last raised it. Taken out: one acquire at a time may build on it.
    pub(crate) fn take_fence(&self, lock: &FullName) -> Option<(Token, Version)> {
        self.book().fences.remove(lock)
    }

    pub(crate) fn raised(&self, lock: &FullName, token: Token, version: Version) {
        let mut book = self.book();
        if book.fences.len() >= MANY {
            book.fences.clear();
        }
        book.fences.insert(lock.clone(), (token, version));
    }

    pub(crate) fn spent(&self, req: ReqId) -> Option<Spent> {
        self.book().spent.get(&req).copied()
    }

    /// Remembers how a request ended; what is certain already stays.
    pub(crate) fn spend(&self, req: ReqId, how: Spent) {
        let mut book = self.book();
        match book.spent.get(&req) {
            Some(Spent::Released | Spent::Cancelled) => return,
            Some(Spent::Doubtful(_)) => {}
            None => book.order.push_back(req),
        }
        book.spent.insert(req, how);
        if book.order.len() > MANY
            && let Some(oldest) = book.order.pop_front()
        {
            book.spent.remove(&oldest);
        }
    }
}
