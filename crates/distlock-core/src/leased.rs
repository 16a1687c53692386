//! The driver of the lease family: one loop for every store that decides atomically.
//!
//! 1. Put the request on the list of waiters, so that no wake-up is missed.
//! 2. Ask. Granted, or busy and no patience: done.
//! 3. In line: sleep until rung, or, as the head, until the holder's lease could end. Those close
//!    behind look a little later, one after the other, in case the head is dead as well.
//! 4. Ask again with the same request: a wake-up is a hint, the answer is the truth.
//! 5. Patience over: cancel, so that nothing stays in line.
//!
//! Waiters of one client share heartbeat calls, on the library's own thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::busy::Standing;
use crate::capability::Capability;
use crate::clock::{BootInstant, Clock};
use crate::doubts::{Doubt, Doubts};
use crate::engine;
use crate::error::{Error, Kind};
use crate::info::{LockInfo, Query};
use crate::lease::{Answer, LeaseStore, Renewal, Wake};
use crate::moment::Moment;
use crate::name::FullName;
use crate::seam::{
    Ask, Attempt, Backend, Due, Event, Force, Forced, Fut, Grant, Kept, Key, Released, Watcher,
};
use crate::state::Pulse;
use crate::teeth::{self, Bug};
use crate::token::{Token, TokenRange};
use crate::ttl::Patience;
use crate::waiting::{self, Entry, Round, Waiting};

/// A waiter that is silent for longer leaves the line; never longer than its TTL.
const WAIT_LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a lease the head asks again.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// Those behind the head look this much later each, and only so many of them: the first to look finds
/// a dead head, and the others are told of what comes of that.
const STAGGER: Duration = Duration::from_millis(50);
const NEAR: u32 = 8;
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
    doubts: Arc<Doubts>,
}

