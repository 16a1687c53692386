//! The driver of the lease family: one loop for every store that decides atomically.
//!
//! 1. Put the request on the list of waiters, so that no wake-up is missed.
//! 2. Ask. Granted, or busy and no patience: done.
//! 3. In line: sleep until rung, or, as the head, until the holder's lease could end. Those close
//!    behind look a little later, one after the other, in case the head is dead as well.
//! 4. Ask again with the same request: a wake-up is a hint, the answer is the truth. Where the store
//!    says so ([`Wake::Confirm`]), the library's thread asks at once, and the waiter has the answer.
//! 5. Patience over: cancel, so that nothing stays in line.
//!
//! Waiters of one client share heartbeat calls, on the library's own thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::in_doubt::{Doubt, InDoubt};
use crate::state::{Left, Pulse, Refusal};
use crate::waiters::{self, Entry, Round, Waiting, Woken};
use crate::{
    Ask, Attempt, Backend, Before, BootInstant, Class, Clock, ClockReading, Due, Error, Event,
    Force, Forced, FullName, Fut, Grant, Kept, Key, LeaseStore, LockInfo, Move, Mutex, Order,
    Patience, Query, QueueStatus, Released, Reply, StoreInfo, Token, TokenRange, Wake, Watcher,
    engine,
};

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
pub struct LeaseDriver<S> {
    inner: Arc<Inner<S>>,
    events: Mutex<Option<UnboundedReceiver<Event>>>,
}

struct Inner<S> {
    store: S,
    waiting: Arc<Waiting>,
    doubts: Arc<InDoubt>,
}

impl<S: LeaseStore> LeaseDriver<S> {
    /// Drives a store.
    pub fn new(store: S) -> Self {
        let waiting = Arc::<Waiting>::default();
        let (tx, rx) = unbounded_channel();
        let doubts = Arc::new(InDoubt::new(store.info().clock.clone()));
        let (sink, repeats) = (waiting.clone(), doubts.clone());
        let inner = Arc::new(Inner { store, waiting, doubts });
        let weak = Arc::downgrade(&inner);
        inner.store.listen(Arc::new(move |wake| match wake {
            Wake::Turn(req) => sink.ring(&req),
            Wake::Confirm(req) => {
                if let Some(inner) = weak.upgrade()
                    && let Some(entry) = sink.to_confirm(&req)
                {
                    engine::spawn(async move { inner.confirm(&entry).await });
                }
            }
            Wake::Everybody => {
                let _ = tx.send(Event::Missed);
                sink.ring_all();
            }
            Wake::Repeated(req) => repeats.repeat(req),
            Wake::Event(event) => {
                let _ = tx.send(event);
            }
        }));
        Self { inner, events: Mutex::new(Some(rx)) }
    }
}

impl<S: LeaseStore> Inner<S> {
    fn clock(&self) -> &Clock {
        self.store.info().clock
    }

    /// Now, as a question leaves.
    fn reading(&self) -> ClockReading {
        self.store.info().reading()
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.store.ends_in_time() {
            return call.await;
        }
        // In a box: a store that bounds its calls itself should not carry room for a timer.
        let answer = Box::pin(self.clock().timeout(CALL, call)).await;
        answer.unwrap_or_else(|| Err(self.late()))
    }

    /// One move, its errors told with what they are about.
    async fn play(&self, one: Move) -> Result<Reply, Error> {
        let (verb, lock) = (one.verb(), one.lock().clone());
        // The blocking API acquires on the library's thread, and is a caller all the same.
        let class = if matches!(one, Move::Acquire(..)) { Class::Caller } else { Class::here() };
        let reply = match self.store.ends_in_time() {
            true => self.store.play_one(class, one).await,
            // In a box: each future that it is moved through would carry room for it once more.
            false => self.bounded(Box::pin(self.store.play_one(class, one))).await,
        };
        reply.map_err(|e| e.during(verb).lock(&lock).store(self.store.info().site))
    }

