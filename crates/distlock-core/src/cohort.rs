//! Cohorts: the tasks of one client that wait for the same lock share one request at the store, and
//! hand the lock on among themselves.
//!
//! Per client and terms (name, TTL, lock-delay, label) one request at most is at the store. Tasks
//! queue here, first come, first served; a release hands the lock to the next with the next token of
//! the block that the grant reserved, without a call to the store. Once somebody elsewhere waits, a
//! bounded number of hand-overs goes by before the lease is given back, and the next request of this
//! client stands behind whoever waited.
//!
//! The state machine ([`machine`]) decides; this drives it. Only a cohort sends releases of a lease it
//! feeds from, so no late release of an earlier holder can end the hold of a later one.
//!
//! Locks are taken in the order table, cohort, renewal schedule; no task is started and nobody is
//! woken while one is held.

use std::borrow::Borrow;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::client::{Client, Undo};
use crate::guard::HoldRecord;
use crate::simulation::HashSet;
use crate::{
    Attempt, BootInstant, Error, Family, FullName, Grant, Guard, Kind, Label, Mutex, Query,
    QueueStatus, engine,
};

mod machine;
#[cfg(test)]
mod model;
mod request;

use machine::{Arrival, MAX_BYPASS, Machine, Next, UNTAKEN};
use request::{Answer, Releasing, Request};

/// Tokens to reserve when tasks wait here and nobody elsewhere does.
const BLOCK: NonZeroU32 = NonZeroU32::new(1024).unwrap();
/// Tokens to reserve when somebody elsewhere waits: as many as can be used.
const CONTENDED_BLOCK: NonZeroU32 = NonZeroU32::new(MAX_BYPASS + 1).unwrap();
/// How much longer than its patience a request waits for the first answer of the store.
const FIRST_ANSWER: Duration = Duration::from_millis(500);
/// An acquire fails when so many grants came too late to be used: the TTL is too short for the store.
pub(crate) const TOO_LATE: u32 = 3;

/// What a lock is asked for with: requests that differ in it do not share a lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Terms {
    pub(crate) lock: FullName,
    pub(crate) ttl: Duration,
    pub(crate) lock_delay: Duration,
    pub(crate) label: Label,
}

/// The cohorts of one client, or none where locks are not handed over.
pub(crate) struct Cohorts {
    table: Option<Mutex<Table>>,
    /// A lease was parked once.
    lingers: AtomicBool,
}

type Table = HashSet<Listed>;

/// A cohort, found by its terms.
struct Listed(Arc<Cohort>);

pub(crate) struct Cohort {
    terms: Terms,
    client: Weak<Client>,
    state: Mutex<State>,
}

struct State {
    machine: Machine<Waiter>,
    /// The request at the store.
    request: Option<Arc<Request>>,
    /// The hold that is offered or parked.
    offer: Option<Arc<HoldRecord>>,
    /// How long the lease stays once its holder has released it and nobody wants it.
    linger: Duration,
    /// The task that passes on offers which are not taken, and gives back what is parked: its number,
    /// and when it looks next.
    watch: (u64, Option<BootInstant>),
}

/// A task that waits. Equal to itself alone.
#[derive(Clone)]
struct Waiter(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    waker: Option<Waker>,
    /// It did not take an offer in time, and is not in the queue.
    passed_over: bool,
    failed: Option<Error>,
}

impl Borrow<Terms> for Listed {
    fn borrow(&self) -> &Terms {
        &self.0.terms
    }
}

impl Hash for Listed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.terms.hash(state);
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.0.terms == other.0.terms
    }
}

impl Eq for Listed {}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Waiter {
    fn wake(&self) {
        let waker = self.0.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes it with what there is to know; the reason why it is not in the queue any more.
    fn tell(&self, change: impl FnOnce(&mut Waits)) {
        change(&mut self.0.lock());
        self.wake();
    }
}

/// The lease that a hold is of, as its cohort knows it.
#[derive(Clone)]
pub(crate) struct Share {
    cohort: Arc<Cohort>,
    turn: u64,
}

impl Cohorts {
    pub(crate) fn new(on: bool) -> Self {
        Self { table: on.then(Mutex::default), lingers: AtomicBool::new(false) }
    }

