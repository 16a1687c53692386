//! The driver of the lease family: one loop for every store that decides atomically.
//!
//! 1. Put the request on the list of waiters, so that no wake-up is missed.
//! 2. Ask. Granted, or busy and no patience: done.
//! 3. In line: sleep until rung, or, as the head, until the holder's lease could end.
//! 4. Ask again with the same request: a wake-up is a hint, the answer is the truth.
//! 5. Patience over: cancel, so that nothing stays in line.
//!
//! Waiters of one client share one heartbeat call, on the library's own thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::busy::Standing;
use crate::capability::Capability;
use crate::clock::{BootInstant, Clock};
use crate::engine;
use crate::error::{Error, Kind};
use crate::info::{LockInfo, Query};
use crate::lease::{Answer, LeaseStore, Renewal, Wake};
use crate::name::FullName;
use crate::seam::{
    Ask, Attempt, Backend, Due, Event, Force, Forced, Fut, Grant, Kept, Key, Released, Watcher,
};
use crate::state::Pulse;
use crate::token::Token;
use crate::ttl::Patience;
use crate::waiting::{Entry, Waiting};

/// A waiter that is silent for longer leaves the line; never longer than its TTL.
const WAIT_LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a lease the head asks again.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// A store that keeps no line is asked again within these bounds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// How long a call to the store may take before it counts as unanswered.
const CALL: Duration = Duration::from_secs(10);

/// A lease store as a [`Backend`].
pub struct Leased<S> {
    inner: Arc<Inner<S>>,
    events: Mutex<Option<UnboundedReceiver<Event>>>,
}

struct Inner<S> {
    store: S,
    waiting: Arc<Waiting>,
}

impl<S: LeaseStore> Leased<S> {
    /// Drives a store.
    pub fn new(store: S) -> Self {
        let waiting = Arc::<Waiting>::default();
        let (tx, rx) = unbounded_channel();
        let ears = waiting.clone();
        store.listen(Arc::new(move |wake| match wake {
            Wake::Turn(req) => ears.ring(&req),
            Wake::Everybody => ears.ring_all(),
            Wake::Event(event) => {
                let _ = tx.send(event);
            }
        }));
        Self { inner: Arc::new(Inner { store, waiting }), events: Mutex::new(Some(rx)) }
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.inner.store
    }
}

