//! The holds that a renewer looks after, in the order in which something is to be done about them.
//!
//! One ordered entry for each hold, so that a wake-up costs what is due and not what is held. What is
//! due waits by server, the most urgent first, until one of that server's calls is free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::guard::HoldRecord;
use crate::simulation::HashMap;
use crate::{BootInstant, ClockReading, ReqId};

/// Max holds in one renewal call: what one timeout can cost.
pub(crate) const CHUNK: usize = 256;
/// Max renewal calls under way at one server.
pub(crate) const UNDER_WAY: usize = 8;
/// Max holds that are looked at to fill a call with what is due soon.
const LOOK_AHEAD: usize = 4 * CHUNK;
/// The wall was stepped if it moved this much against the boot-time clock: all ends are computed
/// anew. Less is drift, and costs a loss that is told that much late; `check` is exact in any case.
const STEPPED: u64 = 10_000_000;

#[derive(Default)]
pub(crate) struct RenewalSchedule {
    entries: HashMap<ReqId, Entry>,
    /// When to look at each entry again.
    order: BTreeSet<(BootInstant, ReqId)>,
    due: HashMap<u64, DueAtServer>,
    /// The longest TTL of all that were added since there was none.
    longest: Duration,
    /// The wall less the boot-time clock, in nanoseconds, as of the last look.
    offset: Option<u64>,
}

pub(crate) struct Entry {
    pub(crate) hold: Arc<HoldRecord>,
    /// When it is to be asked about; never, for one that must run out and is not in doubt.
    pub(crate) next: BootInstant,
    /// Whether asking makes its lease longer.
    pub(crate) renew: bool,
    pub(crate) tries: u32,
    shard: u64,
    stage: Stage,
    /// Its place in the order.
    at: BootInstant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// In the queue of its server, under this deadline.
    Due(BootInstant),
    InFlight,
}

/// What waits for a renewal call at one server.
#[derive(Default)]
struct DueAtServer {
    queue: BTreeSet<(BootInstant, ReqId)>,
    under_way: usize,
}

/// One renewal call to be made.
pub(crate) struct Call {
    pub(crate) shard: u64,
    /// Each with whether its lease is to be made longer.
    pub(crate) holds: Vec<(Arc<HoldRecord>, bool)>,
}

/// What a look at the schedule found.
pub(crate) struct Plan {
    pub(crate) ended: Vec<Arc<HoldRecord>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) wake: BootInstant,
}

impl RenewalSchedule {
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<HoldRecord>> {
        self.entries.values().map(|e| &e.hold)
    }

    /// Puts a hold on the schedule; the one that had its place before, and when to look at it.
    pub(crate) fn add(
        &mut self,
        hold: Arc<HoldRecord>,
        shard: u64,
        next: BootInstant,
        renew: bool,
        now: ClockReading,
    ) -> (Option<Arc<HoldRecord>>, BootInstant) {
        let req = hold.key.req;
        let old = self.remove(&req);
        self.offset = self.offset.or(offset(now));
        self.longest = self.longest.max(hold.ttl);
        let stage = Stage::Idle;
        let mut entry = Entry { hold, next, renew, tries: 0, shard, stage, at: next };
        entry.at = entry.when(now);
        let at = entry.at;
        self.order.insert((at, req));
        self.entries.insert(req, entry);
        (old, at)
    }

    /// Takes a hold off the schedule.
    pub(crate) fn remove(&mut self, req: &ReqId) -> Option<Arc<HoldRecord>> {
        let entry = self.entries.remove(req)?;
        self.order.remove(&(entry.at, *req));
        if let Stage::Due(deadline) = entry.stage
            && let Some(server) = self.due.get_mut(&entry.shard)
        {
            server.queue.remove(&(deadline, *req));
        }
        if self.entries.is_empty() {
            self.longest = Duration::ZERO;
        }
        Some(entry.hold)
    }

    /// Whether this very hold is on the schedule.
    pub(crate) fn has(&self, hold: &Arc<HoldRecord>) -> bool {
        self.entries.get(&hold.key.req).is_some_and(|e| Arc::ptr_eq(&e.hold, hold))
    }

    /// The hold of a request.
    pub(crate) fn hold(&self, req: &ReqId) -> Option<&Arc<HoldRecord>> {
        self.entries.get(req).map(|e| &e.hold)
    }

