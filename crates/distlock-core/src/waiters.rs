//! The waiters of one client: how each is woken, and when its heartbeat is due.
//!
//! Waiters share heartbeat calls, but not their times: each is due at a third of its own wait-lease,
//! and waiters due soon go along. Those close behind the head of the queue have a time to look
//! besides, shortly after the holder's lease could end, one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::{Ask, BootInstant, ClockReading, Error, HashMap, Move, Mutex, Reply, ReqId};

/// Max waiters in one heartbeat call. A store that reads a queue to find their places in it reads it
/// once for each call, so a crowd at one lock should fit.
const CHUNK: usize = 1024;
/// Max waiters that are looked at to fill a heartbeat call with those due soon.
const LOOK_AHEAD: usize = 2 * CHUNK;
/// The first wait after a heartbeat without an answer; doubled each time, up to a quarter of the
/// wait-lease.
const RETRY: Duration = Duration::from_millis(250);
/// Answers that come so late that a heartbeat is due at once are gathered for this long. A crowd
/// that a slow store lets join one by one would otherwise send a call for each.
const GATHER: Duration = Duration::from_millis(100);
/// A grant that was asked for on behalf of a waiter is given back unless the waiter takes it in this
/// time after its answer: as long as a store waits for the confirmation of a promotion.
pub(crate) const UNTAKEN: Duration = Duration::from_secs(1);

/// The requests of one client that wait in a queue.
#[derive(Default)]
pub(crate) struct Waiting {
    schedule: Mutex<Schedule>,
    beating: AtomicBool,
    /// When the heartbeat looks again, in nanoseconds since boot.
    wake: AtomicU64,
    /// Rung when that is too late for somebody.
    pub(crate) hurry: Notify,
}

#[derive(Default)]
struct Schedule {
    slots: HashMap<ReqId, Slot>,
    /// When to look at each slot again. Those the store has not heard of are not in it: a store that
    /// does not know a request yet would say so, and it would ask a second time for nothing.
    order: BTreeSet<(BootInstant, ReqId)>,
    /// The longest wait-lease of all that joined since there was none.
    longest: Duration,
    /// When a heartbeat was last sent for anybody.
    sent: Option<BootInstant>,
    /// The first to join since there was none. Its jitter is everybody's: neighbours in a queue stay
    /// in one call, and a store that keeps a row for each waiter writes few pages for it.
    first: Option<ReqId>,
}

struct Slot {
    entry: Arc<Entry>,
    at: Option<BootInstant>,
    beat: BootInstant,
    look: BootInstant,
    in_flight: bool,
    failed: u32,
}

/// One request in a queue.
pub(crate) struct Entry {
    pub(crate) ask: Arc<Ask>,
    pub(crate) wait_lease: Duration,
    /// Notified when the request should ask again. It keeps one notification, so none is missed between an
    /// answer and the wait that follows it.
    pub(crate) wake_up: Notify,
    /// Wants to know of every change of its place, not only of its turn.
    pub(crate) curious: bool,
    /// Its place when last heard.
    pub(crate) ahead: AtomicU32,
    /// When the last question was sent whose answer said that it stands in the queue, its own or the
    /// heartbeat's, in nanoseconds since boot; nothing before the first.
    heard: AtomicU64,
    turn: Mutex<Turn>,
}

/// An answer, and when its question was sent.
pub(crate) type Answer = (ClockReading, Result<Reply, Error>);

/// Which side asks for a waiter: one at a time, so that no copy of a request is under way once its
/// waiter has gone on.
enum Turn {
    /// The waiter itself, or it judges an answer. Told of its turn, it is rung.
    Asking,
    /// Nobody: the waiter sleeps. Told of its turn, the library's thread confirms it.
    Sleeping,
    /// The library's thread.
    Confirming,
    /// The library's thread has asked; the waiter has not taken the answer yet. A grant is given
    /// back unless it is taken by this moment.
    Answered(Box<Answer>, BootInstant),
}

/// What a waiter finds when it wakes up.
pub(crate) enum Woken {
    /// It is to ask.
    Asks,
    /// The library's thread asks for it, and rings when that is answered.
    Waits,
    /// The library's thread has asked for it.
    Has(Box<Answer>),
}

impl Entry {
    /// Its request, as it is asked first and then again and again.
    pub(crate) fn request(&self) -> Move {
        Move::Acquire(self.ask.clone(), Some(self.wait_lease))
    }