impl<S: LeaseStore> Inner<S> {
    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = || {
            Err(Error::new(Kind::Unreachable, format!("no answer within {CALL:?}"))
                .unknown()
                .store(self.store.site()))
        };
        self.clock().timeout(CALL, call).await.unwrap_or_else(late)
    }

    fn grant(&self, ask: &Ask, sent: BootInstant, answer: Answer) -> Result<Grant, Answer> {
        match answer {
            Answer::Granted { tokens, left, waiters } => Ok(Grant {
                req: ask.req,
                tokens,
                sent,
                ttl: left,
                margin: self.store.capability().margin(left),
                waiters,
            }),
            other => Err(other),
        }
    }

    async fn try_once(&self, ask: &Ask) -> Result<Attempt, Error> {
        let sent = self.clock().now();
        let answer = self.bounded(self.store.acquire(ask, None)).await?;
        match self.grant(ask, sent, answer) {
            Ok(grant) => Ok(Attempt::Granted(grant)),
            Err(Answer::Busy(standing) | Answer::Waiting(standing)) => Ok(Attempt::Busy(standing)),
            Err(Answer::NotYet { left, .. }) => {
                Ok(Attempt::Busy(Standing { left: Some(left), ..Standing::default() }))
            }
            Err(_) => Err(spent()),
        }
    }

    async fn wait(
        self: &Arc<Self>,
        ask: &Ask,
        until: BootInstant,
        seen: Option<Watcher<'_>>,
    ) -> Result<Attempt, Error> {
        let wait_lease = ask.ttl.min(WAIT_LEASE);
        let joined = self.waiting.join(ask.key(), wait_lease, seen.is_some());
        let entry = &joined.entry;
        let mut last = Standing::default();
        let mut placed: Option<BootInstant> = None;
        let mut doubtful = false;
        let mut poll = POLL.0;
        loop {
            let sent = self.clock().now();
            // In a box of its own, so that a waiter does not carry the call's state while it sleeps.
            let call = Box::pin(self.bounded(self.store.acquire(ask, Some(wait_lease))));
            let answer = match call.await {
                // Its place is kept for a wait-lease: trouble that passes sooner costs nothing.
                Err(e)
                    if e.is_transient() && placed.is_some_and(|at| sent.since(at) < wait_lease) =>
                {
                    tracing::debug!(lock = %ask.lock, error = %e, "asking again");
                    doubtful = true;
                    Box::pin(self.clock().sleep(POLL.1.min(wait_lease / 4))).await;
                    continue;
                }
                other => other?,
            };
            placed = Some(sent);
            let answer = match self.grant(ask, sent, answer) {
                Ok(grant) => return Ok(Attempt::Granted(grant)),
                Err(other) => other,
            };
            let (standing, again) = match answer {
                Answer::Waiting(standing) => {
                    entry.ahead.store(standing.ahead.unwrap_or(u32::MAX), Ordering::Relaxed);
                    self.beat();
                    let head = standing.ahead == Some(0);
                    let again = standing.left.filter(|_| head).map(|left| left + AFTER_EXPIRY);
                    (standing, again)
                }
                // No line here: ask again before long, less and less often.
                Answer::Busy(standing) => {
                    let again = standing.left.map_or(poll, |left| poll.min(left + AFTER_EXPIRY));
                    poll = jittered(poll * 2, ask).min(POLL.1);
                    (standing, Some(again))
                }
                Answer::NotYet { left, why } => {
                    tracing::info!(lock = %ask.lock, store = self.store.site(), "{why}");
                    (Standing { left: Some(left), ..Standing::default() }, Some(left))
                }
                _ => return Err(spent()),
            };
            if changed(&last, &standing) {
                tracing::debug!(lock = %ask.lock, %standing, "waiting");
                if let Some(seen) = seen {
                    seen(&standing);
                }
            }
            last = standing;
            let now = self.clock().now();
            let wake_at = again.map_or(BootInstant::FAR, |d| now.plus(d)).min(until);
            self.doze(entry, wake_at).await;
            if self.clock().now() >= until {
                return Box::pin(self.give_up(ask, entry, last, doubtful)).await;
            }
        }
    }

    /// Sleeps until rung, or until a moment; without a timer when there is no moment to wait for.
    async fn doze(&self, entry: &Entry, until: BootInstant) {
        let rung = entry.bell.notified();
        if until == BootInstant::FAR {
            return rung.await;
        }
        let timer = Box::pin(self.clock().sleep_until(until));
        tokio::select! {
            biased;
            () = rung => {}
            () = timer => {}
        }
    }

    /// Patience is over: asks a last time without standing in line, which leaves it and tells how
    /// things stand now. After an unanswered request only a cancel is sure to.
    async fn give_up(
        &self,
        ask: &Ask,
        entry: &Entry,
        mut last: Standing,
        doubtful: bool,
    ) -> Result<Attempt, Error> {
        if doubtful {
            self.bounded(self.store.cancel(&entry.key)).await?;
            return Ok(Attempt::Busy(last));
        }
        let attempt = self.try_once(ask).await?;
        let Attempt::Busy(standing) = attempt else { return Ok(attempt) };
        let ahead = last.ahead.map(|ahead| ahead.min(entry.ahead.load(Ordering::Relaxed)));
        last = Standing { ahead, ..standing };
        Ok(Attempt::Busy(last))
    }

    /// Starts the shared heartbeat unless it beats already.
    fn beat(self: &Arc<Self>) {
        if !self.waiting.start_beating() {
            return;
        }
        let inner = self.clone();
        engine::spawn(async move {
            loop {
                let all = inner.waiting.all();
                let shortest = all.iter().map(|e| e.wait_lease).min().unwrap_or(WAIT_LEASE);
                inner.clock().sleep(shortest / 3).await;
                if inner.waiting.stop_beating_if_empty() {
                    return;
                }
                inner.beat_once(shortest / 3).await;
            }
        });
    }

    async fn beat_once(&self, bound: Duration) {
        let all = self.waiting.all();
        let waiting: Vec<_> = all.iter().map(|e| (e.key.clone(), e.wait_lease)).collect();
        let call = self.clock().timeout(bound.max(POLL.1), self.store.heartbeat(&waiting)).await;
        match call {
            Some(Ok(pulses)) => all.iter().zip(pulses).for_each(|(entry, p)| feel(entry, p)),
            // No answer: each asks for itself and learns what is wrong.
            Some(Err(e)) => {
                tracing::debug!(store = self.store.site(), error = %e, "heartbeat failed");
                self.waiting.ring_all();
            }
            None => self.waiting.ring_all(),
        }
    }
}