    /// The hold that is on the schedule by the lease of this one: itself, or a later holder's.
    pub(crate) fn current(&self, hold: &Arc<HoldRecord>) -> Option<&Arc<HoldRecord>> {
        let current = self.hold(&hold.key.req)?;
        let same = Arc::ptr_eq(current, hold) || current.is_of_the_lease_of(hold);
        same.then_some(current)
    }

    /// A hold takes the place of another of the same request, renewals under way included.
    pub(crate) fn replace(&mut self, next: &Arc<HoldRecord>) {
        if let Some(entry) = self.entries.get_mut(&next.key.req) {
            entry.hold = next.clone();
        }
    }

    /// Changes an entry, which may change when to look at it.
    pub(crate) fn change<T>(
        &mut self,
        req: &ReqId,
        now: ClockReading,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_mut(req)?;
        let done = change(entry);
        let at = entry.when(now);
        if at != entry.at {
            self.order.remove(&(entry.at, *req));
            entry.at = at;
            self.order.insert((at, *req));
        }
        Some(done)
    }

    /// A call at a server is over.
    pub(crate) fn call_ended(&mut self, shard: u64) {
        if let Some(server) = self.due.get_mut(&shard) {
            server.under_way = server.under_way.saturating_sub(1);
        }
    }

    /// Expires finished holds, selects due renewals, and tells when to look again.
    pub(crate) fn plan(&mut self, now: ClockReading) -> Plan {
        self.heed_the_wall(now);
        let (mut ended, mut fresh) = (Vec::new(), 0);
        while let Some(&(at, req)) = self.order.first().filter(|(at, _)| *at <= now.boot) {
            let Some(entry) = self.entries.get(&req) else {
                self.order.remove(&(at, req));
                continue;
            };
            // Its holder may have looked first, and latched it.
            if entry.hold.is_lost() || entry.is_over(now) {
                ended.extend(self.remove(&req));
            } else if entry.stage == Stage::Idle && entry.next <= now.boot {
                self.make_due(&req, now);
                fresh += 1;
            } else {
                self.change(&req, now, |_| ());
            }
        }
        if (1..CHUNK).contains(&fresh) {
            self.take_along(CHUNK - fresh, now);
        }
        let calls = self.calls(now.boot);
        let wake = self.order.first().map_or(BootInstant::FAR, |(at, _)| *at);
        Plan { ended, calls, wake }
    }

    /// Whatever is due soon goes along with what is due now: one call for all.
    fn take_along(&mut self, at_most: usize, now: ClockReading) {
        let soon = |e: &Entry| e.stage == Stage::Idle && e.next <= now.boot.plus(e.hold.ttl / 6);
        let horizon = (now.boot.plus(self.longest / 6), ReqId::from_bytes([0xff; 16]));
        let near = self.order.range(..=horizon).take(LOOK_AHEAD).map(|(_, req)| req);
        let along = near.filter(|req| self.entries.get(*req).is_some_and(soon));
        for req in along.take(at_most).copied().collect::<Vec<_>>() {
            self.make_due(&req, now);
        }
    }

    fn make_due(&mut self, req: &ReqId, now: ClockReading) {
        let found = self.change(req, now, |entry| {
            let deadline = entry.hold.deadline();
            entry.stage = Stage::Due(deadline);
            (entry.shard, deadline)
        });
        if let Some((shard, deadline)) = found {
            self.due.entry(shard).or_default().queue.insert((deadline, *req));
        }
    }

    fn calls(&mut self, now: BootInstant) -> Vec<Call> {
        let mut calls = Vec::new();
        for (&shard, server) in &mut self.due {
            while server.under_way < UNDER_WAY && !server.queue.is_empty() {
                let mut holds = Vec::new();
                for req in server.next_call(now) {
                    if let Some(entry) = self.entries.get_mut(&req) {
                        entry.stage = Stage::InFlight;
                        holds.push((entry.hold.clone(), entry.renew));
                    }
                }
                server.under_way += 1;
                calls.push(Call { shard, holds });
            }
        }
        self.due.retain(|_, server| server.under_way > 0 || !server.queue.is_empty());
        calls
    }

    /// Ends that were computed before a step of the wall are wrong by it.
    fn heed_the_wall(&mut self, now: ClockReading) {
        let Some(offset) = offset(now) else { return };
        let before = *self.offset.get_or_insert(offset);
        let moved = offset.wrapping_sub(before).cast_signed().unsigned_abs();
        if moved < STEPPED {
            return;
        }
        self.offset = Some(offset);
        self.order.clear();
        for (req, entry) in &mut self.entries {
            entry.at = entry.when(now);
            self.order.insert((entry.at, *req));
        }
    }
}

