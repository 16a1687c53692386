//! Renewal and loss: one task, one timer and one batch call for all held locks of a client.
//!
//! It runs on the library's own thread. A hold is renewed at a third of its TTL; whatever else is
//! due soon goes with it, unless it can wait much longer. No answer means trying again until the
//! deadline, never past it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::capability::{Expiry, Family};
use crate::clock::BootInstant;
use crate::engine;
use crate::hold::Hold;
use crate::ids::ReqId;
use crate::lost::Why;
use crate::observe::Observer;
use crate::reaper::Reaper;
use crate::seam::{Backend, Due, Event, Kept};
use crate::simulation::HashMap;
use crate::teeth::{self, Bug};
use crate::timer::BootTimer;

/// The first wait after a renewal without an answer; doubled each time, up to a tenth of the TTL.
const RETRY: Duration = Duration::from_millis(50);

pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    reaper: Arc<Reaper>,
    observer: Observer,
    kept: Mutex<HashMap<ReqId, Entry>>,
    alarm: Arc<Alarm>,
}

/// When the keeper's task looks again, and how to make it look sooner.
struct Alarm {
    started: AtomicBool,
    at: AtomicU64,
    bell: Notify,
}

struct Entry {
    hold: Arc<Hold>,
    /// When it is to be renewed; never, for one that must run out.
    next: BootInstant,
    tries: u32,
    in_flight: bool,
}

