//! What goes on while nobody asks: waiters and lingering entries are kept, and what nobody wants
//! any more leaves the queue. One task a client, on the library's own thread, only while there is
//! something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::driver::Inner;
use super::registry::{Cause, HeldEntry, Leaving};
use super::store::{Keeping, QueueStore};
use crate::{Backoff, BootInstant, Event, GRACE, Kept, Key, LossReason, Wake, engine};

/// A heartbeat is given this long at least and at most.
const BOUNDS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

impl<S: QueueStore> Inner<S> {
    /// Sees to it that somebody looks at this moment.
    pub(super) fn tend(self: &Arc<Self>, at: BootInstant) {
        if self.registry.tend(at) {
            let inner = self.clone();
            engine::spawn(async move { inner.run().await });
        }
    }

    async fn run(self: Arc<Self>) {
        let mut beaten = self.clock().now();
        while let Some(plan) = self.registry.plan(beaten, self.clock().now()) {
            for leaving in plan.due {
                let inner = self.clone();
                engine::spawn(async move { inner.see_out(leaving).await });
            }
            if plan.beat <= self.clock().now() {
                beaten = self.clock().now();
                if !self.beat(plan.pace).await {
                    // Soon again: there is time for a few more before a lease ends.
                    beaten = beaten.minus(plan.pace - plan.pace / 4);
                }
                continue;
            }
            tokio::select! {
                biased;
                () = self.registry.hurry.notified() => {}
                () = self.clock().sleep_until(plan.next) => {}
            }
        }
    }

    /// One call for all waiters and all that lingers; false when it got no answer.
    async fn beat(self: &Arc<Self>, pace: Duration) -> bool {
        let beats = self.registry.beats(self.clock().now());
        let (waiters, places): (Vec<_>, Vec<_>) = beats.into_iter().unzip();
        if places.is_empty() {
            return true;
        }
        let bound = pace.clamp(BOUNDS.0, BOUNDS.1);
        let call = self.clock().timeout(bound, self.store.keep(&places)).await;
        let mut answered = call.is_some();
        let call = call.unwrap_or_default();
        self.heard_of(&call);
        for ((waiter, place), kept) in waiters.into_iter().zip(&places).zip(call) {
            answered &= !matches!(kept, Kept::Unknown(_));
            if place.held {
                self.learn(&place.key, &kept, None);
            }
            let Some(waiter) = waiter else { continue };
            match kept {
                Kept::Until { lease, .. } => {
                    if let Some((_, last)) = &mut waiter.state.lock().joined {
                        *last = lease;
                    }
                }
                Kept::Lost(why) => waiter.lose(why),
                // Its own deadline decides.
                Kept::Unknown(e) => {
                    tracing::debug!(store = self.store.info().site, error = %e, "no answer to a heartbeat");
                }
            }
        }
        answered
    }

    /// Leaves the queue, again and again until that is acknowledged or the session has ended.
    async fn see_out(&self, leaving: Leaving<S::Place>) {
        let (req, mut wait) = (leaving.key.req, Backoff::default());
        let mut alive = self.clock().now();
        // Not on the list any more: its end was told, another call has left, or the client closed.
        while self.registry.is_leaving(&req) {
            let Err(e) = self.leave(&leaving.key, leaving.place.as_ref()).await else { break };
            if self.has_ended(&leaving, &mut alive).await {
                tracing::debug!(lock = %leaving.key.lock, error = %e, "ended with its session");
                break;
            }
            self.clock().sleep(wait.next()).await;
        }
        self.registry.gone(&req);
    }

    /// Whether an entry that cannot be left has ended with its session. That is shared: it lives as
    /// long as anything of this client is kept by it. `alive` is when it last was known to live.
    async fn has_ended(&self, leaving: &Leaving<S::Place>, alive: &mut BootInstant) -> bool {
        let ttl = leaving.lease.ttl;
        // Not before it would have ended by itself: the question may keep it.
        if self.clock().now().since(*alive) <= ttl {
            return false;
        }
        if let Some(place) = leaving.place.clone() {
            let keeping = [Keeping { key: leaving.key.clone(), place, ttl, held: false }];
            let call = self.clock().timeout(BOUNDS.1, self.store.keep(&keeping)).await;
            match call.and_then(|mut kept| kept.pop()) {
                Some(Kept::Until { .. } | Kept::Lost(LossReason::Revoked)) => {
                    *alive = self.clock().now();
                    return false;
                }
                Some(Kept::Lost(_)) => return true,
                Some(Kept::Unknown(_)) | None => {}
            }
        }
        // Nothing was kept by a client that heard nothing.
        let heard = BootInstant::from_nanos(self.heard.load(Ordering::Acquire)).max(*alive);
        self.clock().now().since(heard) >= ttl + GRACE
    }

    /// An entry is to leave later.
    pub(super) fn leave_later(self: &Arc<Self>, leaving: Leaving<S::Place>) {
        let at = leaving.at;
        let beat = self.clock().now().plus(leaving.lease.ttl / 3);
        let lingers = leaving.cause == Cause::Lingering;
        self.registry.leave_later(leaving);
        self.tend(if lingers { at.min(beat) } else { at });
    }

    /// A hold is lost. One that an operator took away leaves when its lease ends, or as soon as
    /// its holder has let go.
    pub(super) fn strike(
        self: &Arc<Self>,
        key: &Key,
        why: LossReason,
    ) -> Option<HeldEntry<S::Place>> {
        let hold = self.registry.strike(&key.req)?;
        if why == LossReason::Revoked {
            let end = hold.lease.sent.boot.plus(hold.lease.ttl);
            self.leave_later(Leaving::of(hold.clone(), end, Cause::Revoked));
        }
        Some(hold)
    }

    /// News from the store.
    pub(super) fn hear(self: &Arc<Self>, wake: Wake) {
        match wake {
            Wake::Turn(req) | Wake::Confirm(req) => {
                if let Some(waiter) = self.registry.waiter(&req) {
                    waiter.wake_up.notify_one();
                }
            }
            Wake::Everybody => {
                self.tell(Event::Missed);
                self.registry.wake_all();
            }
            Wake::Repeated(_) => {} // told by lease stores only
            Wake::Event(Event::Lost(key, why)) => self.lost(&key, why, None),
            Wake::Event(Event::Missed) => self.tell(Event::Missed),
            Wake::Event(Event::InDoubt(key)) => self.tell_all(&key, Event::InDoubt),
            Wake::Event(Event::Contended(key)) => self.tell_all(&key, Event::Contended),
        }
    }

    /// An entry is gone: its waiter and its holders are told, but for the request that asked.
    pub(super) fn lost(self: &Arc<Self>, key: &Key, why: LossReason, but: Option<&Key>) {
        if let Some(waiter) = self.registry.waiter(&key.req) {
            waiter.lose(why);
        }
        let Some(hold) = self.strike(key, why) else {
            if why != LossReason::Revoked {
                self.registry.gone(&key.req);
            }
            return;
        };
        for req in hold.reqs.into_iter().filter(|r| but.is_none_or(|key| key.req != *r)) {
            self.tell(Event::Lost(Key { lock: key.lock.clone(), req }, why));
        }
    }

    fn tell_all(&self, key: &Key, event: fn(Key) -> Event) {
        for req in self.registry.sharing(&key.req) {
            self.tell(event(Key { lock: key.lock.clone(), req }));
        }
    }
}