    /// The waiter is awake.
    pub(crate) fn wakes(&self) -> Woken {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, Turn::Asking) {
            Turn::Asking | Turn::Sleeping => Woken::Asks,
            Turn::Answered(answer, _) => Woken::Has(answer),
            Turn::Confirming => {
                *turn = Turn::Confirming;
                Woken::Waits
            }
        }
    }

    /// The waiter sleeps until it is rung.
    pub(crate) fn sleeps(&self) {
        *self.turn.lock() = Turn::Sleeping;
    }

    /// The library's thread has asked, and has the answer now: the waiter takes it from here.
    pub(crate) fn answered(
        &self,
        now: BootInstant,
        sent: ClockReading,
        reply: Result<Reply, Error>,
    ) {
        *self.turn.lock() = Turn::Answered(Box::new((sent, reply)), now.plus(UNTAKEN));
        self.wake_up.notify_one();
    }

    /// Whether the library's thread asks for it.
    pub(crate) fn is_confirming(&self) -> bool {
        matches!(*self.turn.lock(), Turn::Confirming)
    }

    /// When a grant that the waiter has not taken is given back.
    fn untaken_until(&self) -> Option<BootInstant> {
        let turn = self.turn.lock();
        let Turn::Answered(answer, until) = &*turn else { return None };
        let (_, Ok(Reply::Granted { remaining, .. })) = &**answer else { return None };
        (!remaining.is_zero()).then_some(*until)
    }

    /// Whether a grant is to be given back because nobody has taken it in time. The waiter finds one
    /// that is over, and asks anew.
    fn lapses(&self, now: BootInstant) -> bool {
        let mut turn = self.turn.lock();
        let Turn::Answered(answer, until) = &mut *turn else { return false };
        let (_, Ok(Reply::Granted { remaining, .. })) = &mut **answer else { return false };
        let over = !remaining.is_zero() && *until <= now;
        if over {
            *remaining = Duration::ZERO;
        }
        over
    }

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

/// What a look at the schedule found.
pub(crate) struct Round {
    /// To be heard of now.
    pub(crate) due: Vec<Arc<Entry>>,
    /// Granted, and not taken in time.
    pub(crate) lapsed: Vec<Arc<Entry>>,
    pub(crate) wake: BootInstant,
}

impl Waiting {
    /// Puts a request on the list, before it is sent: a wake-up may come before its answer.
    pub(crate) fn join(
        self: &Arc<Self>,
        ask: Arc<Ask>,
        wait_lease: Duration,
        curious: bool,
    ) -> Joined {
        let (ahead, turn) = (AtomicU32::new(u32::MAX), Mutex::new(Turn::Asking));
        let (wake_up, heard) = (Notify::new(), AtomicU64::new(0));
        let entry = Arc::new(Entry { ask, wait_lease, wake_up, curious, ahead, heard, turn });
        let far = BootInstant::FAR;
        let slot = Slot {
            entry: entry.clone(),
            at: None,
            beat: far,
            look: far,
            in_flight: false,
            failed: 0,
        };
        let mut schedule = self.schedule.lock();
        schedule.longest = schedule.longest.max(wait_lease);
        schedule.first.get_or_insert(entry.ask.req);
        schedule.slots.insert(entry.ask.req, slot);
        drop(schedule);
        Joined { waiting: self.clone(), entry }
    }

    pub(crate) fn ring(&self, req: &ReqId) {
        if let Some(slot) = self.schedule.lock().slots.get(req) {
            slot.entry.wake_up.notify_one();
        }
    }

    /// It is a request's turn: the waiter to confirm it for, if it sleeps. Otherwise it is rung.
    pub(crate) fn to_confirm(&self, req: &ReqId) -> Option<Arc<Entry>> {
        let schedule = self.schedule.lock();
        let entry = &schedule.slots.get(req)?.entry;
        let mut turn = entry.turn.lock();
        let sleeps = matches!(*turn, Turn::Sleeping);
        if sleeps {
            *turn = Turn::Confirming;
        }
        drop(turn);
        if !sleeps {
            entry.wake_up.notify_one();
        }
        sleeps.then(|| entry.clone())
    }

    pub(crate) fn ring_all(&self) {
        self.schedule.lock().slots.values().for_each(|p| p.entry.wake_up.notify_one());
    }