    pub(crate) fn are_on(&self) -> bool {
        self.table.is_some()
    }

    /// Whether a lease was ever parked: only then is it worth looking for one.
    pub(crate) fn has_lingered(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    fn parking_table(&self) -> Option<MutexGuard<'_, Table>> {
        self.table.as_ref().filter(|_| self.has_lingered()).map(Mutex::lock)
    }

    /// Takes a lease that is parked for such requests, without a call to the store.
    pub(crate) fn take_parked(
        &self,
        client: &Arc<Client>,
        terms: &Terms,
        max_hold: Option<Duration>,
        linger: Duration,
    ) -> Option<Guard> {
        let cohort = self.parking_table()?.get(terms)?.0.clone();
        let mut state = cohort.state.lock();
        let parked = state.offer.as_ref().filter(|_| state.machine.is_parked())?;
        // What is not good for it is given back when the request comes to the cohort.
        if !cohort.is_live(client, parked) || parked.check(Duration::ZERO).is_err() {
            return None;
        }
        state.machine.take_parked();
        state.linger = linger;
        let hold = state.offer.take()?;
        drop(state);
        Some(cohort.begin(client, hold, max_hold))
    }

    /// Gives back what is parked of a lock: a request that cannot share it is about to be sent.
    pub(crate) fn leave_parked(&self, client: &Arc<Client>, lock: &FullName) -> Option<Releasing> {
        let of_lock =
            |Listed(cohort): &Listed| (cohort.terms.lock == *lock).then(|| cohort.clone());
        let all: Vec<_> = self.parking_table()?.iter().filter_map(of_lock).collect();
        all.into_iter().find_map(|cohort| {
            let mut state = cohort.state.lock();
            let Next::Leave(None) = state.machine.give_up() else { return None };
            let hold = state.offer.take();
            drop(state);
            cohort.forget(client);
            hold.map(|hold| cohort.releasing(client, hold))
        })
    }

    /// Ends all waits and offers. What is held or offered is still on the schedule of renewals.
    pub(crate) fn close(&self) {
        let Some(table) = &self.table else { return };
        let all: Vec<_> = table.lock().drain().map(|listed| listed.0).collect();
        for cohort in all {
            let mut state = cohort.state.lock();
            let waiters = state.machine.close();
            let (request, offer) = (state.request.take(), state.offer.take());
            drop(state);
            drop((request.and_then(|request| request.cancel()), offer));
            waiters.iter().for_each(Waiter::wake);
        }
    }
}

impl Share {
    /// Whether two holds are of one lease.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.turn == other.turn && Arc::ptr_eq(&self.cohort, &other.cohort)
    }

    /// The holder is done. True when the cohort has seen to it: the lock was handed over, or is being
    /// given back. Otherwise the holder ends its hold itself.
    pub(crate) fn release(&self, client: &Arc<Client>, hold: &Arc<HoldRecord>) -> bool {
        let (cohort, turn) = (&self.cohort, self.turn);
        let mut state = cohort.state.lock();
        if !state.machine.holds(turn) {
            return false;
        }
        let now = client.backend.info().reading();
        if state.machine.waiters() == 0 {
            if !state.linger.is_zero()
                && client.backend.tells_of_waiters()
                && state.machine.may_park(turn, cohort.is_live(client, hold))
                && let Some(next) = client.renewer.hand_over(hold)
            {
                let until = now.boot.plus(state.linger);
                state.machine.park(turn, until);
                state.offer = Some(next);
                drop(state);
                client.cohorts.lingers.store(true, Ordering::Relaxed);
                cohort.watch();
                return true;
            }
            let _ = state.machine.release(turn, now.boot, false);
            drop(state);
            cohort.forget(client);
            return false;
        }
        let live = cohort.is_live(client, hold);
        if state.machine.may_feed(turn, now.boot, live) {
            let Some(next) = client.renewer.hand_over(hold) else {
                drop(state);
                cohort.gone(client, turn);
                return false;
            };
            let to = state.machine.release(turn, now.boot, live);
            state.offer = Some(next);
            cohort.follow(client, state, to);
            cohort.watch();
            return true;
        }
        let block = block(&state.machine);
        // Views end before the release leaves, as of any hold.
        client.renewer.remove(hold);
        let held = hold.check(Duration::ZERO).is_ok() && hold.end();
        let ask = match held {
            true => match state.machine.release(turn, now.boot, false) {
                Next::Leave(ask) => ask,
                _ => None,
            },
            false => state.machine.gone(turn),
        };
        drop(state);
        let releasing = held.then(|| Releasing::new(client, hold.clone()));
        cohort.send(client, ask, block, 0, releasing);
        held
    }

