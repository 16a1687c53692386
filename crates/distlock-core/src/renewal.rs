//! Renewal and loss: one task and one timer for all held locks of a client, and few calls.
//!
//! It runs on the library's own thread. A hold is renewed at a third of its TTL; whatever else is
//! due soon goes with it, unless it can wait much longer. A call renews a bounded number of holds of
//! one server, several are under way, and each is believed as it is answered, so that a slow call
//! costs its own holds only. No answer means trying again until the deadline, never past it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::Asking;
use crate::guard::HoldRecord;
use crate::observe::Observer;
use crate::reaper::Reaper;
use crate::renewal_schedule::{Call, Plan, RenewalSchedule};
use crate::timer::BootTimer;
use crate::{Backend, BootInstant, Due, Event, Expiry, Family, Kept, LossReason, Mutex, engine};

/// The first wait after a renewal without an answer; doubled each time, up to a tenth of the TTL.
const RETRY: Duration = Duration::from_millis(50);

pub(crate) struct Renewer {
    backend: Arc<dyn Backend>,
    reaper: Arc<Reaper>,
    asking: Arc<Asking>,
    observer: Observer,
    schedule: Mutex<RenewalSchedule>,
    alarm: Arc<Alarm>,
}

/// When the renewer's task looks again, and how to make it look sooner.
struct Alarm {
    started: AtomicBool,
    at: AtomicU64,
    notify: Notify,
}