    /// A question that was sent then was answered: it stands in the queue, and is to be heard of in time.
    /// `look` is when it should ask by itself, unless it hears something before.
    pub(crate) fn stands(&self, entry: &Entry, sent: BootInstant, look: Option<BootInstant>) {
        entry.heard_of(sent);
        let mut schedule = self.schedule.lock();
        let pace = schedule.pace(entry.wait_lease);
        let beat = sent.plus(pace).max(schedule.sent.map_or(sent, |at| at.plus(GATHER)));
        let first = schedule.change(&entry.ask.req, |slot| {
            slot.failed = 0;
            slot.in_flight = false;
            slot.beat = beat;
            slot.look = entry.untaken_until().or(look).unwrap_or(BootInstant::FAR);
        });
        drop(schedule);
        self.look_at(first);
    }

    /// A heartbeat was not answered: it is tried again, less and less often.
    pub(crate) fn failed(&self, entry: &Entry, now: BootInstant) {
        let mut ring = false;
        let first = self.schedule.lock().change(&entry.ask.req, |slot| {
            slot.in_flight = false;
            let wait = RETRY * 2u32.saturating_pow(slot.failed.min(16));
            slot.failed = slot.failed.saturating_add(1);
            let wait = wait.min(entry.wait_lease / 4);
            slot.beat = now.plus(wait).plus(entry.ask.req.jitter(wait / 2));
            // A waiter with a callback hears of trouble once; the others ask for themselves when
            // their place may be gone, and learn what is wrong.
            let doubtful = !entry.keeps_its_place(now.plus(entry.wait_lease / 3));
            ring = doubtful || (entry.curious && slot.failed == 1);
        });
        if ring {
            entry.wake_up.notify_one();
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
        let schedule = self.schedule.lock();
        if schedule.slots.is_empty() {
            self.beating.store(false, Ordering::Release);
        }
        schedule.slots.is_empty()
    }

    /// Wakes the waiters that should poll, selects due heartbeats, and returns the next wake-up.
    pub(crate) fn round(&self, now: BootInstant) -> Round {
        // Rings from here on are kept, so a waiter that joins after this look is not missed.
        self.wake.store(BootInstant::FAR.as_nanos(), Ordering::Release);
        let mut schedule = self.schedule.lock();
        let (mut due, mut lapsed) = (Vec::new(), Vec::new());
        while let Some(&(at, req)) = schedule.order.first().filter(|(at, _)| *at <= now) {
            let known = schedule.change(&req, |slot| {
                if slot.look <= now {
                    slot.look = BootInstant::FAR;
                    slot.entry.wake_up.notify_one();
                    lapsed.extend(slot.entry.lapses(now).then(|| slot.entry.clone()));
                }
                due.extend(slot.take_if_due(now));
            });
            if known.is_none() {
                schedule.order.remove(&(at, req));
            }
        }
        if (1..CHUNK).contains(&due.len()) {
            schedule.take_along(&mut due, now);
        }
        if !due.is_empty() {
            schedule.sent = Some(now);
        }
        let wake = schedule.order.first().map_or(BootInstant::FAR, |(at, _)| *at);
        self.wake.store(wake.as_nanos(), Ordering::Release);
        Round { due, lapsed, wake }
    }
}

impl Schedule {
    /// A third of a wait-lease, and a little less, so that clients do not go in step.
    fn pace(&self, wait_lease: Duration) -> Duration {
        let third = wait_lease / 3;
        third - self.first.map_or(Duration::ZERO, |first| first.jitter(third / 10))
    }

    /// Changes a slot, and with it when to look at it; tells when that is.
    fn change(&mut self, req: &ReqId, change: impl FnOnce(&mut Slot)) -> Option<BootInstant> {
        let slot = self.slots.get_mut(req)?;
        change(slot);
        let beat = if slot.in_flight { BootInstant::FAR } else { slot.beat };
        let at = beat.min(slot.look);
        if slot.at != Some(at) {
            if let Some(old) = slot.at.replace(at) {
                self.order.remove(&(old, *req));
            }
            self.order.insert((at, *req));
        }
        Some(at)
    }