    /// The hold ended otherwise than by a release, or its lease leaves the cohort. It is never fed
    /// from again; those who wait ask anew.
    pub(crate) fn gone(&self) {
        if let Some(client) = self.cohort.client.upgrade() {
            self.cohort.gone(&client, self.turn);
        }
    }

    /// The store said how many wait for the lock elsewhere, to a question sent at this moment.
    pub(crate) fn heard(&self, waiters: u32, sent: BootInstant, now: BootInstant) {
        let told =
            || self.cohort.client.upgrade().is_some_and(|client| client.backend.tells_of_waiters());
        if waiters > 0 || !told() {
            return self.contended(now);
        }
        self.cohort.state.lock().machine.uncontended(self.turn, sent);
    }

    /// Somebody elsewhere waits for the lock, or may.
    pub(crate) fn contended(&self, now: BootInstant) {
        let Some(client) = self.cohort.client.upgrade() else { return };
        let mut state = self.cohort.state.lock();
        let next = state.machine.contended(self.turn, now);
        drop(self.cohort.follow(&client, state, next));
    }
}

fn block(machine: &Machine<Waiter>) -> NonZeroU32 {
    if machine.is_awaited() { CONTENDED_BLOCK } else { BLOCK }
}

impl Cohort {
    /// Whether a lease is good for a hand-over: half of it is left, so that the next holder has time
    /// for its work and the renewal has time for its retries.
    fn is_live(&self, client: &Client, hold: &HoldRecord) -> bool {
        let capability = client.backend.capability();
        let half = hold.ttl.saturating_sub(capability.margin(hold.ttl)) / 2;
        let left = hold.left(client.backend.info().reading());
        left >= half && !hold.is_lost() && !client.closing.is_cancelled()
    }

    /// Removes itself from the table when nobody needs it any more.
    fn forget(self: &Arc<Self>, client: &Client) {
        let Some(table) = &client.cohorts.table else { return };
        let mut table = table.lock();
        if self.state.lock().machine.is_idle()
            && table.get(&self.terms).is_some_and(|found| Arc::ptr_eq(&found.0, self))
        {
            table.remove(&self.terms);
        }
    }

    /// Performs what the state machine decided.
    fn follow(
        self: &Arc<Self>,
        client: &Arc<Client>,
        mut state: MutexGuard<'_, State>,
        next: Next<Waiter>,
    ) -> Option<Undo> {
        match next {
            Next::Nothing => {}
            Next::Offer(to) => {
                drop(state);
                to.wake();
            }
            Next::Leave(ask) => {
                let offer = state.offer.take();
                drop(state);
                let releasing = offer.map(|hold| self.releasing(client, hold));
                self.send(client, ask, CONTENDED_BLOCK, 0, releasing);
            }
            Next::Cancel => {
                let request = state.request.take();
                drop(state);
                let undo = request.and_then(|request| request.cancel());
                self.forget(client);
                return undo;
            }
        }
        None
    }

    /// The release of a hold that nobody has.
    fn releasing(&self, client: &Arc<Client>, hold: Arc<HoldRecord>) -> Releasing {
        client.renewer.remove(&hold);
        let _ = hold.end();
        Releasing::new(client, hold)
    }

    /// A task has the hold from now on.
    fn begin(
        &self,
        client: &Arc<Client>,
        hold: Arc<HoldRecord>,
        max_hold: Option<Duration>,
    ) -> Guard {
        hold.begin(max_hold);
        if max_hold.is_some() {
            client.renewer.look_again(&hold);
        }
        tracing::debug!(lock = %self.terms.lock, token = %hold.token, "granted");
        Guard::new(client.clone(), hold)
    }

