//! The queue of a lock: its waiters in the order of arrival.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::{Micros, Waiter};
use crate::{HashMap, Owner, ReqId};

/// The waiters of a lock, in the order of their `since`.
///
/// Reads like a [`VecDeque`]. A store that keeps its states in memory also has an index made
/// ([`index`](Self::index)), so that no operation walks a long queue; one that reads the state anew
/// for each operation walks it then anyway. A store that writes a queue by difference has the
/// changes recorded ([`record`](Self::record)).
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Queue {
    waiters: VecDeque<Waiter>,
    #[serde(skip)]
    index: Option<Box<Index>>,
    /// The `since` of each waiter that was added, changed or removed, if changes are recorded.
    #[serde(skip)]
    changes: Option<Vec<Micros>>,
}

#[derive(Debug, Default)]
struct Index {
    /// The place of each request, as its `since`.
    since: HashMap<ReqId, Micros>,
    /// How many waiters an owner has.
    owners: HashMap<Owner, u32>,
    /// No waiter's deadline is before this.
    soonest: Option<Micros>,
}

impl Index {
    fn add(&mut self, w: &Waiter) {
        self.since.insert(w.claim.req, w.since);
        *self.owners.entry(w.claim.owner.clone()).or_default() += 1;
        self.soonest = Some(self.soonest.map_or(w.deadline, |s| s.min(w.deadline)));
    }

    fn remove(&mut self, w: &Waiter) {
        self.since.remove(&w.claim.req);
        if let Some(n) = self.owners.get_mut(&w.claim.owner) {
            *n -= 1;
            if *n == 0 {
                self.owners.remove(&w.claim.owner);
            }
        }
    }
}

impl Queue {
    /// Makes an index, unless there is one: it is kept up to date from then on.
    pub fn index(&mut self) {
        if self.index.is_none() {
            let mut index = Box::<Index>::default();
            self.waiters.iter().for_each(|w| index.add(w));
            self.index = Some(index);
        }
    }

    /// Records from now on which waiters are added, changed or removed.
    pub fn record(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// The `since` of each waiter that changed since the last call, in order and without repeats.
    pub fn take_changes(&mut self) -> Vec<Micros> {
        let mut changes = self.changes.as_mut().map(std::mem::take).unwrap_or_default();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// The waiter with this `since`.
    #[must_use]
    pub fn at(&self, since: Micros) -> Option<&Waiter> {
        self.find(since).map(|place| &self.waiters[place])
    }

    fn find(&self, since: Micros) -> Option<usize> {
        let place = self.waiters.partition_point(|w| w.since < since);
        self.waiters.get(place).is_some_and(|w| w.since == since).then_some(place)
    }

    /// Adds a waiter, in place of one with the same `since`.
    pub fn put(&mut self, waiter: Waiter) {
        self.take(waiter.since);
        self.insert(waiter);
    }

    /// Takes out the waiter with this `since`.
    pub fn take(&mut self, since: Micros) -> Option<Waiter> {
        self.remove(self.find(since)?)
    }

    /// The place of a request, from the front.
    #[must_use]
    pub fn place(&self, req: &ReqId) -> Option<usize> {
        match &self.index {
            // From the back, where a new waiter is.
            None => self.waiters.iter().rposition(|w| w.claim.req == *req),
            Some(index) => {
                let since = index.since.get(req)?;
                Some(self.waiters.partition_point(|w| w.since < *since))
            }
        }
    }

    /// Whether an owner may have waiters here; never a wrong no.
    pub(super) fn may_have(&self, owner: &Owner) -> bool {
        self.index.as_ref().is_none_or(|i| i.owners.contains_key(owner))
    }

    /// Puts a waiter where its `since` belongs.
    pub(super) fn insert(&mut self, waiter: Waiter) {
        self.changes.iter_mut().for_each(|c| c.push(waiter.since));
        if let Some(index) = &mut self.index {
            index.add(&waiter);
        }
        match self.waiters.back() {
            Some(last) if last.since >= waiter.since => {
                let place = self.waiters.partition_point(|w| w.since < waiter.since);
                self.waiters.insert(place, waiter);
            }
            _ => self.waiters.push_back(waiter),
        }
    }

    /// Takes out the waiter at a place.
    pub(super) fn remove(&mut self, place: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(place)?;
        self.changes.iter_mut().for_each(|c| c.push(waiter.since));
        if self.waiters.is_empty() {
            self.index = None;
        } else if let Some(index) = &mut self.index {
            index.remove(&waiter);
        }
        Some(waiter)
    }

    /// Takes out a request, if it waits.
    pub(super) fn leave(&mut self, req: &ReqId) {
        if let Some(place) = self.place(req) {
            self.remove(place);
        }
    }

    /// Hears of the waiter at a place: it may wait until then, and is reachable again.
    pub(super) fn hear(&mut self, place: usize, deadline: Micros) -> &mut Waiter {
        let waiter = &mut self.waiters[place];
        self.changes.iter_mut().for_each(|c| c.push(waiter.since));
        waiter.deadline = waiter.deadline.max(deadline);
        waiter.unreachable = false;
        waiter
    }

    /// Drops waiters whose deadline has passed.
    pub(super) fn drop_silent(&mut self, now: Micros) {
        // Deadlines only rise, so nobody is before the soonest that was ever seen.
        if let Some(Index { soonest, .. }) = self.index.as_deref()
            && soonest.is_none_or(|s| s > now)
        {
            return;
        }
        let Self { waiters, index, changes } = self;
        let mut index = index.as_deref_mut();
        let mut soonest: Option<Micros> = None;
        waiters.retain(|w| {
            let lives = w.deadline > now;
            if lives {
                soonest = Some(soonest.map_or(w.deadline, |s| s.min(w.deadline)));
            } else {
                index.iter_mut().for_each(|index| index.remove(w));
                changes.iter_mut().for_each(|c| c.push(w.since));
            }
            lives
        });
        if let Some(index) = index {
            index.soonest = soonest;
        }
    }

    /// The waiters, to be told where they are reached; their order and deadlines stay.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.waiters.iter_mut()
    }
}

impl Deref for Queue {
    type Target = VecDeque<Waiter>;

    fn deref(&self) -> &VecDeque<Waiter> {
        &self.waiters
    }
}

impl Clone for Queue {
    /// Without the index and the recorded changes.
    fn clone(&self) -> Self {
        self.waiters.iter().cloned().collect()
    }
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.waiters == other.waiters
    }
}

impl Eq for Queue {}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.waiters.hash(state);
    }
}

impl FromIterator<Waiter> for Queue {
    fn from_iter<I: IntoIterator<Item = Waiter>>(waiters: I) -> Self {
        Self { waiters: waiters.into_iter().collect(), ..Self::default() }
    }
}

impl Extend<Waiter> for Queue {
    /// At the end, whatever their `since`.
    fn extend<I: IntoIterator<Item = Waiter>>(&mut self, waiters: I) {
        self.index = None;
        self.waiters.extend(waiters);
    }
}

impl IntoIterator for Queue {
    type Item = Waiter;
    type IntoIter = std::collections::vec_deque::IntoIter<Waiter>;

    fn into_iter(self) -> Self::IntoIter {
        self.waiters.into_iter()
    }
}

impl<'a> IntoIterator for &'a Queue {
    type Item = &'a Waiter;
    type IntoIter = std::collections::vec_deque::Iter<'a, Waiter>;

    fn into_iter(self) -> Self::IntoIter {
        self.waiters.iter()
    }
}
