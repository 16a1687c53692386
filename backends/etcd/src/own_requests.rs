//! This client's own requests in all queues: joined, in doubt (a put may still arrive), or left.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use distlock_core::queue::Spot;
use distlock_core::{FullName, Key, Mutex, ReqId};

use crate::entry::OwnEntry;
use crate::entry_keys::EntryKey;
use crate::session::Session;
use crate::txn::Known;

/// How many requests that left are remembered. A later copy of an older one can only come from its own
/// caller.
const REMEMBERED: usize = 10_000;

/// An entry, or one that may come to be.
#[derive(Clone)]
pub(crate) struct OwnRequest {
    pub(crate) key: Key,
    pub(crate) entry_key: EntryKey,
    pub(crate) session: Arc<Session>,
    /// A put of it may still be on its way: it must leave with a tombstone, and its key is not used
    /// again.
    pub(crate) doubt: bool,
    /// It was answered.
    pub(crate) joined: bool,
    pub(crate) leaving: Option<Leaving>,
    /// The create revision and the spot, once they are known.
    at: Option<(i64, Spot)>,
}

impl OwnRequest {
    /// Its spot, once it is known.
    pub(crate) fn spot(&self) -> Option<&Spot> {
        self.at.as_ref().map(|(_, spot)| spot)
    }

    /// The entry is gone: its key may be used again, unless a put may still arrive there.
    pub(crate) fn free_key(&self) {
        if !self.doubt {
            self.session.keys.give(&self.key.lock, self.entry_key.number);
        }
    }
}

/// How far an entry has left.
#[derive(Clone, Copy)]
pub(crate) struct Leaving {
    /// Its lease was alive when it began to leave: nobody else can have ended it since.
    pub(crate) sound: bool,
    /// An earlier attempt had no answer.
    pub(crate) doubt: bool,
}

#[derive(Default)]
pub(crate) struct Entries(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    mine: HashMap<ReqId, OwnRequest>,
    /// The entries in each queue, in its order.
    queues: HashMap<FullName, VecDeque<Arc<OwnEntry>>>,
    /// What shared entries of this client know of the queues they are in.
    known: HashMap<FullName, Known>,
    /// Requests that left: they never join again.
    finished: HashSet<ReqId>,
    /// The same, oldest first.
    forgetting: VecDeque<ReqId>,
}

impl Entries {
    /// A request is about to join: its key and session, the same when it asks again. `None` when it has
    /// left before.
    pub(crate) fn begin(
        &self,
        key: &Key,
        session: &Arc<Session>,
    ) -> Option<(Arc<str>, Arc<Session>)> {
        let mut tables = self.0.lock();
        if tables.finished.contains(&key.req) {
            return None;
        }
        let mine = tables.mine.entry(key.req).or_insert_with(|| {
            session.enter();
            OwnRequest {
                key: key.clone(),
                entry_key: session.take_key(&key.lock),
                session: session.clone(),
                doubt: false,
                joined: false,
                leaving: None,
                at: None,
            }
        });
        Some((mine.entry_key.key.clone(), mine.session.clone()))
    }

    /// Another entry is at the key of a request: the request gets a new key, and that one is not used
    /// again.
    pub(crate) fn change_key(&self, req: &ReqId) {
        if let Some(mine) = self.0.lock().mine.get_mut(req) {
            mine.entry_key = mine.session.take_key(&mine.key.lock);
        }
    }

    /// A join that is out and has no answer yet may arrive at any time.
    pub(crate) fn in_doubt(&self, req: &ReqId) {
        if let Some(mine) = self.0.lock().mine.get_mut(req) {
            mine.doubt = true;
        }
    }

    /// A join was answered; `None` when the request has left meanwhile, else whether a duplicate of
    /// it may still be on its way.
    pub(crate) fn joined(&self, req: &ReqId, doubt: bool) -> Option<bool> {
        let mut tables = self.0.lock();
        let mine = tables.mine.get_mut(req)?;
        mine.doubt |= doubt;
        mine.joined = true;
        mine.leaving.is_none().then_some(mine.doubt)
    }