impl Renewer {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        reaper: Arc<Reaper>,
        asking: Arc<Asking>,
        observer: Observer,
    ) -> Arc<Self> {
        let alarm = Arc::new(Alarm {
            started: AtomicBool::new(false),
            at: AtomicU64::new(BootInstant::FAR.as_nanos()),
            notify: Notify::new(),
        });
        let schedule = Mutex::default();
        let renewer = Arc::new(Self { backend, reaper, asking, observer, schedule, alarm });
        renewer.hear_events();
        renewer
    }

    fn schedule(&self) -> MutexGuard<'_, RenewalSchedule> {
        self.schedule.lock()
    }

    /// Looks after a hold from now on.
    pub(crate) fn add(self: &Arc<Self>, hold: Arc<HoldRecord>, sent: BootInstant, renew: bool) {
        // A grant may be a replay of an older one, with less than its TTL left.
        let pace = self.pace(&hold).min(hold.deadline().since(sent) / 3);
        let next = if renew { sent.plus(pace) } else { BootInstant::FAR };
        let shard = self.backend.shard(&hold.key.lock);
        let mut schedule = self.schedule();
        // Read while nobody else can look: the task hears of any later step of the wall.
        let now = self.backend.clock().reading();
        let (old, first) = schedule.add(hold, shard, next, renew, now);
        // One guard for one hold: the guard that takes it up by its ticket has it from then on.
        if let Some(old) = &old {
            let _ = old.end();
        }
        drop(schedule);
        gone(old.as_ref());
        if !self.alarm.started.swap(true, Ordering::AcqRel) {
            let (renewer, alarm) = (Arc::downgrade(self), self.alarm.clone());
            let timer = self.backend.clock().clone();
            let wall = self.backend.capability().wall_witness;
            engine::spawn(async move { run(renewer, &alarm, BootTimer::new(timer, wall)).await });
            return;
        }
        if first.as_nanos() < self.alarm.at.load(Ordering::Acquire) {
            self.alarm.notify.notify_one();
        }
    }

    /// Looks after it no more: no renewal starts after this.
    pub(crate) fn remove(&self, hold: &Arc<HoldRecord>) {
        let mut schedule = self.schedule();
        if schedule.has(hold) {
            schedule.remove(&hold.key.req);
        }
    }

    /// The next holder's hold takes the place of one that ends with this. `None` when that has ended
    /// already, or was lost.
    pub(crate) fn hand_over(&self, hold: &Arc<HoldRecord>) -> Option<Arc<HoldRecord>> {
        let mut schedule = self.schedule();
        if !schedule.has(hold) || hold.check(Duration::ZERO).is_err() || !hold.end() {
            return None;
        }
        // Made after the end of its predecessor, and with the schedule locked: no renewal, and no loss,
        // is told to neither of the two.
        let next = Arc::new(hold.successor()?);
        schedule.replace(&next);
        Some(next)
    }

    /// A hold has another end than before.
    pub(crate) fn look_again(&self, hold: &Arc<HoldRecord>) {
        let mut schedule = self.schedule();
        if schedule.has(hold) {
            let now = self.backend.clock().reading();
            let _ = schedule.change(&hold.key.req, now, |_| ());
            drop(schedule);
            self.alarm.notify.notify_one();
        }
    }

    /// A hold was lost before it was looked after.
    pub(crate) fn lost(&self, hold: &Arc<HoldRecord>, why: LossReason) {
        self.remove(hold);
        hold.latch(why);
        gone(Some(hold));
    }

    pub(crate) fn all(&self) -> Vec<Arc<HoldRecord>> {
        self.schedule().holds().cloned().collect()
    }

    fn hear_events(self: &Arc<Self>) {
        let Some(mut events) = self.backend.events() else { return };
        let renewer = Arc::downgrade(self);
        engine::spawn(async move {
            while let Some(event) = events.recv().await {
                let Some(renewer) = renewer.upgrade() else { return };
                renewer.hear(&event);
            }
        });
    }

    fn hear(&self, event: &Event) {
        let mut schedule = self.schedule();
        match event {
            Event::Lost(key, why) => {
                let hold = schedule.remove(&key.req);
                if let Some(hold) = &hold {
                    hold.latch(*why);
                }
                // Its guard may be about to be made. While the schedule is locked: either the guard
                // was put there before this, or it is made after and asks.
                self.asking.lost(&key.req, *why);
                drop(schedule);
                gone(hold.as_ref());
            }
            Event::InDoubt(key) => {
                let now = self.backend.clock().reading();
                if schedule.change(&key.req, now, |entry| entry.next = now.boot).is_some() {
                    self.alarm.notify.notify_one();
                }
            }
            Event::Contended(key) => {
                let hold = schedule.hold(&key.req).cloned();
                drop(schedule);
                self.contended(hold.as_ref());
                tracing::debug!(lock = %key.lock, "contended");
            }
            Event::Missed => {
                let holds: Vec<_> = schedule.holds().cloned().collect();
                drop(schedule);
                holds.iter().for_each(|hold| self.contended(Some(hold)));
            }
        }
    }

    /// Somebody elsewhere waits for it, or may.
    fn contended(&self, hold: Option<&Arc<HoldRecord>>) {
        if let Some(share) = hold.and_then(|hold| hold.share()) {
            share.contended(self.backend.clock().now());
        }
    }

    /// Expires finished holds, selects due renewals, and tells when to look again.
    fn plan(&self) -> (Vec<Call>, BootInstant) {
        let mut schedule = self.schedule();
        let Plan { ended, calls, wake } = schedule.plan(self.backend.clock().reading());
        drop(schedule);
        ended.iter().for_each(|hold| self.ended(hold));
        (calls, wake)
    }

    fn ended(&self, hold: &Arc<HoldRecord>) {
        hold.latch(hold.end_of_time());
        gone(Some(hold));
        // A lease ends by itself; what lasts as long as a connection or the process must be given
        // back, or nobody would have it and nobody could get it.
        let promises = self.backend.capability();
        let lasts =
            promises.expiry == Expiry::WithProcess && hold.why() == Some(LossReason::MaxHold);
        let tied = promises.expiry == Expiry::Ttl
            && matches!(promises.family, Family::Session | Family::Queue);
        if lasts || tied {
            self.reaper.abandon(hold.key.clone(), hold.ttl);
        }
    }

    /// What a minority of nodes still has of a lost hold only keeps everybody waiting. It is given back
    /// once the guard knows; unless an operator took it away, who lets its lease run out.
    fn clear(&self, hold: &HoldRecord, why: LossReason) {
        if self.backend.capability().family == Family::Quorum && why != LossReason::Revoked {
            self.reaper.abandon(hold.key.clone(), hold.ttl);
        }
    }

    async fn renew(&self, Call { shard, mut holds }: Call) {
        let _slot = Slot(self, shard);
        let clock = self.backend.clock();
        let now = clock.reading();
        let sent = now.boot;
        // The machine may have slept since they were picked: nothing is renewed after its deadline.
        // The plan expires those, and they take no patience from the others.
        holds.retain(|(h, _)| !h.left(now).is_zero());
        if holds.is_empty() {
            return;
        }
        let ttl = |hold: &HoldRecord, renew| {
            let most = hold.ttl.min(hold.max_end().since(sent));
            if renew { most } else { most.min(hold.deadline().since(sent)) }
        };
        let due: Vec<Due> = holds
            .iter()
            .map(|(h, renew)| Due { key: h.key.clone(), ttl: ttl(h, *renew) })
            .collect();
        // Half of what is left: a call that hangs leaves time for another.
        let patience = holds.iter().map(|(h, _)| h.left(now) / 2).min();
        let patience = patience.unwrap_or_default().min(Duration::from_secs(30));
        let answers = clock.timeout(patience, self.backend.keep(&due)).await;
        let took = clock.now().since(sent);
        let mut answers = answers.unwrap_or_default().into_iter();
        for ((hold, _), due) in holds.into_iter().zip(due) {
            let outcome = self.take(&hold, answers.next(), due.ttl < hold.ttl);
            self.observer.renewed(&hold.key.lock, outcome, took);
        }
    }

    /// A third of what may be believed of a full lease (the margin of a store with a coarse clock is
    /// most of a short one), up to a tenth less, differently for each hold, so that the clients of
    /// a store do not renew in step.
    fn pace(&self, hold: &HoldRecord) -> Duration {
        let margin = self.backend.capability().margin(hold.ttl);
        let third = hold.ttl.saturating_sub(margin) / 3;
        third - hold.key.req.jitter(third / 10)
    }

    fn take(&self, asked: &Arc<HoldRecord>, answer: Option<Kept>, cut: bool) -> &'static str {
        let mut schedule = self.schedule();
        // The lock may have been handed on while the call was under way.
        let current = schedule.current(asked).cloned();
        let (kept, hold) = (current.is_some(), current.as_ref().unwrap_or(asked));
        let req = &hold.key.req;
        let now = self.backend.clock().reading();
        match answer {
            Some(Kept::Until { lease, waiters }) => {
                // A session's lease may have begun long before this answer: not at once again.
                let pace = self.pace(hold);
                let next = lease.sent.boot.plus(pace).max(now.boot.plus(pace / 4));
                schedule.change(req, now, |entry| {
                    if kept {
                        // One that must run out was asked about, and its end stays where it is.
                        if entry.renew {
                            // It was cut for the holder at that time.
                            let cut = cut && Arc::ptr_eq(asked, hold);
                            hold.extend(lease.until(), waiters, cut);
                        }
                        entry.tries = 0;
                        entry.answered(next);
                    }
                });
                drop(schedule);
                if kept && let Some(share) = hold.share() {
                    share.heard(waiters, lease.sent.boot, now.boot);
                }
                tracing::trace!(lock = %hold.key.lock, token = %hold.token, "renewed");
                "kept"
            }
            Some(Kept::Lost(why)) => {
                // Else nobody looks after it: it was released while the answer was under way.
                if kept {
                    schedule.remove(req);
                    hold.latch(why);
                    drop(schedule);
                    gone(Some(hold));
                    self.clear(hold, why);
                }
                "lost"
            }
            Some(Kept::Unknown(_)) | None => {
                schedule.change(req, now, |entry| {
                    if kept {
                        let wait = RETRY * 2u32.saturating_pow(entry.tries.min(16));
                        entry.tries += 1;
                        entry.answered(now.boot.plus(wait.min(hold.ttl / 10)));
                    }
                });
                tracing::debug!(lock = %hold.key.lock, "no answer to a renewal");
                "unknown"
            }
        }
    }
}