/// The wall less the boot-time clock, in nanoseconds; only its changes mean anything.
fn offset(now: ClockReading) -> Option<u64> {
    let wall = u64::try_from(now.wall?.as_nanos()).unwrap_or(u64::MAX);
    Some(wall.wrapping_sub(now.boot.as_nanos()))
}

impl DueAtServer {
    /// The most urgent, and with it those that cannot wait much longer: the patience of one call is
    /// that of its most pressing hold, and a chunk of long leases may need more than a short one has.
    fn next_call(&mut self, now: BootInstant) -> Vec<ReqId> {
        let mut call = Vec::new();
        let mut horizon = None;
        while call.len() < CHUNK
            && let Some((deadline, req)) = self.queue.first().copied()
        {
            let left = deadline.since(now);
            if left > *horizon.get_or_insert(left * 4) {
                break;
            }
            self.queue.pop_first();
            call.push(req);
        }
        call
    }
}

impl Entry {
    fn is_over(&self, now: ClockReading) -> bool {
        self.hold.left(now).is_zero()
    }

    /// The answer to its renewal came, or none will.
    pub(crate) fn answered(&mut self, next: BootInstant) {
        self.stage = Stage::Idle;
        self.next = if self.renew || self.tries > 0 { next } else { BootInstant::FAR };
    }

    /// When something is to be done about it: a renewal, or to say that it is over.
    fn when(&self, now: ClockReading) -> BootInstant {
        let end = now.boot.plus(self.hold.left(now));
        if self.stage == Stage::Idle { self.next.min(end) } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Grant, Key, Lease};
    use crate::clock::Clock;
    use crate::observe::Observer;
    use crate::token::{Token, TokenRange};
    use crate::{FullName, Name, Namespace};

    fn hold(clock: &Clock, ttl: Duration) -> Arc<HoldRecord> {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let key = Key { lock, req: ReqId::random() };
        let (sent, margin) = (clock.reading(), Duration::ZERO);
        let tokens = TokenRange::one(Token::MIN);
        let grant = Grant { req: key.req, tokens, lease: Lease { sent, ttl, margin }, waiters: 0 };
        Arc::new(HoldRecord::new(
            key,
            &grant,
            ttl,
            None,
            clock.clone(),
            Observer::new("memory", false),
        ))
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_most_urgent_go_first_and_few_calls_are_under_way() {
        let (clock, mut schedule) = (Clock::held(), RenewalSchedule::default());
        let due = clock.now().plus(SECOND);
        for i in 0..3000 {
            let ttl = SECOND * 60 + Duration::from_millis(i);
            schedule.add(hold(&clock, ttl), 0, due, true, clock.reading());
        }
        clock.advance(SECOND);
        let calls = schedule.plan(clock.reading()).calls;
        assert_eq!(calls.iter().map(|c| c.holds.len()).collect::<Vec<_>>(), [CHUNK; UNDER_WAY]);
        let latest = calls.iter().flat_map(|c| &c.holds).map(|(h, _)| h.ttl).max().unwrap();
        assert!(latest < SECOND * 60 + Duration::from_millis((CHUNK * UNDER_WAY) as u64));
        // A hold that is more urgent than all that wait for a call gets the next one.
        let urgent = hold(&clock, SECOND);
        schedule.add(urgent.clone(), 0, clock.now(), true, clock.reading());
        assert!(schedule.plan(clock.reading()).calls.is_empty(), "all calls are under way");
        schedule.call_ended(0);
        let next = schedule.plan(clock.reading()).calls;
        assert!(next.len() == 1 && Arc::ptr_eq(&next[0].holds[0].0, &urgent));
        assert_eq!(next[0].holds.len(), 1, "its patience is not that of the others");
    }

    #[test]
    fn a_step_of_the_wall_is_seen_by_all() {
        let (clock, mut schedule) = (Clock::held(), RenewalSchedule::default());
        for _ in 0..10 {
            schedule.add(hold(&clock, SECOND * 60), 0, BootInstant::FAR, false, clock.reading());
        }
        let plan = schedule.plan(clock.reading());
        assert_eq!(plan.wake, clock.now().plus(SECOND * 60));
        clock.step_wall(30);
        let plan = schedule.plan(clock.reading());
        assert!(plan.ended.is_empty() && plan.wake == clock.now().plus(SECOND * 30));
        clock.step_wall(30);
        assert_eq!(schedule.plan(clock.reading()).ended.len(), 10);
    }
}
