//! What this client has in all lines, as far as the store knows or may know.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::backend::Key;
use distlock_core::queue::Spot;
use distlock_core::{FullName, ReqId};

use crate::own_entry::Place;
use crate::reusable_keys::Seat;
use crate::session::Session;
use crate::txn::Known;

/// So many requests that left are remembered. One that comes back later than that was kept waiting
/// by nobody but its own caller.
const REMEMBERED: usize = 10_000;

/// An entry, or one that may come to be.
#[derive(Clone)]
pub(crate) struct Mine {
    pub(crate) key: Key,
    pub(crate) seat: Seat,
    pub(crate) session: Arc<Session>,
    /// A put of it may still be on its way: it must leave with a tombstone, and nobody gets its seat.
    pub(crate) doubt: bool,
    /// It was answered.
    pub(crate) joined: bool,
    pub(crate) leaving: Option<Leaving>,
    /// The create revision and the spot, once they are known.
    at: Option<(i64, Spot)>,
}

impl Mine {
    /// Its stay at its seat, once it is known.
    pub(crate) fn spot(&self) -> Option<&Spot> {
        self.at.as_ref().map(|(_, spot)| spot)
    }

    /// It is gone from its seat: the next may have it, unless something may still arrive there.
    pub(crate) fn vacate(&self) {
        if !self.doubt {
            self.session.seats.give(&self.key.lock, self.seat.number);
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
    mine: HashMap<ReqId, Mine>,
    /// Those that stand in line, in its order.
    lines: HashMap<FullName, VecDeque<Arc<Place>>>,
    /// What is known of the lines that they stand in, by those of them that are shared.
    known: HashMap<FullName, Known>,
    spent: HashSet<ReqId>,
    forgetting: VecDeque<ReqId>,
}

impl Entries {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to join: where, which stays so when it asks again. `None` when it has left
    /// before.
    pub(crate) fn begin(
        &self,
        key: &Key,
        session: &Arc<Session>,
    ) -> Option<(Arc<str>, Arc<Session>)> {
        let mut tables = self.tables();
        if tables.spent.contains(&key.req) {
            return None;
        }
        let mine = tables.mine.entry(key.req).or_insert_with(|| {
            session.enter();
            let (seat, key, session) = (session.seat(&key.lock), key.clone(), session.clone());
            Mine { key, seat, session, doubt: false, joined: false, leaving: None, at: None }
        });
        Some((mine.seat.key.clone(), mine.session.clone()))
    }

    /// Somebody else sits where a request was to: it gets another seat, and nobody that one.
    pub(crate) fn reseat(&self, req: &ReqId) {
        if let Some(mine) = self.tables().mine.get_mut(req) {
            mine.seat = mine.session.seat(&mine.key.lock);
        }
    }

    /// A join that is out and has no answer yet may arrive at any time.
    pub(crate) fn in_doubt(&self, req: &ReqId) {
        if let Some(mine) = self.tables().mine.get_mut(req) {
            mine.doubt = true;
        }
    }

    /// A join was answered; `None` when the request has left meanwhile, else whether a duplicate of
    /// it may still be on its way.
    pub(crate) fn joined(&self, req: &ReqId, doubt: bool) -> Option<bool> {
        let mut tables = self.tables();
        let mine = tables.mine.get_mut(req)?;
        mine.doubt |= doubt;
        mine.joined = true;
        mine.leaving.is_none().then_some(mine.doubt)
    }

    /// A request leaves, and never comes back. What it had is kept until that is acknowledged.
    pub(crate) fn leave(&self, req: &ReqId, sound: impl FnOnce(&Session) -> bool) -> Option<Mine> {
        let mut tables = self.tables();
        if tables.spent.insert(*req) {
            tables.forgetting.push_back(*req);
            if tables.forgetting.len() > REMEMBERED
                && let Some(old) = tables.forgetting.pop_front()
            {
                tables.spent.remove(&old);
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
        if let Some(leaving) = self.tables().mine.get_mut(req).and_then(|m| m.leaving.as_mut()) {
            leaving.doubt = true;
        }
    }

    /// An entry is gone, or never came to be.
    pub(crate) fn gone(&self, req: &ReqId) -> Option<Mine> {
        let mut tables = self.tables();
        let mine = tables.mine.remove(req)?;
        tables.unseat(&mine);
        Some(mine)
    }

    pub(crate) fn knows(&self, req: &ReqId) -> bool {
        self.tables().mine.contains_key(req)
    }

    /// Where the requests of a lease sit.
    pub(crate) fn seats(&self, session: &Arc<Session>) -> HashSet<Arc<str>> {
        let tables = self.tables();
        let on_it = tables.mine.values().filter(|m| Arc::ptr_eq(&m.session, session));
        on_it.map(|m| m.seat.key.clone()).collect()
    }

    pub(crate) fn get(&self, req: &ReqId) -> Option<Mine> {
        self.tables().mine.get(req).cloned()
    }

    /// Everything on a lease that has ended.
    pub(crate) fn end(&self, session: &Arc<Session>) -> Vec<Mine> {
        let mut tables = self.tables();
        let on_it = |m: &Mine| Arc::ptr_eq(&m.session, session);
        let reqs: Vec<_> =
            tables.mine.iter().filter(|(_, m)| on_it(m)).map(|(req, _)| *req).collect();
        let ended: Vec<_> = reqs.iter().filter_map(|req| tables.mine.remove(req)).collect();
        ended.iter().for_each(|mine| tables.unseat(mine));
        ended
    }

    /// A request has its place in line.
    pub(crate) fn seat(&self, req: &ReqId, place: &Arc<Place>) {
        let mut tables = self.tables();
        let tables = &mut *tables;
        let Some(mine) = tables.mine.get_mut(req).filter(|m| m.at.is_none()) else { return };
        mine.at = Some((place.created, place.spot.clone()));
        let line = tables.lines.entry(mine.key.lock.clone()).or_default();
        let at = line.partition_point(|p| p.created < place.created);
        line.insert(at, place.clone());
    }

    /// A shared entry has looked at all that is ahead of it.
    pub(crate) fn looked(&self, lock: &FullName, place: &Place) {
        let Some(other) = place.other() else { return };
        let mut tables = self.tables();
        let (upto, old) = (place.created, tables.known.get(lock));
        if tables.lines.contains_key(lock) && old.is_none_or(|k| k.upto < upto) {
            tables.known.insert(lock.clone(), Known { upto, other });
        }
    }

    /// What is known of a line.
    pub(crate) fn known(&self, lock: &FullName) -> Option<Known> {
        self.tables().known.get(lock).cloned()
    }

    /// Whether anybody of this client stands in a line.
    pub(crate) fn in_line(&self, lock: &FullName) -> bool {
        self.tables().lines.contains_key(lock)
    }

    /// The next of this client behind a place.
    pub(crate) fn behind(&self, lock: &FullName, created: i64) -> Option<Arc<Place>> {
        let tables = self.tables();
        let line = tables.lines.get(lock)?;
        line.get(line.partition_point(|p| p.created <= created)).cloned()
    }
}

impl Tables {
    fn unseat(&mut self, mine: &Mine) {
        let Some((created, _)) = mine.at else { return };
        let Some(line) = self.lines.get_mut(&mine.key.lock) else { return };
        let at = line.partition_point(|p| p.created < created);
        if line.get(at).is_some_and(|p| p.created == created) {
            line.remove(at);
        }
        if line.is_empty() {
            self.lines.remove(&mine.key.lock);
            self.known.remove(&mine.key.lock);
        }
    }
}