    /// Sends a release, if there is one, and then a request, if it is wanted.
    fn send(
        self: &Arc<Self>,
        client: &Arc<Client>,
        ask: Option<u64>,
        block: NonZeroU32,
        tries: u32,
        releasing: Option<Releasing>,
    ) {
        let Some(turn) = ask else {
            if let Some(releasing) = releasing {
                engine::spawn(releasing.send());
            }
            return self.forget(client);
        };
        let request = Request::new(client, &self.terms, turn, tries, block, None, releasing);
        let mut state = self.state.lock();
        if !state.machine.asks(turn) {
            drop(state);
            drop(request.cancel());
            return;
        }
        state.request = Some(request.clone());
        drop(state);
        self.drive(client, request);
    }

    /// Polls a request on the library's thread from now on.
    fn drive(self: &Arc<Self>, client: &Arc<Client>, request: Arc<Request>) {
        if !request.to_library() {
            return;
        }
        let driven = Driven(self.clone(), client.clone(), request);
        engine::spawn(async move {
            let Driven(cohort, client, request) = &driven;
            let answer = std::future::poll_fn(|cx| request.poll(cx, true)).await;
            if let Some(answer) = answer {
                cohort.answered(client, request, answer);
                cohort.watch();
            }
        });
    }

    /// The store answered the request.
    fn answered(self: &Arc<Self>, client: &Arc<Client>, request: &Request, answer: Answer) {
        let undo = request.undo();
        match answer {
            Ok(Attempt::Granted(grant))
                if !grant.lease.left(client.clock().reading()).is_zero() =>
            {
                self.granted(client, request, &grant, undo);
            }
            Ok(Attempt::Granted(grant)) => {
                drop(undo);
                tracing::warn!(lock = %self.terms.lock, "granted too late to be used; asking again");
                // One without any lease was given back because its leader was not polled in time.
                let tries = request.tries + u32::from(!grant.lease.ttl.is_zero());
                if tries >= TOO_LATE {
                    return self.failed(client, request.turn, &too_late());
                }
                let again = self.state.lock().machine.again(request.turn);
                if again.is_some() {
                    self.send(client, again, request.ask.block, tries, None);
                }
            }
            Ok(Attempt::Busy(_)) => {
                let busy = "the store answered busy to a request without an end to its patience";
                self.failed(client, request.turn, &Error::new(Kind::Store, busy).unknown());
            }
            Err(e) => {
                drop(undo);
                self.failed(client, request.turn, &e);
            }
        }
    }

    fn granted(
        self: &Arc<Self>,
        client: &Arc<Client>,
        request: &Request,
        grant: &Grant,
        undo: Option<Undo>,
    ) {
        let share = Share { cohort: self.clone(), turn: request.turn };
        let ttl = match client.backend.capability().family {
            Family::Queue => grant.lease.ttl,
            _ => request.ask.ttl,
        };
        let (clock, observer) = (client.clock().clone(), client.observer.clone());
        let key = request.ask.key();
        let hold = HoldRecord::new(key, grant, ttl, None, clock, observer).of(share);
        let hold = Arc::new(hold);
        client.renewer.add(hold.clone(), grant.lease.sent.boot, true);
        let awaited = grant.waiters > 0 || !client.backend.tells_of_waiters();
        let now = client.clock().now();
        let mut state = self.state.lock();
        let tokens = grant.tokens.len().get();
        let Some(to) = state.machine.granted(request.turn, tokens, awaited, now) else {
            drop(state);
            client.renewer.remove(&hold);
            let _ = hold.end();
            // Dropped with what takes the request back.
            return;
        };
        (state.request, state.offer) = (None, Some(hold.clone()));
        drop(state);
        if let Some(why) = undo.and_then(Undo::disarm) {
            client.renewer.lost(&hold, why);
            self.gone(client, request.turn);
        }
        to.wake();
    }

    /// The request failed: those who wait for it are told.
    fn failed(self: &Arc<Self>, client: &Arc<Client>, turn: u64, e: &Error) {
        let mut state = self.state.lock();
        let waiters = state.machine.failed(turn);
        if !waiters.is_empty() {
            state.request = None;
        }
        drop(state);
        for waiter in &waiters {
            waiter.tell(|w| w.failed = Some(e.clone()));
        }
        self.forget(client);
    }

