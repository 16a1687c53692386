//! The waiters of one client: who they are, how they are woken, and when each is to be heard of.
//!
//! Waiters share heartbeat calls, but not their times: each is due at a third of its own wait-lease,
//! and whoever is due soon goes along. Those close behind the head of the line have a time to look
//! besides, shortly after the holder's lease could end, one after the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Key;
use crate::clock::BootInstant;
use crate::ids::ReqId;
use crate::simulation::HashMap;

/// Max waiters in one heartbeat call. A store that reads a line to find their places in it reads it
/// once for each call, so a crowd at one lock should fit.
const CHUNK: usize = 1024;
/// Max waiters that are looked at to fill a call with those who are due soon.
const LOOK_AHEAD: usize = 2 * CHUNK;
/// The first wait after a heartbeat without an answer; doubled each time, up to a quarter of the
/// wait-lease.
const RETRY: Duration = Duration::from_millis(250);
/// Answers that come so late that a heartbeat is due at once are gathered for this long. A crowd
/// that a slow store lets join one by one would otherwise send a call for each.
const GATHER: Duration = Duration::from_millis(100);

/// The requests of one client that stand in line.
#[derive(Default)]
pub(crate) struct Waiting {
    line: Mutex<Line>,
    beating: AtomicBool,
    /// When the heartbeat looks again, in nanoseconds since boot.
    wake: AtomicU64,
    /// Rung when that is too late for somebody.
    pub(crate) hurry: Notify,
}

#[derive(Default)]
struct Line {
    places: HashMap<ReqId, Place>,
    /// When to look at each place again. Those the store has not heard of are not in it: a store that
    /// does not know a request yet would say so, and it would ask a second time for nothing.
    order: BTreeSet<(BootInstant, ReqId)>,
    /// The longest wait-lease of all that joined since there was none.
    longest: Duration,
    /// When a heartbeat was last sent for anybody.
    sent: Option<BootInstant>,
}

struct Place {
    entry: Arc<Entry>,
    at: Option<BootInstant>,
    beat: BootInstant,
    look: BootInstant,
    in_flight: bool,
    failed: u32,
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

    /// Up to a tenth of a duration, differently for each request, so that waiters do not march in
    /// step.
    pub(crate) fn jitter(&self, d: Duration) -> Duration {
        d / 10 * u32::from(self.key.req.as_bytes()[14]) / 255
    }

    /// A third of its wait-lease, and a little less.
    fn pace(&self) -> Duration {
        let third = self.wait_lease / 3;
        third - self.jitter(third)
    }
}

/// Takes its entry off the list when dropped.
pub(crate) struct Joined {
    waiting: Arc<Waiting>,
    pub(crate) entry: Arc<Entry>,
}

/// What a look at the line found.
pub(crate) struct Round {
    /// To be heard of now.
    pub(crate) due: Vec<Arc<Entry>>,
    pub(crate) wake: BootInstant,
}

impl Waiting {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request on the list, before it is sent: a wake-up may come before its answer.
    pub(crate) fn join(self: &Arc<Self>, key: Key, wait_lease: Duration, curious: bool) -> Joined {
        let ahead = AtomicU32::new(u32::MAX);
        let (bell, heard) = (Notify::new(), AtomicU64::new(0));
        let entry = Arc::new(Entry { key, wait_lease, bell, curious, ahead, heard });
        let far = BootInstant::FAR;
        let place = Place {
            entry: entry.clone(),
            at: None,
            beat: far,
            look: far,
            in_flight: false,
            failed: 0,
        };
        let mut line = self.line();
        line.longest = line.longest.max(wait_lease);
        line.places.insert(entry.key.req, place);
        drop(line);
        Joined { waiting: self.clone(), entry }
    }

    pub(crate) fn ring(&self, req: &ReqId) {
        if let Some(place) = self.line().places.get(req) {
            place.entry.bell.notify_one();
        }
    }

    pub(crate) fn ring_all(&self) {
        self.line().places.values().for_each(|p| p.entry.bell.notify_one());
    }

    /// A question that was sent then was answered: it stands in line, and is to be heard of in time.
    /// `look` is when it should ask by itself, unless it hears something before.
    pub(crate) fn stands(&self, entry: &Entry, sent: BootInstant, look: Option<BootInstant>) {
        entry.heard_of(sent);
        let mut line = self.line();
        let beat = sent.plus(entry.pace()).max(line.sent.map_or(sent, |at| at.plus(GATHER)));
        let first = line.change(&entry.key.req, |place| {
            place.failed = 0;
            place.in_flight = false;
            place.beat = beat;
            place.look = look.unwrap_or(BootInstant::FAR);
        });
        drop(line);
        self.look_at(first);
    }