/// A hold ended without a release: its cohort hands the lease to nobody any more.
fn gone(hold: Option<&Arc<HoldRecord>>) {
    if let Some(share) = hold.and_then(|hold| hold.share()) {
        share.gone();
    }
}

/// One call under way at a server. Given back also when a store panics, or its server would be
/// asked less and less.
struct Slot<'a>(&'a Renewer, u64);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.schedule().call_ended(self.1);
        self.0.alarm.notify.notify_one();
    }
}

/// The renewer's task: it lives as long as its client, asleep while nothing is held.
async fn run(renewer: Weak<Renewer>, alarm: &Alarm, mut timer: BootTimer) {
    while let Some(renewer) = renewer.upgrade() {
        // Rings from here on are kept, so what is added after the plan is not slept through.
        alarm.at.store(BootInstant::FAR.as_nanos(), Ordering::Release);
        let (calls, wake) = renewer.plan();
        alarm.at.store(wake.as_nanos(), Ordering::Release);
        for call in calls {
            let renewer = renewer.clone();
            engine::spawn(async move { renewer.renew(call).await });
        }
        drop(renewer);
        tokio::select! {
            biased;
            () = alarm.notify.notified() => {}
            () = timer.wait_until(wake) => {}
        }
    }
}

impl Drop for Renewer {
    /// Takes effect at once: the task wakes up and ends.
    fn drop(&mut self) {
        self.alarm.notify.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Grant, Key, Lease};
    use crate::clock::Clock;
    use crate::ids::ReqId;
    use crate::memory::Memory;
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
        let renewer =
            Renewer::new(backend.clone(), Reaper::new(backend), Arc::default(), observer.clone());
        let renew = |holds: Vec<Arc<HoldRecord>>| {
            let holds = holds.into_iter().map(|h| (h, true)).collect();
            renewer.renew(Call { shard: 0, holds })
        };
        let hold = |name: &str, sent, ttl| {
            let lock = FullName { space: Namespace::default(), name: Name::new(name).unwrap() };
            let key = Key { lock, req: ReqId::random() };
            let margin = Duration::ZERO;
            let tokens = TokenRange::one(Token::MIN);
            let grant =
                Grant { req: key.req, tokens, lease: Lease { sent, ttl, margin }, waiters: 0 };
            let (clock, observer) = (clock.clone(), observer.clone());
            Arc::new(HoldRecord::new(key, &grant, ttl, None, clock, observer))
        };
        let second = Duration::from_secs(1);
        let now = clock.now().into();
        let (over, live) = (hold("over", now, second), hold("live", now, second * 9));
        clock.advance(second);
        renew(vec![over.clone(), live]).await;
        assert_eq!(spy.batches(), [1], "only the one whose deadline is to come");
        renew(vec![over]).await;
        assert_eq!(spy.batches(), [1]);
        // Nor one that is over by the wall alone.
        let stepped = hold("stepped", clock.reading(), second * 9);
        clock.step_wall(9);
        renew(vec![stepped]).await;
        assert_eq!(spy.batches(), [1]);
    }
}