    /// The lease of this number ended without a release, or is shared no more.
    fn gone(self: &Arc<Self>, client: &Arc<Client>, turn: u64) {
        let mut state = self.state.lock();
        let block = block(&state.machine);
        let ours =
            state.machine.holds(turn) || state.machine.offers(turn) || state.machine.parks(turn);
        let ask = state.machine.gone(turn);
        let offer = if ours { state.offer.take() } else { None };
        drop(state);
        if !ours {
            return;
        }
        if let Some(hold) = offer {
            // Nobody had it: what may be left of it only keeps everybody waiting.
            client.renewer.remove(&hold);
            let _ = hold.end();
            client.reaper.release(hold.key.clone(), hold.ttl);
        }
        self.send(client, ask, block, 0, None);
    }

    /// Passes offers on that nobody takes, and gives back what is parked, as long as there are offers,
    /// waiters or a parked lease.
    fn watch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (number, next) = state.watch;
        let Some(until) = state.machine.kept_until() else { return };
        if next.is_some_and(|next| next <= until) {
            return;
        }
        // One that would look too late ends when it does.
        let number = number + 1;
        state.watch = (number, Some(until));
        drop(state);
        let (cohort, weak) = (self.clone(), self.client.clone());
        engine::spawn(async move {
            while let Some(client) = weak.upgrade() {
                let clock = client.clock().clone();
                cohort.pass_over(&client);
                cohort.unpark(&client);
                drop(client);
                let Some(until) = cohort.look_again(number, clock.now()) else { return };
                clock.sleep_until(until).await;
            }
        });
    }

    /// When to look for an offer that is not taken; `None` ends the watch of this number.
    fn look_again(&self, number: u64, now: BootInstant) -> Option<BootInstant> {
        let mut state = self.state.lock();
        if state.watch.0 != number {
            return None;
        }
        let waits = state.machine.waiters() > 0;
        let until = state.machine.kept_until().or(waits.then(|| now.plus(UNTAKEN)));
        state.watch.1 = until;
        until
    }

    fn pass_over(self: &Arc<Self>, client: &Arc<Client>) {
        let mut state = self.state.lock();
        let live = state.offer.as_ref().is_some_and(|hold| self.is_live(client, hold));
        let Some((late, next)) = state.machine.overdue(client.clock().now(), live) else { return };
        late.0.lock().passed_over = true;
        tracing::warn!(lock = %self.terms.lock, "its waiter is not polled");
        self.follow(client, state, next);
    }

    /// Gives the parked lease back when its time is over.
    fn unpark(self: &Arc<Self>, client: &Arc<Client>) {
        let mut state = self.state.lock();
        let next = state.machine.unpark(client.clock().now());
        drop(self.follow(client, state, next));
    }
}

/// The error of an acquire whose grants are all worth nothing.
pub(crate) fn too_late() -> Error {
    Error::new(Kind::Store, "every grant arrived after its lease had ended")
        .with_hint("the store answers more slowly than the TTL lasts: ask for a longer TTL")
}

/// A request on the library's thread.
struct Driven(Arc<Cohort>, Arc<Client>, Arc<Request>);

impl Drop for Driven {
    /// A store that panics takes its request with it, and not those who wait for it.
    fn drop(&mut self) {
        let Driven(cohort, client, request) = self;
        if std::thread::panicking() {
            drop(request.cancel());
            cohort.failed(client, request.turn, &panicked());
        }
    }
}

fn panicked() -> Error {
    Error::new(Kind::Store, "the store panicked").unknown()
}

/// What a wait in a cohort comes to.
pub(crate) enum Waited {
    Granted(Guard),
    /// Its patience is over.
    Over,
}

/// A task that waits for a lock in its cohort. Dropped, it leaves the queue, and takes the request back
/// at the store if nobody else waits for that.
pub(crate) struct Wait {
    client: Arc<Client>,
    cohort: Arc<Cohort>,
    waiter: Waiter,
    /// The request that this task polls.
    request: Option<Arc<Request>>,
    max_hold: Option<Duration>,
    linger: Duration,
    until: BootInstant,
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    over: bool,
    /// Its patience is over, but for the first answer.
    late: bool,
    done: bool,
}