impl Keeper {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        reaper: Arc<Reaper>,
        observer: Observer,
    ) -> Arc<Self> {
        let alarm = Alarm {
            started: AtomicBool::new(false),
            at: AtomicU64::new(BootInstant::FAR.as_nanos()),
            bell: Notify::new(),
        };
        let kept = Mutex::default();
        let keeper = Arc::new(Self { backend, reaper, observer, kept, alarm: Arc::new(alarm) });
        keeper.hear_events();
        keeper
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<ReqId, Entry>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after a hold from now on.
    pub(crate) fn add(self: &Arc<Self>, hold: Arc<Hold>, sent: BootInstant, renew: bool) {
        // A grant may be a replay of an older one, with less than its TTL left.
        let pace = self.pace(&hold).min(hold.deadline().since(sent) / 3);
        let renew = renew && !teeth::bites(Bug::NoWatchdog);
        let next = if renew { sent.plus(pace) } else { BootInstant::FAR };
        let entry = Entry { hold: hold.clone(), next, tries: 0, in_flight: false };
        // One guard for one hold: who takes it up by its ticket has it from then on.
        if let Some(old) = self.kept().insert(hold.key.req, entry) {
            old.hold.end();
        }
        if !self.alarm.started.swap(true, Ordering::AcqRel) {
            let (keeper, alarm) = (Arc::downgrade(self), self.alarm.clone());
            let timer = self.backend.clock().clone();
            let wall = self.backend.capability().wall_witness;
            engine::spawn(async move { run(keeper, &alarm, BootTimer::new(timer, wall)).await });
            return;
        }
        // Looked at after it was put there: the task hears of any later step of the wall.
        let now = self.backend.clock().moment();
        let first = next.min(now.boot.plus(hold.left(now)));
        if first.as_nanos() < self.alarm.at.load(Ordering::Acquire) {
            self.alarm.bell.notify_one();
        }
    }

    /// Looks after it no more: no renewal starts after this.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut kept = self.kept();
        if kept.get(&hold.key.req).is_some_and(|e| Arc::ptr_eq(&e.hold, hold)) {
            kept.remove(&hold.key.req);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.kept().values().map(|e| e.hold.clone()).collect()
    }

    fn hear_events(self: &Arc<Self>) {
        let Some(mut events) = self.backend.events() else { return };
        let keeper = Arc::downgrade(self);
        engine::spawn(async move {
            while let Some(event) = events.recv().await {
                let Some(keeper) = keeper.upgrade() else { return };
                keeper.hear(&event);
            }
        });
    }

    fn hear(&self, event: &Event) {
        let mut kept = self.kept();
        match event {
            Event::Lost(key, why) => {
                if let Some(entry) = kept.remove(&key.req) {
                    entry.hold.latch(*why);
                }
            }
            Event::InDoubt(key) => {
                if let Some(entry) = kept.get_mut(&key.req) {
                    entry.next = BootInstant::from_nanos(0);
                    self.alarm.bell.notify_one();
                }
            }
            Event::Contended(key) => tracing::debug!(lock = %key.lock, "contended"),
        }
    }

    /// Says goodbye to what ended, picks what is due, and tells when to look again.
    fn plan(&self) -> (Vec<Arc<Hold>>, BootInstant) {
        let moment = self.backend.clock().moment();
        let now = moment.boot;
        let mut kept = self.kept();
        kept.retain(|_, entry| {
            let hold = &entry.hold;
            // Its holder may have looked first, and latched it.
            let over = hold.is_lost()
                || (hold.left(moment).is_zero() && !teeth::bites(Bug::CheckTrustsTimer));
            if over {
                self.ended(hold);
            }
            !over
        });
        let any_due = kept.values().any(|e| !e.in_flight && e.next <= now);
        let mut due = Vec::new();
        let mut wake = BootInstant::FAR;
        for entry in kept.values_mut() {
            // Whatever is due soon goes along: one call for all.
            let soon = now.plus(entry.hold.ttl / 6);
            if any_due && !entry.in_flight && entry.next <= soon {
                entry.in_flight = true;
                due.push(entry.hold.clone());
            }
            let next = if entry.in_flight { BootInstant::FAR } else { entry.next };
            wake = wake.min(now.plus(entry.hold.left(moment))).min(next);
        }
        (due, wake)
    }

    fn ended(&self, hold: &Arc<Hold>) {
        hold.latch(hold.end_of_time());
        // A lease ends by itself; what lasts as long as a connection or the process must be given
        // back, or nobody would have it and nobody could get it.
        let promises = self.backend.capability();
        let lasts = promises.expiry == Expiry::WithProcess && hold.why() == Some(Why::MaxHold);
        let tied = promises.expiry == Expiry::Ttl
            && matches!(promises.family, Family::Session | Family::Line);
        if lasts || tied {
            self.reaper.abandon(hold.key.clone(), hold.ttl);
        }
    }

    async fn renew(&self, mut holds: Vec<Arc<Hold>>) {
        let clock = self.backend.clock();
        let now = clock.moment();
        let sent = now.boot;
        // The machine may have slept since they were picked: nothing is renewed after its deadline.
        // The plan says goodbye to those, and they take no patience from the others.
        holds.retain(|h| !h.left(now).is_zero());
        if holds.is_empty() {
            return self.alarm.bell.notify_one();
        }
        let due: Vec<Due> = holds
            .iter()
            .map(|h| Due { key: h.key.clone(), ttl: h.ttl.min(h.max_end.since(sent)) })
            .collect();
        // Half of what is left: a call that hangs leaves time for another.
        let patience = holds.iter().map(|h| h.left(now) / 2).min();
        let patience = patience.unwrap_or_default().min(Duration::from_secs(30));
        let answers = clock.timeout(patience, self.backend.keep(&due)).await;
        let took = clock.now().since(sent);
        let mut answers = answers.unwrap_or_default().into_iter();
        for (hold, due) in holds.into_iter().zip(due) {
            let outcome = self.take(&hold, answers.next(), due.ttl < hold.ttl);
            self.observer.renewed(&hold.key.lock, outcome, took);
        }
        self.alarm.bell.notify_one();
    }

    /// A third of what may be believed of a full lease (the margin of a store with a coarse clock is
    /// most of a short one), up to a tenth less, differently for each hold, so that the clients of
    /// a store do not renew in step.
    fn pace(&self, hold: &Hold) -> Duration {
        let margin = self.backend.capability().margin(hold.ttl);
        let third = hold.ttl.saturating_sub(margin) / 3;
        third - third / 10 * u32::from(hold.key.req.as_bytes()[15]) / 255
    }

    fn take(&self, hold: &Arc<Hold>, answer: Option<Kept>, cut: bool) -> &'static str {
        let mut kept = self.kept();
        let entry = kept.get_mut(&hold.key.req).filter(|e| Arc::ptr_eq(&e.hold, hold));
        let now = self.backend.clock().now();
        let answer = match answer {
            Some(Kept::Lost(_)) if teeth::bites(Bug::LostTakenForKept) => Some(Kept::Until {
                sent: self.backend.clock().moment(),
                ttl: hold.ttl,
                margin: Duration::ZERO,
                waiters: 0,
            }),
            answer => answer,
        };
        match answer {
            Some(Kept::Until { sent, ttl, margin, waiters }) => {
                hold.extend(sent.until(ttl, margin), waiters, cut);
                if let Some(entry) = entry {
                    entry.in_flight = false;
                    entry.tries = 0;
                    // A session's lease may have begun long before this answer: not at once again.
                    let pace = self.pace(hold);
                    entry.next = sent.boot.plus(pace).max(now.plus(pace / 4));
                }
                tracing::trace!(lock = %hold.key.lock, token = %hold.token, "renewed");
                "kept"
            }
            Some(Kept::Lost(why)) => {
                // Nobody looks after it any more: it was released while the answer was under way.
                if entry.is_some() {
                    hold.latch(why);
                    kept.remove(&hold.key.req);
                }
                "lost"
            }
            Some(Kept::Unknown(_)) | None => {
                if let Some(entry) = entry {
                    entry.in_flight = false;
                    let wait = RETRY * 2u32.saturating_pow(entry.tries.min(16));
                    entry.tries += 1;
                    entry.next = now.plus(wait.min(hold.ttl / 10));
                }
                tracing::debug!(lock = %hold.key.lock, "no answer to a renewal");
                "unknown"
            }
        }
    }
}