    /// A heartbeat was not answered: it is tried again, less and less often.
    pub(crate) fn failed(&self, entry: &Entry, now: BootInstant) {
        let mut ring = false;
        let first = self.line().change(&entry.key.req, |place| {
            place.in_flight = false;
            let wait = RETRY * 2u32.saturating_pow(place.failed.min(16));
            place.failed = place.failed.saturating_add(1);
            let wait = wait.min(entry.wait_lease / 4);
            place.beat = now.plus(wait).plus(entry.jitter(wait) * 5);
            // Who wants to know of trouble is told of it once; the others ask for themselves when
            // their place may be gone, and learn what is wrong.
            let doubtful = !entry.keeps_its_place(now.plus(entry.wait_lease / 3));
            ring = doubtful || (entry.curious && place.failed == 1);
        });
        if ring {
            entry.bell.notify_one();
        }
        self.look_at(first);
    }

    fn look_at(&self, at: Option<BootInstant>) {
        if at.is_some_and(|at| at.as_nanos() < self.wake.load(Ordering::Acquire)) {
            self.hurry.notify_one();
        }
    }

    /// Whether the caller is to start the heartbeat: true for one at a time.
    pub(crate) fn start_beating(&self) -> bool {
        !self.beating.swap(true, Ordering::AcqRel)
    }

    /// Ends the heartbeat if nobody waits; false when somebody came meanwhile.
    pub(crate) fn stop_beating_if_empty(&self) -> bool {
        let line = self.line();
        if line.places.is_empty() {
            self.beating.store(false, Ordering::Release);
        }
        line.places.is_empty()
    }

    /// Rings whoever should look, picks who is due for a heartbeat, and tells when to look again.
    pub(crate) fn round(&self, now: BootInstant) -> Round {
        // Rings from here on are kept, so who comes after the look is not slept through.
        self.wake.store(BootInstant::FAR.as_nanos(), Ordering::Release);
        let mut line = self.line();
        let mut due = Vec::new();
        while let Some(&(at, req)) = line.order.first().filter(|(at, _)| *at <= now) {
            let known = line.change(&req, |place| {
                if place.look <= now {
                    place.look = BootInstant::FAR;
                    place.entry.bell.notify_one();
                }
                due.extend(place.take_if_due(now));
            });
            if known.is_none() {
                line.order.remove(&(at, req));
            }
        }
        if (1..CHUNK).contains(&due.len()) {
            line.take_along(&mut due, now);
        }
        if !due.is_empty() {
            line.sent = Some(now);
        }
        let wake = line.order.first().map_or(BootInstant::FAR, |(at, _)| *at);
        self.wake.store(wake.as_nanos(), Ordering::Release);
        Round { due, wake }
    }
}

impl Line {
    /// Changes a place, and with it when to look at it; tells when that is.
    fn change(&mut self, req: &ReqId, change: impl FnOnce(&mut Place)) -> Option<BootInstant> {
        let place = self.places.get_mut(req)?;
        change(place);
        let beat = if place.in_flight { BootInstant::FAR } else { place.beat };
        let at = beat.min(place.look);
        if place.at != Some(at) {
            if let Some(old) = place.at.replace(at) {
                self.order.remove(&(old, *req));
            }
            self.order.insert((at, *req));
        }
        Some(at)
    }

    /// Whoever is due soon goes along with who is due now: one call for all.
    fn take_along(&mut self, due: &mut Vec<Arc<Entry>>, now: BootInstant) {
        let horizon = (now.plus(self.longest / 6), ReqId::from_bytes([0xff; 16]));
        let near = self.order.range(..=horizon).take(LOOK_AHEAD).map(|(_, req)| *req);
        for req in near.collect::<Vec<_>>() {
            if due.len() >= CHUNK {
                return;
            }
            self.change(&req, |place| {
                let soon = now.plus(place.entry.wait_lease / 6);
                // One that was not answered waits for its time.
                let soon = if place.failed > 0 { now } else { soon };
                due.extend(place.take_if_due(soon));
            });
        }
    }
}

impl Place {
    fn take_if_due(&mut self, by: BootInstant) -> Option<Arc<Entry>> {
        let due = !self.in_flight && self.beat <= by;
        self.in_flight |= due;
        due.then(|| self.entry.clone())
    }
}