impl Wait {
    /// Stands in the queue from now on.
    ///
    /// # Errors
    /// When the client is closed, or hands nothing over.
    pub(crate) fn new(
        client: &Arc<Client>,
        terms: Terms,
        until: BootInstant,
        max_hold: Option<Duration>,
        linger: Duration,
    ) -> Result<Self, Error> {
        let waiter = Waiter(Arc::default());
        let timed = until != BootInstant::FAR;
        let (cohort, request) = enter(client, terms, &waiter, linger, timed, false)?;
        let clock = client.clock().clone();
        let timer = timed.then(|| {
            let timer: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { clock.sleep_until(until).await });
            timer
        });
        let client = client.clone();
        let (over, late, done) = (false, false, false);
        Ok(Self {
            client,
            cohort,
            waiter,
            request,
            max_hold,
            linger,
            until,
            timer,
            over,
            late,
            done,
        })
    }

    /// Takes the lock if it is offered.
    fn take(&mut self) -> Option<Guard> {
        let mut state = self.cohort.state.lock();
        if !state.machine.is_offered(&self.waiter) {
            return None;
        }
        let hold = state.offer.take()?;
        if hold.check(Duration::ZERO).is_err() {
            let turn = hold.share().map_or(0, |share| share.turn);
            state.offer = Some(hold);
            drop(state);
            self.cohort.gone(&self.client, turn);
            return None;
        }
        state.machine.take(&self.waiter);
        state.linger = self.linger;
        drop(state);
        self.done = true;
        Some(self.cohort.begin(&self.client, hold, self.max_hold))
    }

    /// Whether its patience is over. Not while the first answer to its own request is still to come:
    /// the lock may be free.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.over
            && let Some(timer) = &mut self.timer
        {
            self.over = timer.as_mut().poll(cx).is_ready();
        }
        let unanswered = |request: &Arc<Request>| request.status().is_none();
        if self.over && self.request.as_ref().is_some_and(unanswered) {
            // A store may say nothing until it grants.
            let (clock, end) = (self.client.clock().clone(), self.until.plus(FIRST_ANSWER));
            if !std::mem::replace(&mut self.late, true) {
                self.timer = Some(Box::pin(async move { clock.sleep_until(end).await }));
            }
            return self.timer.as_mut().is_none_or(|timer| timer.as_mut().poll(cx).is_ready());
        }
        self.over
    }

    /// Leaves the queue because patience is over: where the request stood.
    ///
    /// # Errors
    /// Store trouble.
    pub(crate) async fn give_up(mut self) -> Result<QueueStatus, Error> {
        self.done = true;
        let client = self.client.clone();
        let (place, seen, undo) = self.leave();
        if let Some(undo) = undo {
            undo.now().await;
        }
        let found = client.backend.inspect(&Query::Name(self.cohort.terms.lock.clone())).await;
        let found = match (found, &seen) {
            (Ok(found), _) => found.into_iter().next(),
            (Err(_), Some(seen)) => return Ok(seen.clone()),
            (Err(e), None) => return Err(e),
        };
        let seen = seen.unwrap_or_default();
        let waiters = found.as_ref().map_or(0, |lock| lock.waiters.len());
        let ahead = seen.ahead.unwrap_or(u32::try_from(waiters).unwrap_or(u32::MAX));
        let ahead = ahead.saturating_add(u32::try_from(place).unwrap_or(u32::MAX));
        let holder = found.and_then(|lock| lock.holds.into_iter().next()).map(|hold| hold.holder);
        let left = holder.as_ref().and_then(|holder| holder.left).or(seen.left);
        Ok(QueueStatus { holder, ahead: Some(ahead), left, note: seen.note })
    }

    /// Leaves the queue: the place it had, what the store last said, and what takes the request back
    /// if nobody else waits for it.
    fn leave(&mut self) -> (usize, Option<QueueStatus>, Option<Undo>) {
        let (cohort, client) = (&self.cohort, &self.client);
        let mut state = cohort.state.lock();
        let place = state.machine.place(&self.waiter).unwrap_or_default();
        let seen = state.request.as_ref().and_then(|request| request.status());
        let live = state.offer.as_ref().is_some_and(|hold| cohort.is_live(client, hold));
        let next = state.machine.leave(&self.waiter, client.clock().now(), live);
        let undo = cohort.follow(client, state, next);
        (place, seen, undo)
    }
}

