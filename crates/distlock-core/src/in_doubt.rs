//! Requests of which a copy may still arrive: one that was never answered, repeated by the driver or
//! by the store itself.
//!
//! A hold that is given back by a plain release would be granted to the late copy once the store has
//! forgotten the release, which it does after a few others; a cancelled request is remembered for
//! certain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{BootInstant, Clock, HashMap, Mutex, ReqId};

/// No question is under way for longer: a hold that was detached is forgotten then.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// No call is bounded by more. A store may tell of a repetition when its caller has gone already, and
/// even been cancelled: nobody asks about that one.
const UNANSWERED: Duration = Duration::from_secs(300);
/// How often entries that are over are looked for.
const SWEEP: Duration = Duration::from_secs(60);

pub(crate) struct InDoubt {
    clock: Clock,
    /// Whether there is one: nearly always there is none, and a release takes no lock.
    any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_req: HashMap<ReqId, Entry>,
    swept: Option<BootInstant>,
}

struct Entry {
    since: BootInstant,
    /// The store has sent an acquire again that is under way.
    repeated: bool,
    /// What it was granted.
    granted: Option<Doubt>,
}

/// A grant whose request may arrive once more.
#[derive(Clone, Copy)]
pub(crate) struct Doubt {
    pub(crate) ttl: Duration,
    /// A release before this frees the lock only then.
    pub(crate) min_until: BootInstant,
}

impl InDoubt {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, any: AtomicBool::new(false), table: Mutex::default() }
    }

    /// A request was granted.
    pub(crate) fn add(&self, req: ReqId, doubt: Doubt) {
        self.change(|table, now| {
            table.entry(req, now).granted = Some(doubt);
        });
    }

    pub(crate) fn about(&self, req: &ReqId) -> Option<Doubt> {
        self.look(|table| table.by_req.get(req)?.granted)?
    }

    /// The store sends an acquire again that is under way.
    pub(crate) fn repeat(&self, req: ReqId) {
        self.change(|table, now| table.entry(req, now).repeated = true);
    }

    /// Whether the store has sent an acquire again that has just been answered.
    pub(crate) fn was_repeated(&self, req: &ReqId) -> bool {
        let was = self.look(|table| {
            let entry = table.by_req.get_mut(req)?;
            let was = std::mem::take(&mut entry.repeated);
            if entry.granted.is_none() {
                table.by_req.remove(req);
            }
            Some(was)
        });
        was.flatten().unwrap_or(false)
    }

    /// The request was cancelled: no copy of it comes to anything.
    pub(crate) fn settle(&self, req: &ReqId) {
        self.look(|table| table.by_req.remove(req));
    }

    /// Nothing when there is no doubt at all.
    fn look<T>(&self, what: impl FnOnce(&mut Table) -> T) -> Option<T> {
        self.any.load(Ordering::Acquire).then(|| self.change(|table, _| what(table)))
    }

    fn change<T>(&self, what: impl FnOnce(&mut Table, BootInstant) -> T) -> T {
        let mut table = self.table.lock();
        let now = self.clock.now();
        table.sweep(now);
        let done = what(&mut table, now);
        self.any.store(!table.by_req.is_empty(), Ordering::Release);
        done
    }
}

impl Table {
    fn entry(&mut self, req: ReqId, now: BootInstant) -> &mut Entry {
        let new = Entry { since: now, repeated: false, granted: None };
        let entry = self.by_req.entry(req).or_insert(new);
        entry.since = now;
        entry
    }

    fn sweep(&mut self, now: BootInstant) {
        if self.swept.is_some_and(|at| now.since(at) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        self.by_req.retain(|_, entry| {
            let kept = if entry.granted.is_some() { FORGOTTEN } else { UNANSWERED };
            now.since(entry.since) < kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn of(doubts: &InDoubt) -> usize {
        assert_eq!(doubts.any.load(Ordering::Acquire), !doubts.table.lock().by_req.is_empty());
        doubts.table.lock().by_req.len()
    }

    #[test]
    fn a_repetition_told_after_its_request_was_cancelled_is_forgotten() {
        let clock = Clock::held();
        let doubts = InDoubt::new(clock.clone());
        let (gone, asked) = (ReqId::random(), ReqId::random());
        doubts.repeat(gone);
        doubts.settle(&gone);
        doubts.repeat(gone);
        clock.advance(UNANSWERED);
        doubts.repeat(asked);
        assert_eq!(of(&doubts), 1, "of the one that was cancelled nobody will ask");
        assert!(doubts.was_repeated(&asked) && !doubts.was_repeated(&asked));
        assert_eq!(of(&doubts), 0);
    }

    #[test]
    fn a_grant_in_doubt_is_known_until_it_is_settled_or_over() {
        let clock = Clock::held();
        let doubts = InDoubt::new(clock.clone());
        let (one, other) = (ReqId::random(), ReqId::random());
        for req in [one, other] {
            doubts.repeat(req);
            assert!(doubts.was_repeated(&req));
            doubts.add(req, Doubt { ttl: TTL, min_until: clock.now() });
        }
        clock.advance(UNANSWERED);
        assert!(doubts.about(&one).is_some_and(|doubt| doubt.ttl == TTL));
        assert!(!doubts.was_repeated(&one) && doubts.about(&one).is_some());
        doubts.settle(&one);
        assert!(doubts.about(&one).is_none());
        clock.advance(FORGOTTEN);
        assert!(doubts.about(&other).is_none());
        assert_eq!(of(&doubts), 0);
    }
}