    /// A request leaves, and never comes back. What it had is kept until that is acknowledged.
    pub(crate) fn leave(
        &self,
        req: &ReqId,
        sound: impl FnOnce(&Session) -> bool,
    ) -> Option<OwnRequest> {
        let mut tables = self.0.lock();
        if tables.finished.insert(*req) {
            tables.forgetting.push_back(*req);
            if tables.forgetting.len() > REMEMBERED
                && let Some(old) = tables.forgetting.pop_front()
            {
                tables.finished.remove(&old);
            }
        }
        let mine = tables.mine.get_mut(req)?;
        if mine.leaving.is_none() {
            mine.leaving = Some(Leaving { sound: sound(&mine.session), doubt: false });
        }
        Some(mine.clone())
    }

    /// An attempt to leave had no answer.
    pub(crate) fn left_in_doubt(&self, req: &ReqId) {
        if let Some(leaving) = self.0.lock().mine.get_mut(req).and_then(|m| m.leaving.as_mut()) {
            leaving.doubt = true;
        }
    }

    /// An entry is gone, or never came to be.
    pub(crate) fn gone(&self, req: &ReqId) -> Option<OwnRequest> {
        let mut tables = self.0.lock();
        let mine = tables.mine.remove(req)?;
        tables.remove(&mine);
        Some(mine)
    }

    pub(crate) fn knows(&self, req: &ReqId) -> bool {
        self.0.lock().mine.contains_key(req)
    }

    /// The keys of the requests on a lease.
    pub(crate) fn keys_on(&self, session: &Arc<Session>) -> HashSet<Arc<str>> {
        let tables = self.0.lock();
        let on_it = tables.mine.values().filter(|m| Arc::ptr_eq(&m.session, session));
        on_it.map(|m| m.entry_key.key.clone()).collect()
    }

    pub(crate) fn get(&self, req: &ReqId) -> Option<OwnRequest> {
        self.0.lock().mine.get(req).cloned()
    }

    /// Everything on a lease that has ended.
    pub(crate) fn end(&self, session: &Arc<Session>) -> Vec<OwnRequest> {
        let mut tables = self.0.lock();
        let on_it = tables.mine.extract_if(|_, m| Arc::ptr_eq(&m.session, session));
        let ended: Vec<_> = on_it.map(|(_, mine)| mine).collect();
        ended.iter().for_each(|mine| tables.remove(mine));
        ended
    }

    /// An entry is in the queue.
    pub(crate) fn insert(&self, req: &ReqId, entry: &Arc<OwnEntry>) {
        let mut tables = self.0.lock();
        let tables = &mut *tables;
        let Some(mine) = tables.mine.get_mut(req).filter(|m| m.at.is_none()) else { return };
        mine.at = Some((entry.created, entry.spot.clone()));
        let queue = tables.queues.entry(mine.key.lock.clone()).or_default();
        let at = queue.partition_point(|e| e.created < entry.created);
        queue.insert(at, entry.clone());
    }

    /// A shared entry has looked at all that is ahead of it.
    pub(crate) fn looked(&self, lock: &FullName, entry: &OwnEntry) {
        let Some(other) = entry.other() else { return };
        let mut tables = self.0.lock();
        let (upto, old) = (entry.created, tables.known.get(lock));
        if tables.queues.contains_key(lock) && old.is_none_or(|k| k.upto < upto) {
            tables.known.insert(lock.clone(), Known { upto, other });
        }
    }

    /// What a shared entry of this client knows of a queue.
    pub(crate) fn known(&self, lock: &FullName) -> Option<Known> {
        self.0.lock().known.get(lock).cloned()
    }

    /// Whether an entry of this client is in the queue.
    pub(crate) fn in_queue(&self, lock: &FullName) -> bool {
        self.0.lock().queues.contains_key(lock)
    }

    /// The next entry of this client behind the one with this create revision.
    pub(crate) fn behind(&self, lock: &FullName, created: i64) -> Option<Arc<OwnEntry>> {
        let tables = self.0.lock();
        let queue = tables.queues.get(lock)?;
        queue.get(queue.partition_point(|e| e.created <= created)).cloned()
    }
}

impl Tables {
    fn remove(&mut self, mine: &OwnRequest) {
        let Some((created, _)) = mine.at else { return };
        let Some(queue) = self.queues.get_mut(&mine.key.lock) else { return };
        let at = queue.partition_point(|e| e.created < created);
        if queue.get(at).is_some_and(|e| e.created == created) {
            queue.remove(at);
        }
        if queue.is_empty() {
            self.queues.remove(&mine.key.lock);
            self.known.remove(&mine.key.lock);
        }
    }
}