    /// Waiters that are due soon go along with those due now: one call for all.
    fn take_along(&mut self, due: &mut Vec<Arc<Entry>>, now: BootInstant) {
        let horizon = (now.plus(self.longest / 6), ReqId::from_bytes([0xff; 16]));
        let near = self.order.range(..=horizon).take(LOOK_AHEAD).map(|(_, req)| *req);
        for req in near.collect::<Vec<_>>() {
            if due.len() >= CHUNK {
                return;
            }
            self.change(&req, |slot| {
                let soon = now.plus(slot.entry.wait_lease / 6);
                // One that was not answered waits for its time.
                let soon = if slot.failed > 0 { now } else { soon };
                due.extend(slot.take_if_due(soon));
            });
        }
    }
}

impl Slot {
    fn take_if_due(&mut self, by: BootInstant) -> Option<Arc<Entry>> {
        let due = !self.in_flight && self.beat <= by;
        self.in_flight |= due;
        due.then(|| self.entry.clone())
    }
}

/// Splits due waiters into heartbeat calls: one server each, of bounded size.
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
        let mut schedule = self.waiting.schedule.lock();
        let req = &self.entry.ask.req;
        if let Some(at) = schedule.slots.remove(req).and_then(|slot| slot.at) {
            schedule.order.remove(&(at, *req));
        }
        if schedule.slots.is_empty() {
            schedule.longest = Duration::ZERO;
            schedule.first = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FullName, Label, Mode, Owner, Patience};

    fn join(waiting: &Arc<Waiting>, wait_lease: Duration) -> Joined {
        let ask = Ask {
            lock: FullName { space: Default::default(), name: "a".parse().unwrap() },
            req: ReqId::random(),
            owner: Owner::new(),
            mode: Mode::Exclusive,
            ttl: wait_lease,
            patience: Patience::Forever,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::of_this_process(),
            block: std::num::NonZeroU32::MIN,
        };
        waiting.join(Arc::new(ask), wait_lease, false)
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

    /// A store that keeps a row for each waiter then writes few pages for a call, however long the
    /// queue is.
    #[test]
    fn a_heartbeat_call_takes_neighbours_in_the_queue() {
        let waiting = Arc::new(Waiting::default());
        let all: Vec<_> = (0..4 * CHUNK).map(|_| join(&waiting, SECOND * 9)).collect();
        let step = Duration::from_micros(50);
        for (i, joined) in (0..).zip(&all) {
            waiting.stands(&joined.entry, at(step * i), None);
        }
        let places: HashMap<_, _> = all.iter().map(|j| j.entry.ask.req).zip(0..).collect();
        let (mut now, mut calls_seen) = (at(SECOND), 0);
        while calls_seen < 12 {
            now = now.plus(Duration::from_millis(5));
            for call in calls(waiting.round(now).due, |_| 0) {
                let mut among: Vec<usize> = call.iter().map(|e| places[&e.ask.req]).collect();
                among.sort_unstable();
                let span = among[among.len() - 1] - among[0];
                assert!(span < CHUNK, "{} waiters out of {span}", among.len());
                call.iter().for_each(|entry| waiting.stands(entry, now, None));
                calls_seen += 1;
            }
        }
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
            let mut notified = std::pin::pin!(joined.entry.wake_up.notified());
            notified.as_mut().enable()
        };
        for n in 1..=900 {
            let now = at(step * n);
            for entry in waiting.round(now).due {
                tries.push(now);
                waiting.failed(&entry, now);
            }
            if n == 550 {
                assert!(!all.iter().any(rung), "their slots are kept");
            }
        }
        assert!(tries.len() <= 100 * 8, "{} tries", tries.len());
        let second_round: std::collections::BTreeSet<_> = tries[100..200].iter().collect();
        assert!(second_round.len() > 5, "all in step");
        assert!(all.iter().all(rung), "their slots may be gone: they ask");
    }

    #[test]
    fn calls_are_of_one_server_and_of_a_bounded_number() {
        let waiting = Arc::new(Waiting::default());
        let all: Vec<_> = (0..1000).map(|_| join(&waiting, SECOND).entry.clone()).collect();
        let shard = |e: &Entry| u64::from(e.ask.req.as_bytes()[0] % 2);
        let calls: Vec<_> = calls(all, shard).collect();
        assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 1000);
        for call in calls {
            assert!(call.len() <= CHUNK && call.iter().all(|e| shard(e) == shard(&call[0])));
        }
    }
}