/// Cuts who is due into heartbeat calls: of one server each, and of a bounded number.
pub(crate) fn calls(
    due: Vec<Arc<Entry>>,
    shard: impl Fn(&Entry) -> u64,
) -> impl Iterator<Item = Vec<Arc<Entry>>> {
    let mut by_shard: HashMap<u64, Vec<Vec<Arc<Entry>>>> = HashMap::default();
    for entry in due {
        let calls = by_shard.entry(shard(&entry)).or_default();
        match calls.last_mut() {
            Some(call) if call.len() < CHUNK => call.push(entry),
            _ => calls.push(vec![entry]),
        }
    }
    by_shard.into_values().flatten()
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut line = self.waiting.line();
        let req = &self.entry.key.req;
        if let Some(at) = line.places.remove(req).and_then(|place| place.at) {
            line.order.remove(&(at, *req));
        }
        if line.places.is_empty() {
            line.longest = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FullName;

    fn join(waiting: &Arc<Waiting>, wait_lease: Duration) -> Joined {
        let lock = FullName { space: Default::default(), name: "a".parse().unwrap() };
        waiting.join(Key { lock, req: ReqId::random() }, wait_lease, false)
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn at(d: Duration) -> BootInstant {
        BootInstant::from_nanos(1_000_000_000_000).plus(d)
    }

    #[test]
    fn who_has_only_just_asked_is_not_in_line_yet() {
        let waiting = Arc::new(Waiting::default());
        let joined = join(&waiting, SECOND);
        assert!(waiting.round(at(SECOND)).due.is_empty());
        waiting.stands(&joined.entry, at(SECOND), None);
        assert_eq!(waiting.round(at(SECOND * 2)).due.len(), 1);
    }

    /// Each was asked for so long ago that it is due when its answer comes.
    #[test]
    fn answers_that_come_late_share_a_heartbeat() {
        let (waiting, ms) = (Arc::new(Waiting::default()), Duration::from_millis);
        let joined: Vec<_> = (0..50).map(|_| join(&waiting, SECOND * 9)).collect();
        let mut calls = Vec::new();
        for (i, one) in (0..).zip(&joined) {
            let now = at(SECOND * 8 + ms(10) * i);
            waiting.stands(&one.entry, at(Duration::ZERO), None);
            calls.push(waiting.round(now).due.len());
        }
        calls.push(waiting.round(at(SECOND * 9)).due.len());
        calls.retain(|due| *due > 0);
        assert_eq!((calls.iter().sum::<usize>(), calls.len()), (50, 6), "{calls:?}");
    }

    #[test]
    fn an_impatient_waiter_does_not_pace_the_others() {
        let waiting = Arc::new(Waiting::default());
        let (long, short) = (join(&waiting, SECOND * 9), join(&waiting, SECOND * 3 / 10));
        for joined in [&long, &short] {
            waiting.stands(&joined.entry, at(Duration::ZERO), None);
        }
        let mut beats = [0, 0];
        let step = Duration::from_millis(10);
        for n in 1..=900 {
            let now = at(step * n);
            for entry in waiting.round(now).due {
                let i = usize::from(Arc::ptr_eq(&entry, &short.entry));
                beats[i] += 1;
                waiting.stands(&entry, now, None);
            }
        }
        assert!((3..=7).contains(&beats[0]), "{beats:?}");
        assert!(beats[1] >= 80, "{beats:?}");
    }

    #[test]
    fn a_heartbeat_that_fails_is_tried_again_less_and_less_often_and_rings_few() {
        let waiting = Arc::new(Waiting::default());
        let all: Vec<_> = (0..100).map(|_| join(&waiting, SECOND * 9)).collect();
        for joined in &all {
            waiting.stands(&joined.entry, at(Duration::ZERO), None);
        }
        let (mut tries, step) = (Vec::new(), Duration::from_millis(10));
        let rung = |joined: &Joined| {
            let mut notified = std::pin::pin!(joined.entry.bell.notified());
            notified.as_mut().enable()
        };
        for n in 1..=900 {
            let now = at(step * n);
            for entry in waiting.round(now).due {
                tries.push(now);
                waiting.failed(&entry, now);
            }
            if n == 550 {
                assert!(!all.iter().any(rung), "their places are kept");
            }
        }
        assert!(tries.len() <= 100 * 8, "{} tries", tries.len());
        let second_round: std::collections::BTreeSet<_> = tries[100..200].iter().collect();
        assert!(second_round.len() > 5, "all in step");
        assert!(all.iter().all(rung), "their places may be gone: they ask");
    }

    #[test]
    fn calls_are_of_one_server_and_of_a_bounded_number() {
        let waiting = Arc::new(Waiting::default());
        let all: Vec<_> = (0..1000).map(|_| join(&waiting, SECOND).entry.clone()).collect();
        let shard = |e: &Entry| u64::from(e.key.req.as_bytes()[0] % 2);
        let calls: Vec<_> = calls(all, shard).collect();
        assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 1000);
        for call in calls {
            assert!(call.len() <= CHUNK && call.iter().all(|e| shard(e) == shard(&call[0])));
        }
    }
}