    /// Gives a hold back, and plays one move after that: both in one call.
    async fn play_after(&self, before: Before, one: Move) -> Result<Reply, Error> {
        let (verb, lock) = (one.verb(), one.lock().clone());
        let moves = vec![Move::Release(before.key), one];
        let played = async { Ok(self.store.play(Class::Caller, moves).await) };
        let mut replies = match self.bounded(played).await {
            Ok(replies) => replies.into_iter(),
            Err(e) => vec![Err(e.clone()), Err(e)].into_iter(),
        };
        let mut next = || replies.next().unwrap_or_else(|| Err(self.late()));
        (before.told)(next().and_then(released))?;
        next().map_err(|e| e.during(verb).lock(&lock).store(self.store.info().site))
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        match self.play(Move::Cancel(key.clone())).await? {
            Reply::Cancelled => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    async fn release(&self, key: &Key) -> Result<Released, Error> {
        released(self.play(Move::Release(key.clone())).await?)
    }

    fn late(&self) -> Error {
        self.store.info().unanswered(CALL)
    }

    /// A granted reply as a grant, whose lease counts from before the question.
    fn grant(
        &self,
        ask: &Ask,
        sent: ClockReading,
        tokens: TokenRange,
        left: Duration,
        waiters: u32,
    ) -> Grant {
        let lease = self.store.info().capability.lease(sent, left);
        Grant { req: ask.req, tokens, lease, waiters }
    }

    /// Where a request stands that was not granted.
    fn status(&self, ahead: u32, why: Left) -> QueueStatus {
        let queues = self.store.info().capability.order != Order::None;
        let ahead = queues.then_some(ahead);
        QueueStatus { holder: why.holder, ahead, left: why.left, note: None }
    }

    async fn try_once(&self, ask: &Arc<Ask>) -> Result<Attempt, Error> {
        let sent = self.reading();
        let answer = self.play(Move::Acquire(Arc::clone(ask), None)).await;
        let doubtful = self.doubts.was_repeated(&ask.req);
        let status = match answer {
            Ok(Reply::Granted { token, block, remaining, waiters, .. }) => {
                if doubtful {
                    self.doubt(ask);
                }
                let tokens = TokenRange::new(token, block)?;
                return Ok(Attempt::Granted(self.grant(ask, sent, tokens, remaining, waiters)));
            }
            Ok(Reply::Busy { ahead, why } | Reply::Waiting { ahead, why }) => {
                self.status(ahead, why)
            }
            Ok(other) => return Err(self.refused(ask, other)),
            Err(e) => match e.retry_after() {
                Some(left) => not_yet(left, &e),
                None => return Err(if doubtful { e.unknown() } else { e }),
            },
        };
        if doubtful {
            // A copy of it that arrives once the lock is free would be granted to nobody.
            self.cancel(&ask.key()).await?;
        }
        Ok(Attempt::Busy(status))
    }

    /// The error of an acquire whose reply is neither a grant nor a place in the queue.
    fn refused(&self, ask: &Ask, reply: Reply) -> Error {
        let e = match reply {
            Reply::Tombstoned(_) => return Error::tombstoned(),
            Reply::Refused(Refusal::PermitsDiffer(n)) => Error::permits_differ(n),
            Reply::Refused(Refusal::ModeDiffers(mode)) => Error::mode_differs(mode),
            other => other.unexpected(),
        };
        e.during("acquire").lock(&ask.lock).store(self.store.info().site)
    }

    /// Notes a grant whose request may arrive once more.
    fn doubt(&self, ask: &Ask) {
        let min_until = self.clock().now().plus(ask.min_hold);
        self.doubts.add(ask.req, Doubt { ttl: ask.ttl, min_until });
    }

    async fn wait(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        until: BootInstant,
        seen: Option<Watcher<'_>>,
        mut before: Option<Box<Before>>,
    ) -> Result<Attempt, Error> {
        let joined = self.waiting.join(ask.clone(), ask.ttl.min(WAIT_LEASE), seen.is_some());
        let mut wait = Wait::default();
        loop {
            // In a box of its own, so that a waiter does not carry the call's state while it sleeps.
            let asked = self.ask(&joined.entry, &mut wait, seen, before.take());
            let asked = Box::pin(asked).await;
            let again = match asked? {
                Verdict::Granted(grant) => return Ok(Attempt::Granted(grant)),
                Verdict::Again(at) => at.min(until),
            };
            self.doze(&joined.entry, again).await;
            if self.clock().now() >= until {
                return Box::pin(self.give_up(&joined.entry, wait)).await;
            }
        }
    }

    /// Asks once, unless the library's thread has: granted, or when to ask again unless rung before.
    async fn ask(
        self: &Arc<Self>,
        entry: &Entry,
        wait: &mut Wait,
        seen: Option<Watcher<'_>>,
        before: Option<Box<Before>>,
    ) -> Result<Verdict, Error> {
        let (sent, reply) = match entry.wakes() {
            Woken::Waits => return Ok(Verdict::Again(BootInstant::FAR)),
            Woken::Has(answer) => {
                // Rings that came while it was asked for are one with that of the answer.
                entry.wake_up.notify_one();
                *answer
            }
            Woken::Asks => {
                let (sent, one) = (self.reading(), entry.request());
                match before {
                    // In a box: few ask so, and all would carry room for it.
                    Some(before) => (sent, Box::pin(self.play_after(*before, one)).await),
                    None => (sent, self.play(one).await),
                }
            }
        };
        let verdict = self.judge(entry, wait, sent, reply, seen)?;
        if let Verdict::Again(_) = verdict {
            entry.sleeps();
        }
        Ok(verdict)
    }

    /// Asks for a waiter that sleeps, because it is its turn.
    async fn confirm(self: &Arc<Self>, entry: &Entry) {
        let sent = self.reading();
        let unanswered = Unanswered { driver: self, entry, sent };
        let reply = self.play(entry.request()).await;
        let granted = matches!(reply, Ok(Reply::Granted { .. }));
        entry.answered(self.clock().now(), sent, reply);
        drop(unanswered);
        if granted {
            // Looked at again in time, in case the waiter is not polled.
            self.waiting.stands(entry, sent.boot, None);
            self.beat();
        }
    }

    /// What an answer means for a waiter.
    fn judge(
        self: &Arc<Self>,
        entry: &Entry,
        wait: &mut Wait,
        sent: ClockReading,
        answer: Result<Reply, Error>,
        seen: Option<Watcher<'_>>,
    ) -> Result<Verdict, Error> {
        let ask = &*entry.ask;
        wait.doubtful |= self.doubts.was_repeated(&ask.req);
        let answer = match answer {
            Err(e) if e.retry_after().is_some() => Err(e),
            // Its place is kept for a wait-lease: trouble that passes sooner costs nothing.
            Err(e) if e.is_transient() && entry.keeps_its_place(sent.boot) => {
                tracing::debug!(lock = %ask.lock, error = %e, "asking again");
                wait.doubtful = true;
                if !std::mem::replace(&mut wait.troubled, true)
                    && let Some(seen) = seen
                {
                    seen(&QueueStatus { note: Some(in_trouble(&e)), ..QueueStatus::default() });
                }
                let pause = wait.next_try(entry);
                return Ok(Verdict::Again(self.clock().now().plus(pause)));
            }
            // What an earlier question left open, a later one that did not even leave does not close.
            Err(e) => return Err(if wait.doubtful { e.unknown() } else { e }),
            Ok(reply) => Ok(reply),
        };
        entry.heard_of(sent.boot);
        wait.tries = 0;
        let (status, again) = match answer {
            Ok(Reply::Granted { token, block, remaining, waiters, .. }) => {
                if wait.doubtful {
                    self.doubt(ask);
                }
                let tokens = TokenRange::new(token, block)?;
                return Ok(Verdict::Granted(self.grant(ask, sent, tokens, remaining, waiters)));
            }
            Ok(Reply::Waiting { ahead, why }) => {
                entry.ahead.store(ahead, Ordering::Relaxed);
                let look = self.look(self.clock().now(), ahead, why.left);
                self.waiting.stands(entry, sent.boot, look);
                self.beat();
                let mut again = why.left.filter(|_| ahead == 0).map(|left| left + AFTER_EXPIRY);
                if !self.store.pushes() {
                    let poll = wait.next_look(ask, ahead);
                    again = Some(again.map_or(poll, |again| again.min(poll)));
                }
                (self.status(ahead, why), again)
            }
            // No queue here: ask again before long, less and less often.
            Ok(Reply::Busy { ahead, why }) => {
                let poll = wait.next_poll(ask);
                let again = why.left.map_or(poll, |left| poll.min(left + AFTER_EXPIRY));
                (self.status(ahead, why), Some(again))
            }
            Ok(other) => return Err(self.refused(ask, other)),
            Err(e) => {
                let left = e.retry_after().unwrap_or_default();
                tracing::info!(lock = %ask.lock, store = self.store.info().site, "{}", e.message());
                (not_yet(left, &e), Some(left))
            }
        };
        // That trouble is over is news, whatever the answer.
        if std::mem::take(&mut wait.troubled) || status.is_news_after(&wait.last) {
            tracing::debug!(lock = %ask.lock, %status, "waiting");
            if let Some(seen) = seen {
                seen(&status);
            }
        }
        wait.last = status;
        Ok(Verdict::Again(again.map_or(BootInstant::FAR, |d| self.clock().now().plus(d))))
    }

    /// Sleeps until rung, or until a moment; without a timer when there is no moment to wait for.
    async fn doze(&self, entry: &Entry, until: BootInstant) {
        let rung = entry.wake_up.notified();
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
    async fn give_up(self: &Arc<Self>, entry: &Entry, mut wait: Wait) -> Result<Attempt, Error> {
        match entry.wakes() {
            Woken::Asks => {}
            Woken::Waits => wait.doubtful = true,
            Woken::Has(answer) => {
                let (sent, reply) = *answer;
                let verdict = self.judge(entry, &mut wait, sent, reply, None)?;
                if let Verdict::Granted(grant) = verdict {
                    return Ok(Attempt::Granted(grant));
                }
            }
        }
        if wait.doubtful {
            self.cancel(&entry.ask.key()).await?;
            return Ok(Attempt::Busy(wait.last));
        }
        let attempt = self.try_once(&entry.ask).await?;
        let Attempt::Busy(status) = attempt else { return Ok(attempt) };
        let ahead = wait.last.ahead.map(|ahead| ahead.min(entry.ahead.load(Ordering::Relaxed)));
        Ok(Attempt::Busy(QueueStatus { ahead, ..status }))
    }

    /// When one close behind the head should look whether the line has come to a halt.
    fn look(&self, now: BootInstant, ahead: u32, left: Option<Duration>) -> Option<BootInstant> {
        let near = (1..=NEAR).contains(&ahead) && self.store.pushes();
        let end = now.plus(left.filter(|_| near)?);
        Some(end.plus(AFTER_EXPIRY).plus(STAGGER * ahead))
    }

    /// Starts the shared heartbeat unless it beats already.
    fn beat(self: &Arc<Self>) {
        if !self.waiting.start_beating() {
            return;
        }
        let inner = self.clone();
        engine::spawn(async move {
            while !inner.waiting.stop_beating_if_empty() {
                let Round { due, lapsed, wake } = inner.waiting.round(inner.clock().now());
                for entry in lapsed {
                    let inner = inner.clone();
                    engine::spawn(async move {
                        let undone = inner.cancel(&entry.ask.key()).await;
                        tracing::warn!(lock = %entry.ask.lock, ?undone, "its waiter is not polled");
                    });
                }
                for call in waiters::calls(due, |e| inner.store.shard(&e.ask.lock)) {
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

    async fn beat_once(&self, mut all: Vec<Arc<Entry>>) {
        // Those of one lock together: a store then reads its queue once.
        all.sort_by(|a, b| a.ask.lock.cmp(&b.ask.lock));
        let sent = self.clock().now();
        let moves = all.iter().map(|e| Move::Heartbeat(e.ask.key(), e.wait_lease)).collect();
        let bound = all.iter().map(|e| e.wait_lease / 3).min().unwrap_or_default().max(POLL.1);
        let replies = self.clock().timeout(bound, self.store.play(Class::Upkeep, moves)).await;
        let mut replies = replies.unwrap_or_default().into_iter();
        for entry in &all {
            match replies.next() {
                Some(Ok(Reply::Pulse(pulse))) => self.feel(entry, sent, pulse),
                failed => {
                    tracing::debug!(lock = %entry.ask.lock, ?failed, "heartbeat failed");
                    self.waiting.failed(entry, self.clock().now());
                }
            }
        }
    }

    fn feel(&self, entry: &Entry, sent: BootInstant, pulse: Pulse) {
        let ring = match pulse {
            Pulse::Turn => true,
            Pulse::Unknown => {
                // It asks and joins anew; until it stands in line again there is nothing to beat for.
                self.waiting.failed(entry, self.clock().now());
                return entry.wake_up.notify_one();
            }
            Pulse::Queued { ahead, .. } => {
                let before = entry.ahead.swap(ahead, Ordering::Relaxed);
                before != ahead && (ahead == 0 || entry.curious)
            }
        };
        let look = match pulse {
            Pulse::Queued { ahead, left } => self.look(sent, ahead, left),
            _ => None,
        };
        self.waiting.stands(entry, sent, look);
        if ring {
            entry.wake_up.notify_one();
        }
    }

    /// Gives a hold back whose request may still arrive: cancelled, it stays given back. What the
    /// store thinks of it until then is asked by a renewal, because a cancel does not say.
    async fn release_in_doubt(&self, key: &Key, doubt: Doubt) -> Result<Released, Error> {
        let released = if self.clock().now() < doubt.min_until {
            // A cancel would cut its min_hold short. Released first, it is on record as that.
            self.release(key).await?
        } else {
            let due = Due { key: key.clone(), ttl: doubt.ttl };
            match self.play(Move::Renew(due)).await? {
                Reply::Renewed { .. } => Released::Released,
                Reply::Lost(_) => Released::WasLost,
                other => return Err(other.unexpected()),
            }
        };
        self.cancel(key).await?;
        self.doubts.settle(&key.req);
        Ok(released)
    }
}

/// Answers a waiter whose confirmation ended without an answer, because the store panicked: nobody
/// else would wake it.
struct Unanswered<'a, S: LeaseStore> {
    driver: &'a Inner<S>,
    entry: &'a Entry,
    sent: ClockReading,
}

impl<S: LeaseStore> Drop for Unanswered<'_, S> {
    fn drop(&mut self) {
        if self.entry.is_confirming() {
            let now = self.driver.clock().now();
            self.entry.answered(now, self.sent, Err(self.driver.late()));
        }
    }
}

/// What a waiter remembers between two questions.
#[derive(Default)]
struct Wait {
    /// Where it stood when last told.
    last: QueueStatus,
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
        pause - entry.ask.req.jitter(pause / 10)
    }

    /// When to look again in a line that calls nobody up: the head often, whoever is further back
    /// the less often.
    fn next_look(&mut self, ask: &Ask, ahead: u32) -> Duration {
        match ahead {
            0 => self.next_poll(ask),
            n => (POLL.1 * n.saturating_add(1).min(4)) + self.next_poll(ask) / 4,
        }
    }

    /// Twice as long as last time, within bounds, and up to a quarter more, differently for each
    /// request, so that pollers do not march in step.
    fn next_poll(&mut self, ask: &Ask) -> Duration {
        let poll = self.poll.map_or(POLL.0, |last| (last * 2).min(POLL.1));
        self.poll = Some(poll);
        poll + ask.req.jitter(poll / 4)
    }
}

fn released(reply: Reply) -> Result<Released, Error> {
    match reply {
        Reply::Released => Ok(Released::Released),
        Reply::Lost(_) => Ok(Released::WasLost),
        other => Err(other.unexpected()),
    }
}

/// What a waiter hears while its store cannot be asked.
fn in_trouble(e: &Error) -> Arc<str> {
    format!("the store does not answer ({}); asking again", e.message()).into()
}

fn not_yet(left: Duration, e: &Error) -> QueueStatus {
    QueueStatus { left: Some(left), note: Some(e.message().into()), ..QueueStatus::default() }
}

impl<S: LeaseStore> Backend for LeaseDriver<S> {
    fn info(&self) -> StoreInfo<'_> {
        self.inner.store.info()
    }

    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        // One box for each: a waiter should not carry room for a single question.
        if ask.patience == Patience::Never {
            return Box::pin(async move { self.inner.try_once(&ask).await });
        }
        Box::pin(async move {
            let until = ask.patience.until(self.clock().now());
            self.inner.wait(&ask, until, seen, None).await
        })
    }

    fn acquire_after<'a>(
        &'a self,
        before: Before,
        ask: Arc<Ask>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move {
            let until = ask.patience.until(self.clock().now());
            let mut before = Some(Box::new(before));
            // One whose request may still arrive is given back in calls of its own.
            if let Some(doubtful) =
                before.take_if(|b| self.inner.doubts.about(&b.key.req).is_some())
            {
                (doubtful.told)(self.release(&doubtful.key).await)?;
            }
            self.inner.wait(&ask, until, None, before).await
        })
    }

    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        Box::pin(async move {
            self.inner.cancel(key).await?;
            self.inner.doubts.settle(&key.req);
            Ok(())
        })
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(async move {
            let (sent, store) = (self.inner.reading(), &self.inner.store);
            let moves = due.iter().cloned().map(Move::Renew).collect();
            let replies = self.clock().timeout(CALL, store.play(Class::Upkeep, moves)).await;
            let mut replies = replies.unwrap_or_default().into_iter();
            let kept = |due: &Due| match replies.next() {
                Some(Ok(Reply::Renewed { remaining, waiters })) => {
                    Kept::Until { lease: self.info().capability.lease(sent, remaining), waiters }
                }
                Some(Ok(Reply::Lost(why))) => Kept::Lost(why),
                failed => {
                    let e = match failed {
                        Some(Ok(other)) => other.unexpected(),
                        Some(Err(e)) => e,
                        None => self.inner.late(),
                    };
                    Kept::Unknown(e.during("renew").lock(&due.key.lock).store(store.info().site))
                }
            };
            due.iter().map(kept).collect()
        })
    }

    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>> {
        match self.inner.doubts.about(&key.req) {
            Some(doubt) => Box::pin(self.inner.release_in_doubt(key, doubt)),
            None => Box::pin(self.inner.release(key)),
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

    fn tells_of_waiters(&self) -> bool {
        self.inner.store.tells_of_waiters()
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(self.inner.store.close())
    }
}