/// Parts from the most pressing those who can wait much longer: the patience of one call is that of
/// its most pressing hold, and thousands of long leases may need more than a short one has.
fn by_urgency(holds: Vec<Arc<Hold>>, now: BootInstant) -> Vec<Vec<Arc<Hold>>> {
    let left = |hold: Arc<Hold>| (hold.deadline().since(now), hold);
    let mut holds: Vec<_> = holds.into_iter().map(left).collect();
    holds.sort_by_key(|(left, _)| *left);
    let (mut calls, mut most_pressing) = (Vec::<Vec<_>>::new(), Duration::ZERO);
    for (left, hold) in holds {
        match calls.last_mut() {
            Some(call) if left <= most_pressing * 4 => call.push(hold),
            _ => {
                most_pressing = left;
                calls.push(vec![hold]);
            }
        }
    }
    calls
}

/// The keeper's task: it lives as long as its client, asleep while nothing is held.
async fn run(keeper: Weak<Keeper>, alarm: &Alarm, mut timer: BootTimer) {
    while let Some(keeper) = keeper.upgrade() {
        // Rings from here on are kept, so what is added after the plan is not slept through.
        alarm.at.store(BootInstant::FAR.as_nanos(), Ordering::Release);
        let (due, wake) = keeper.plan();
        alarm.at.store(wake.as_nanos(), Ordering::Release);
        for holds in by_urgency(due, keeper.backend.clock().now()) {
            let keeper = keeper.clone();
            engine::spawn(async move { keeper.renew(holds).await });
        }
        drop(keeper);
        tokio::select! {
            biased;
            () = alarm.bell.notified() => {}
            () = timer.wait_until(wake) => {}
        }
    }
}

impl Drop for Keeper {
    /// Takes effect at once: the task wakes up and ends.
    fn drop(&mut self) {
        self.alarm.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::memory::Memory;
    use crate::seam::{Grant, Key};
    use crate::store::Store;
    use crate::tests::Spy;
    use crate::token::{Token, TokenRange};
    use crate::{FullName, Name, Namespace};

    #[tokio::test]
    async fn a_renewal_that_comes_to_run_after_the_deadline_is_not_sent() {
        let clock = Clock::held();
        let spy = Spy::new(Memory::on(clock.clone()).into_backend());
        let backend: Arc<dyn Backend> = Arc::new(spy.clone());
        let observer = Observer::new("memory", false);
        let keeper = Keeper::new(backend.clone(), Reaper::new(backend), observer.clone());
        let hold = |name: &str, sent, ttl| {
            let lock = FullName { space: Namespace::default(), name: Name::new(name).unwrap() };
            let key = Key { lock, req: ReqId::random() };
            let margin = Duration::ZERO;
            let tokens = TokenRange::one(Token::MIN);
            let grant = Grant { req: key.req, tokens, sent, ttl, margin, waiters: 0 };
            let (clock, observer) = (clock.clone(), observer.clone());
            Arc::new(Hold::new(key, &grant, ttl, None, clock, observer))
        };
        let second = Duration::from_secs(1);
        let now = clock.now().into();
        let (over, live) = (hold("over", now, second), hold("live", now, second * 9));
        clock.advance(second);
        keeper.renew(vec![over.clone(), live]).await;
        assert_eq!(spy.batches(), [1], "only the one whose deadline is to come");
        keeper.renew(vec![over]).await;
        assert_eq!(spy.batches(), [1]);
        // Nor one that is over by the wall alone.
        let stepped = hold("stepped", clock.moment(), second * 9);
        clock.step_wall(9);
        keeper.renew(vec![stepped]).await;
        assert_eq!(spy.batches(), [1]);
    }
}