/// Puts a waiter in the queue of its cohort: the cohort, and the request that the waiter is to poll.
fn enter(
    client: &Arc<Client>,
    terms: Terms,
    waiter: &Waiter,
    linger: Duration,
    timed: bool,
    back: bool,
) -> Result<(Arc<Cohort>, Option<Arc<Request>>), Error> {
    let Some(table) = &client.cohorts.table else { return Err(client.closed()) };
    let mut table = table.lock();
    let cohort = match table.get(&terms) {
        Some(found) => found.0.clone(),
        None => {
            let machine = Machine::new();
            let (linger, watch) = (Duration::ZERO, (0, None));
            let state = State { machine, request: None, offer: None, linger, watch };
            let (client, state) = (Arc::downgrade(client), Mutex::new(state));
            let cohort = Arc::new(Cohort { terms, client, state });
            table.insert(Listed(cohort.clone()));
            cohort
        }
    };
    let mut state = cohort.state.lock();
    let parked = state.offer.as_ref().filter(|_| state.machine.is_parked());
    let live = parked.is_some_and(|hold| cohort.is_live(client, hold));
    let arrival = state.machine.arrive(waiter.clone(), back, client.clock().now(), live);
    drop(table);
    match arrival {
        Arrival::Asks(turn) => {
            let terms = &cohort.terms;
            // A lone task uses one token, unless its lease stays for the next.
            let tokens = if linger.is_zero() { NonZeroU32::MIN } else { BLOCK };
            let timed = timed.then(|| waiter.clone());
            let request = Request::new(client, terms, turn, 0, tokens, timed, None);
            state.request = Some(request.clone());
            drop(state);
            Ok((cohort, Some(request)))
        }
        Arrival::Joins => {
            let request = state.request.clone();
            drop(state);
            if let Some(request) = request {
                cohort.drive(client, request);
            }
            tracing::debug!(lock = %cohort.terms.lock, "waiting");
            Ok((cohort, None))
        }
        Arrival::Leaves(turn) => {
            let hold = state.offer.take();
            drop(state);
            let releasing = hold.map(|hold| cohort.releasing(client, hold));
            cohort.send(client, Some(turn), BLOCK, 0, releasing);
            Ok((cohort, None))
        }
        Arrival::Offered => {
            drop(state);
            Ok((cohort, None))
        }
        Arrival::Waits => {
            drop(state);
            tracing::debug!(lock = %cohort.terms.lock, "waiting");
            Ok((cohort, None))
        }
        Arrival::Closed => Err(client.closed()),
    }
}

impl Future for Wait {
    type Output = Result<Waited, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut answered = false;
        loop {
            let mut waits = this.waiter.0.lock();
            if let Some(e) = waits.failed.take() {
                this.done = true;
                return Poll::Ready(Err(e));
            }
            if !waits.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                waits.waker = Some(cx.waker().clone());
            }
            let back = std::mem::take(&mut waits.passed_over);
            drop(waits);
            if back {
                let (terms, timed) = (this.cohort.terms.clone(), this.until != BootInstant::FAR);
                let entered = enter(&this.client, terms, &this.waiter, this.linger, timed, true);
                (this.cohort, this.request) = entered?;
            }
            // A close that comes after this look finds it in the queue, and wakes it.
            if this.client.closing.is_cancelled() {
                return Poll::Ready(Err(this.client.closed()));
            }
            if let Some(guard) = this.take() {
                return Poll::Ready(Ok(Waited::Granted(guard)));
            }
            if let Some(request) = this.request.clone() {
                match request.poll(cx, false) {
                    Poll::Ready(Some(answer)) => {
                        (this.request, answered) = (None, true);
                        this.cohort.answered(&this.client, &request, answer);
                        continue;
                    }
                    Poll::Ready(None) => {
                        this.request = None;
                        continue;
                    }
                    Poll::Pending => {}
                }
            }
            if answered {
                this.cohort.watch();
            }
            let over = this.is_over(cx);
            return if over { Poll::Ready(Ok(Waited::Over)) } else { Poll::Pending };
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        drop(self.leave());
        // A store that panics while it is polled here takes its request with it.
        if let Some(request) = &self.request
            && request.has_ended()
        {
            self.cohort.failed(&self.client, request.turn, &panicked());
        }
    }
}
