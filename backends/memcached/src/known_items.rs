//! What a client remembers: the items it wrote, the fences it raised, and the requests that are
//! over. All of it is bounded, and none of it is believed against the server's word: each use is a
//! compare-and-swap that fails when the note is out of date.

use std::collections::{HashMap, VecDeque};

use distlock_core::{BootInstant, FullName, Mutex, ReqId, Token};

use crate::record::Record;
use crate::wire::Version;

/// Max fences and ended requests that are remembered.
const MANY: usize = 4096;

/// A lock of this client, as it last wrote it.
#[derive(Clone, Debug)]
pub(crate) struct KnownItem {
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
pub(crate) enum RequestEnd {
    /// Released.
    Released,
    /// A release was sent and never answered. If the lock is gone before this moment, it was that
    /// release which ended it.
    Doubtful(BootInstant),
    /// Cancelled, or lost.
    Cancelled,
}

#[derive(Default)]
struct Tables {
    locks: HashMap<FullName, KnownItem>,
    fences: HashMap<FullName, (Token, Version)>,
    ended: HashMap<ReqId, RequestEnd>,
    order: VecDeque<ReqId>,
}

/// The notes of a client.
#[derive(Default)]
pub(crate) struct KnownItems(Mutex<Tables>);

impl KnownItems {
    /// The lock as this client last wrote it.
    pub(crate) fn lock(&self, lock: &FullName) -> Option<KnownItem> {
        self.0.lock().locks.get(lock).cloned()
    }

    /// Remembers what was written, and forgets holds that nobody gave back once they are many.
    pub(crate) fn wrote(&self, note: KnownItem, now: BootInstant) {
        let mut tables = self.0.lock();
        if tables.locks.len() == tables.locks.capacity() {
            tables.locks.retain(|_, n| n.end > now);
        }
        tables.locks.insert(note.record.lock.clone(), note);
    }

    /// Forgets a lock, if this request is one of its holders.
    pub(crate) fn forget(&self, lock: &FullName, req: ReqId) {
        let mut tables = self.0.lock();
        if tables.locks.get(lock).is_some_and(|n| n.record.has(req)) {
            tables.locks.remove(lock);
        }
    }

    /// The fence as this client last raised it. Taken out: one acquire at a time may build on it.
    pub(crate) fn take_fence(&self, lock: &FullName) -> Option<(Token, Version)> {
        self.0.lock().fences.remove(lock)
    }

    pub(crate) fn raised(&self, lock: &FullName, token: Token, version: Version) {
        let mut tables = self.0.lock();
        if tables.fences.len() >= MANY {
            tables.fences.clear();
        }
        tables.fences.insert(lock.clone(), (token, version));
    }

    pub(crate) fn ended(&self, req: ReqId) -> Option<RequestEnd> {
        self.0.lock().ended.get(&req).copied()
    }

    /// Remembers how a request ended; what is certain already stays.
    pub(crate) fn end_request(&self, req: ReqId, how: RequestEnd) {
        let mut tables = self.0.lock();
        match tables.ended.get(&req) {
            Some(RequestEnd::Released | RequestEnd::Cancelled) => return,
            Some(RequestEnd::Doubtful(_)) => {}
            None => tables.order.push_back(req),
        }
        tables.ended.insert(req, how);
        if tables.order.len() > MANY
            && let Some(oldest) = tables.order.pop_front()
        {
            tables.ended.remove(&oldest);
        }
    }
}