impl<S: LeaseStore> Leased<S> {
    /// Drives a store.
    pub fn new(store: S) -> Self {
        let waiting = Arc::<Waiting>::default();
        let (tx, rx) = unbounded_channel();
        let doubts = Arc::<Doubts>::default();
        let (ears, repeats) = (waiting.clone(), doubts.clone());
        store.listen(Arc::new(move |wake| match wake {
            Wake::Turn(req) => ears.ring(&req),
            Wake::Everybody => ears.ring_all(),
            Wake::Repeated(req) => repeats.repeat(req),
            Wake::Event(event) => {
                let _ = tx.send(event);
            }
        }));
        let inner = Arc::new(Inner { store, waiting, doubts });
        Self { inner, events: Mutex::new(Some(rx)) }
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

    /// Now, as a question leaves.
    fn moment(&self) -> Moment {
        self.store.capability().moment(self.clock())
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.store.ends_in_time() {
            return call.await;
        }
        self.clock().timeout(CALL, call).await.unwrap_or_else(|| Err(self.late()))
    }

    fn late(&self) -> Error {
        Error::new(Kind::Unreachable, format!("no answer within {CALL:?}"))
            .unknown()
            .store(self.store.site())
            .with_hint(
                "see whether the store runs and can be reached; the same call may be repeated",
            )
    }

    fn grant(
        &self,
        ask: &Ask,
        sent: Moment,
        tokens: TokenRange,
        left: Duration,
        waiters: u32,
    ) -> Grant {
        let late = teeth::bites(Bug::DeadlineFromReply);
        let sent = if late { self.moment() } else { sent };
        let left = if teeth::bites(Bug::ReplayHasFullTtl) { ask.ttl } else { left };
        let margin = self.store.capability().margin(left);
        Grant { req: ask.req, tokens, sent, ttl: left, margin, waiters }
    }

    async fn try_once(&self, ask: &Ask) -> Result<Attempt, Error> {
        let sent = self.moment();
        let answer = self.bounded(self.store.acquire(ask, None)).await;
        let doubtful = self.doubts.was_repeated(&ask.req);
        let standing = match answer.map_err(|e| if doubtful { e.unknown() } else { e })? {
            Answer::Granted { tokens, left, waiters } => {
                if doubtful {
                    self.doubt(ask);
                }
                return Ok(Attempt::Granted(self.grant(ask, sent, tokens, left, waiters)));
            }
            Answer::Busy(standing) | Answer::Waiting(standing) => standing,
            Answer::NotYet { left, why } => not_yet(left, why),
            Answer::Spent => return Err(spent()),
        };
        if doubtful {
            // A copy of it that arrives once the lock is free would be granted to nobody.
            self.bounded(self.store.cancel(&ask.key())).await?;
        }
        Ok(Attempt::Busy(standing))
    }

    /// Notes a grant whose request may arrive once more.
    fn doubt(&self, ask: &Ask) {
        let now = self.clock().now();
        let min_until = now.plus(ask.min_hold);
        self.doubts.add(ask.req, Doubt { ttl: ask.ttl, min_until, since: now });
    }

    async fn wait(
        self: &Arc<Self>,
        ask: &Ask,
        until: BootInstant,
        seen: Option<Watcher<'_>>,
    ) -> Result<Attempt, Error> {
        let wait_lease = ask.ttl.min(WAIT_LEASE);
        let joined = self.waiting.join(ask.key(), wait_lease, seen.is_some());
        let mut wait = Wait::default();
        let mut renamed: Option<Box<Ask>> = None;
        loop {
            if wait.doubtful && teeth::bites(Bug::RetryIsNew) {
                renamed = Some(Box::new(Ask { req: crate::ReqId::random(), ..ask.clone() }));
            }
            let ask = renamed.as_deref().unwrap_or(ask);
            let sent = self.moment();
            // In a box of its own, so that a waiter does not carry the call's state while it sleeps.
            let call = Box::pin(self.store.acquire(ask, Some(wait_lease)));
            let answer = Box::pin(self.bounded(call)).await;
            let again = match self.judge(ask, &joined.entry, &mut wait, sent, answer, seen)? {
                Verdict::Granted(grant) => return Ok(Attempt::Granted(grant)),
                Verdict::Again(at) => at.min(until),
            };
            self.doze(&joined.entry, again).await;
            if self.clock().now() >= until {
                return Box::pin(self.give_up(ask, &joined.entry, wait)).await;
            }
        }
    }

    /// What an answer means for a waiter: granted, or when to ask again unless rung before.
    fn judge(
        self: &Arc<Self>,
        ask: &Ask,
        entry: &Entry,
        wait: &mut Wait,
        sent: Moment,
        answer: Result<Answer, Error>,
        seen: Option<Watcher<'_>>,
    ) -> Result<Verdict, Error> {
        wait.doubtful |= self.doubts.was_repeated(&ask.req);
        let answer = match answer {
            // Its place is kept for a wait-lease: trouble that passes sooner costs nothing.
            Err(e) if e.is_transient() && entry.keeps_its_place(sent.boot) => {
                tracing::debug!(lock = %ask.lock, error = %e, "asking again");
                wait.doubtful = true;
                if !std::mem::replace(&mut wait.troubled, true)
                    && let Some(seen) = seen
                {
                    seen(&Standing { note: Some(in_trouble(&e)), ..Standing::default() });
                }
                let pause = wait.next_try(entry);
                return Ok(Verdict::Again(self.clock().now().plus(pause)));
            }
            // What an earlier question left open, a later one that did not even leave does not close.
            other => other.map_err(|e| if wait.doubtful { e.unknown() } else { e })?,
        };
        entry.heard_of(sent.boot);
        wait.tries = 0;
        let (standing, again) = match answer {
            Answer::Granted { tokens, left, waiters } => {
                if wait.doubtful {
                    self.doubt(ask);
                }
                return Ok(Verdict::Granted(self.grant(ask, sent, tokens, left, waiters)));
            }
            Answer::Waiting(standing) => {
                entry.ahead.store(standing.ahead.unwrap_or(u32::MAX), Ordering::Relaxed);
                let look = self.look(self.clock().now(), standing.ahead, standing.left);
                self.waiting.stands(entry, sent.boot, look);
                self.beat();
                let head = standing.ahead == Some(0);
                let mut again = standing.left.filter(|_| head).map(|left| left + AFTER_EXPIRY);
                if !self.store.calls_up() {
                    let poll = wait.next_look(ask, standing.ahead);
                    again = Some(again.map_or(poll, |again| again.min(poll)));
                }
                (standing, again)
            }
            // No line here: ask again before long, less and less often.
            Answer::Busy(standing) => {
                let poll = wait.next_poll(ask);
                let again = standing.left.map_or(poll, |left| poll.min(left + AFTER_EXPIRY));
                (standing, Some(again))
            }
            Answer::NotYet { left, why } => {
                tracing::info!(lock = %ask.lock, store = self.store.site(), "{why}");
                (not_yet(left, why), Some(left))
            }
            Answer::Spent => return Err(spent()),
        };
        // That trouble is over is news, whatever the answer.
        if std::mem::take(&mut wait.troubled) || changed(&wait.last, &standing) {
            tracing::debug!(lock = %ask.lock, %standing, "waiting");
            if let Some(seen) = seen {
                seen(&standing);
            }
        }
        wait.last = standing;
        Ok(Verdict::Again(again.map_or(BootInstant::FAR, |d| self.clock().now().plus(d))))
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
    async fn give_up(&self, ask: &Ask, entry: &Entry, wait: Wait) -> Result<Attempt, Error> {
        if wait.doubtful {
            self.bounded(self.store.cancel(&entry.key)).await?;
            return Ok(Attempt::Busy(wait.last));
        }
        let attempt = self.try_once(ask).await?;
        let Attempt::Busy(standing) = attempt else { return Ok(attempt) };
        let ahead = wait.last.ahead.map(|ahead| ahead.min(entry.ahead.load(Ordering::Relaxed)));
        Ok(Attempt::Busy(Standing { ahead, ..standing }))
    }

    /// When one close behind the head should look whether the line has come to a halt.
    fn look(
        &self,
        now: BootInstant,
        ahead: Option<u32>,
        left: Option<Duration>,
    ) -> Option<BootInstant> {
        let ahead = ahead.filter(|n| (1..=NEAR).contains(n) && self.store.calls_up())?;
        Some(now.plus(left?).plus(AFTER_EXPIRY).plus(STAGGER * ahead))
    }

    /// Starts the shared heartbeat unless it beats already.
    fn beat(self: &Arc<Self>) {
        if teeth::bites(Bug::NoHeartbeat) || !self.waiting.start_beating() {
            return;
        }
        let inner = self.clone();
        engine::spawn(async move {
            while !inner.waiting.stop_beating_if_empty() {
                let Round { due, wake } = inner.waiting.round(inner.clock().now());
                for call in waiting::calls(due, |e| inner.store.shard(&e.key.lock)) {
                    let inner = inner.clone();
                    engine::spawn(async move { inner.beat_once(call).await });
                }
                tokio::select! {
                    biased;
                    () = inner.clock().sleep_until(wake) => {}
                    () = inner.waiting.hurry.notified() => {}
                }
            }
        });
    }

    async fn beat_once(&self, all: Vec<Arc<Entry>>) {
        let sent = self.clock().now();
        let waiting: Vec<_> = all.iter().map(|e| (e.key.clone(), e.wait_lease)).collect();
        let bound = all.iter().map(|e| e.wait_lease / 3).min().unwrap_or_default().max(POLL.1);
        let call = self.clock().timeout(bound, self.store.heartbeat(&waiting)).await;
        match call {
            Some(Ok(pulses)) => {
                all.iter().zip(pulses).for_each(|(entry, pulse)| self.feel(entry, sent, pulse));
            }
            failed => {
                let error = failed.map(Result::unwrap_err);
                tracing::debug!(store = self.store.site(), ?error, "heartbeat failed");
                let now = self.clock().now();
                all.iter().for_each(|entry| self.waiting.failed(entry, now));
            }
        }
    }

    fn feel(&self, entry: &Entry, sent: BootInstant, pulse: Pulse) {
        let ring = match pulse {
            Pulse::Turn => true,
            Pulse::Unknown => {
                // It asks and joins anew; until it stands in line again there is nothing to beat for.
                self.waiting.failed(entry, self.clock().now());
                return entry.bell.notify_one();
            }
            Pulse::Queued { ahead, .. } => {
                let before = entry.ahead.swap(ahead, Ordering::Relaxed);
                before != ahead && (ahead == 0 || entry.curious)
            }
        };
        let look = match pulse {
            Pulse::Queued { ahead, left } => self.look(sent, Some(ahead), left),
            _ => None,
        };
        self.waiting.stands(entry, sent, look);
        if ring {
            entry.bell.notify_one();
        }
    }

    /// Gives a hold back whose request may still arrive: cancelled, it stays given back. What the
    /// store thinks of it until then is asked by a renewal, because a cancel does not say.
    async fn release_in_doubt(&self, key: &Key, doubt: Doubt) -> Result<Released, Error> {
        let released = if self.clock().now() < doubt.min_until {
            // A cancel would cut its min_hold short. Released first, it is on record as that.
            self.bounded(self.store.release(key, None)).await?
        } else {
            let due = [Due { key: key.clone(), ttl: doubt.ttl }];
            let renewal = async { Ok(self.store.renew(&due).await.pop()) };
            match self.bounded(renewal).await? {
                Some(Renewal::Held { .. }) => Released::Released,
                Some(Renewal::Lost(_)) => Released::WasLost,
                Some(Renewal::Unknown(e)) => return Err(e),
                None => return Err(self.late()),
            }
        };
        self.bounded(self.store.cancel(key)).await?;
        self.doubts.settle(&key.req);
        Ok(released)
    }
}

/// What a waiter remembers between two questions.
#[derive(Default)]
struct Wait {
    /// Where it stood when last told.
    last: Standing,
    /// A question of its was never answered: it may still arrive.
    doubtful: bool,
    /// Its last question failed, and it was told so.
    troubled: bool,
    /// How long it last waited to ask a store without a line.
    poll: Option<Duration>,
    /// How many questions in a row had no answer.
    tries: u32,
}

enum Verdict {
    Granted(Grant),
    Again(BootInstant),
}

impl Wait {
    /// When to ask again after trouble: less and less often, at a quarter of the wait-lease at the
    /// latest, and not in step with the others.
    fn next_try(&mut self, entry: &Entry) -> Duration {
        let pause = POLL.1 * 2u32.pow(self.tries.min(2));
        self.tries += 1;
        let pause = pause.min(entry.wait_lease / 4);
        pause - entry.jitter(pause)
    }

    /// When to look again in a line that calls nobody up: the head often, whoever is further back
    /// the less often.
    fn next_look(&mut self, ask: &Ask, ahead: Option<u32>) -> Duration {
        match ahead {
            None | Some(0) => self.next_poll(ask),
            Some(n) => (POLL.1 * n.saturating_add(1).min(4)) + self.next_poll(ask) / 4,
        }
    }

    /// Twice as long as last time, within bounds, and up to a quarter more, differently for each
    /// request, so that pollers do not march in step.
    fn next_poll(&mut self, ask: &Ask) -> Duration {
        let poll = self.poll.map_or(POLL.0, |last| (last * 2).min(POLL.1));
        self.poll = Some(poll);
        poll + poll / 4 * u32::from(ask.req.as_bytes()[0]) / 255
    }
}

/// Whether people would call it news: another holder or another place.
fn changed(last: &Standing, now: &Standing) -> bool {
    let token = |s: &Standing| s.holder.as_ref().map(|h| h.token);
    token(last) != token(now) || last.ahead != now.ahead || *last == Standing::default()
}

/// What a waiter hears while its store cannot be asked.
fn in_trouble(e: &Error) -> Arc<str> {
    format!("the store does not answer ({}); asking again", e.message()).into()
}

fn not_yet(left: Duration, why: String) -> Standing {
    Standing { left: Some(left), note: Some(why.into()), ..Standing::default() }
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
        Box::pin(async move {
            self.inner.bounded(self.inner.store.cancel(key)).await?;
            self.inner.doubts.settle(&key.req);
            Ok(())
        })
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(async move {
            let sent = self.inner.moment();
            let renewals = self.clock().timeout(CALL, self.inner.store.renew(due)).await;
            let Some(renewals) = renewals else {
                return due.iter().map(|_| Kept::Unknown(self.inner.late())).collect();
            };
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
        match self.inner.doubts.about(&key.req) {
            Some(doubt) => Box::pin(self.inner.release_in_doubt(key, doubt)),
            None => Box::pin(self.inner.bounded(self.inner.store.release(key, requeue))),
        }
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

    fn shard(&self, lock: &FullName) -> u64 {
        self.inner.store.shard(lock)
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(self.inner.store.close())
    }
}