fn feel(entry: &Entry, pulse: Pulse) {
    let ring = match pulse {
        Pulse::Turn | Pulse::Unknown => true,
        Pulse::Queued { ahead, .. } => {
            let before = entry.ahead.swap(ahead, Ordering::Relaxed);
            before != ahead && (ahead == 0 || entry.curious)
        }
    };
    if ring {
        entry.bell.notify_one();
    }
}

/// Whether people would call it news: another holder or another place.
fn changed(last: &Standing, now: &Standing) -> bool {
    let token = |s: &Standing| s.holder.as_ref().map(|h| h.token);
    token(last) != token(now) || last.ahead != now.ahead || *last == Standing::default()
}

/// Up to a quarter more, differently for each request, so that pollers do not march in step.
fn jittered(d: Duration, ask: &Ask) -> Duration {
    d + d / 4 * u32::from(ask.req.as_bytes()[0]) / 255
}

fn spent() -> Error {
    Error::new(Kind::Cancelled, "this request was cancelled or taken away")
        .with_hint("ask again: a new acquire is a new request")
}

impl<S: LeaseStore> Backend for Leased<S> {
    fn capability(&self) -> &Capability {
        self.inner.store.capability()
    }

    fn site(&self) -> &str {
        self.inner.store.site()
    }

    fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    fn acquire<'a>(
        &'a self,
        ask: &'a Ask,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move {
            match ask.patience {
                Patience::Never => Box::pin(self.inner.try_once(ask)).await,
                Patience::For(d) => {
                    let until = self.clock().now().plus(d);
                    self.inner.wait(ask, until, seen).await
                }
                Patience::Forever => self.inner.wait(ask, BootInstant::FAR, seen).await,
            }
        })
    }

    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        Box::pin(self.inner.bounded(self.inner.store.cancel(key)))
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(async move {
            let sent = self.clock().now();
            let renewals = self.inner.store.renew(due).await;
            let kept = |renewal| match renewal {
                Renewal::Held { left, waiters } => {
                    let margin = self.capability().margin(left);
                    Kept::Until { sent, ttl: left, margin, waiters }
                }
                Renewal::Lost(why) => Kept::Lost(why),
                Renewal::Unknown(e) => Kept::Unknown(e),
            };
            renewals.into_iter().map(kept).collect()
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a Key,
        requeue: Option<&'a Ask>,
    ) -> Fut<'a, Result<Released, Error>> {
        Box::pin(self.inner.bounded(self.inner.store.release(key, requeue)))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>> {
        Box::pin(self.inner.bounded(self.inner.store.inspect(query)))
    }

    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>> {
        Box::pin(self.inner.bounded(self.inner.store.force(lock, token, how)))
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(self.inner.store.close())
    }
}
