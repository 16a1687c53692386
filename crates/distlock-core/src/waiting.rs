//! The waiters of one client: who they are, how they are woken, and their one shared heartbeat.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::BootInstant;
use crate::ids::ReqId;
use crate::seam::Key;
use crate::simulation::HashMap;

/// The requests of one client that stand in line.
#[derive(Default)]
pub(crate) struct Waiting {
    entries: Mutex<HashMap<ReqId, Arc<Entry>>>,
    beating: AtomicBool,
    /// The shortest wait-lease the heartbeat knows of, in nanoseconds.
    shortest: AtomicU64,
    /// Rung when a shorter one came while the heartbeat slept.
    pub(crate) hurry: Notify,
}

/// One request in line.
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) wait_lease: Duration,
    /// Rung when the request should ask again. It keeps one ring, so none is missed between an
    /// answer and the wait that follows it.
    pub(crate) bell: Notify,
    /// Wants to know of every change of its place, not only of its turn.
    pub(crate) curious: bool,
    /// Its place when last heard.
    pub(crate) ahead: AtomicU32,
    /// When the last question was sent whose answer said that it stands in line, its own or the
    /// heartbeat's, in nanoseconds since boot; nothing before the first.
    heard: AtomicU64,
}

impl Entry {
    /// The store knew of it at or after this moment.
    pub(crate) fn heard_of(&self, sent: BootInstant) {
        self.heard.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Whether the store still keeps its place although a question went unanswered.
    pub(crate) fn keeps_its_place(&self, now: BootInstant) -> bool {
        let heard = self.heard.load(Ordering::Acquire);
        heard > 0 && now.since(BootInstant::from_nanos(heard)) < self.wait_lease
    }
}

/// Takes its entry off the list when dropped.
pub(crate) struct Joined {
    waiting: Arc<Waiting>,
    pub(crate) entry: Arc<Entry>,
}

impl Waiting {
    fn entries(&self) -> MutexGuard<'_, HashMap<ReqId, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request on the list, before it is sent: a wake-up may come before its answer.
    pub(crate) fn join(self: &Arc<Self>, key: Key, wait_lease: Duration, curious: bool) -> Joined {
        let ahead = AtomicU32::new(u32::MAX);
        let (bell, heard) = (Notify::new(), AtomicU64::new(0));
        let entry = Arc::new(Entry { key, wait_lease, bell, curious, ahead, heard });
        self.entries().insert(entry.key.req, entry.clone());
        Joined { waiting: self.clone(), entry }
    }

    pub(crate) fn ring(&self, req: &ReqId) {
        if let Some(entry) = self.entries().get(req) {
            entry.bell.notify_one();
        }
    }

    pub(crate) fn ring_all(&self) {
        self.entries().values().for_each(|e| e.bell.notify_one());
    }

    /// Those the store has heard of. Whose first question is under way needs no heartbeat: a store
    /// that does not know it yet would say so, and it would ask a second time for nothing.
    pub(crate) fn in_line(&self) -> Vec<Arc<Entry>> {
        let heard = |e: &&Arc<Entry>| e.heard.load(Ordering::Acquire) > 0;
        self.entries().values().filter(heard).cloned().collect()
    }

    /// Whether the caller is to start the heartbeat: true for one at a time. One that beats too
    /// slowly for this wait-lease is told to hurry.
    pub(crate) fn start_beating(&self, wait_lease: Duration) -> bool {
        if !self.beating.swap(true, Ordering::AcqRel) {
            return true;
        }
        if nanos(wait_lease) < self.shortest.load(Ordering::Acquire) {
            self.hurry.notify_one();
        }
        false
    }

    /// The shortest wait-lease of all who wait now; whoever comes later compares with it.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        // Longest of all while it is looked for, so that nobody who comes meanwhile is missed.
        self.shortest.store(u64::MAX, Ordering::Release);
        let shortest = self.entries().values().map(|e| e.wait_lease).min();
        self.shortest.store(shortest.map_or(u64::MAX, nanos), Ordering::Release);
        shortest
    }

    /// Ends the heartbeat if nobody waits; false when somebody came meanwhile.
    pub(crate) fn stop_beating_if_empty(&self) -> bool {
        let entries = self.entries();
        if entries.is_empty() {
            self.beating.store(false, Ordering::Release);
        }
        entries.is_empty()
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.waiting.entries().remove(&self.entry.key.req);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FullName;

    #[test]
    fn who_has_only_just_asked_is_not_in_line_yet() {
        let waiting = Arc::new(Waiting::default());
        let lock = FullName { space: Default::default(), name: "a".parse().unwrap() };
        let key = Key { lock, req: ReqId::random() };
        let joined = waiting.join(key, Duration::from_secs(1), false);
        assert!(waiting.in_line().is_empty());
        joined.entry.heard_of(BootInstant::from_nanos(1));
        assert_eq!(waiting.in_line().len(), 1);
    }
}
