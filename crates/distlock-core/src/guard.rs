//! A held lock: its guard, the views of it, and the record that they share with the renewer.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::clock::nanos;
use crate::cohort::Share;
use crate::observe::Observer;
use crate::ticket::fingerprint;
use crate::{
    BootInstant, Clock, ClockReading, Error, FullName, Grant, Key, Kind, LossReason, Lost, Outcome,
    Proof, Released, Ticket, Token,
};

/// How often a release that got no answer is tried again before the reaper takes over.
const TRIES: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(50);

/// A held lock. It is renewed in the background until it is released, dropped or lost.
///
/// Dropping it releases in the background, without blocking, also outside a runtime and while one
/// shuts down: the release is sent from the library's own thread. Use [`Guard::release`] to know
/// how it went.
///
/// A guard that is leaked (`mem::forget`) is renewed for ever; `max_hold` bounds that.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    client: Arc<Client>,
    held: Held,
    done: bool,
    /// A release was begun: the store may have done it, whatever it answered.
    giving: bool,
    /// A request to release has left, in this call or an earlier one.
    asked: bool,
}

impl Guard {
    pub(crate) fn new(client: Arc<Client>, hold: Arc<HoldRecord>) -> Self {
        client.observer.holds(1.0);
        Self { client, held: Held(hold), done: false, giving: false, asked: false }
    }

    /// From a grant to the guard that has it, looked after from now on. No await in here: between
    /// the two nothing can be dropped. A loss that came before this is not known to it: ask for it
    /// afterwards, and say so by [`Guard::lost_before`].
    pub(crate) fn of_grant(
        client: &Arc<Client>,
        key: Key,
        grant: &Grant,
        ttl: Duration,
        max_hold: Option<Duration>,
        renew: bool,
    ) -> Self {
        let (clock, observer) = (client.clock().clone(), client.observer.clone());
        let hold = Arc::new(HoldRecord::new(key, grant, ttl, max_hold, clock, observer));
        client.renewer.add(hold.clone(), grant.lease.sent.boot, renew);
        Self::new(client.clone(), hold)
    }

    /// The hold was lost before there was a guard to tell.
    pub(crate) fn lost_before(&self, why: LossReason) {
        self.client.renewer.lost(self.hold(), why);
    }

    fn hold(&self) -> &Arc<HoldRecord> {
        &self.held.0
    }

    /// A view of this hold to pass around: token, check and loss, but not the lock itself.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Gives the lock back and says whether it was held up to this moment.
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown, and the release is repeated
    /// in the background until it is acknowledged or the lease has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background; nothing stays locked.
    pub async fn release(mut self) -> Result<Released, Error> {
        // In a box for the sake of waiters: a task's size is that of its largest await.
        Box::pin(self.give_back()).await
    }

    /// Like [`Guard::release`], but leaves the guard to the caller, who may try again after an
    /// error. From the first call on the lock is not held any more for all one knows, and the
    /// guard says so. Once it has succeeded, further calls answer [`Released::WasLost`].
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release begun: call it again, or drop the guard.
    pub async fn give_back(&mut self) -> Result<Released, Error> {
        if self.done {
            return Ok(Released::WasLost);
        }
        // Before it is off the renewer's list: a close sees one of the two.
        let _under_way = self.client.reaper.under_way();
        let hold = self.hold().clone();
        // Handed over to a task that waits here: whether it was held rests on its deadline.
        if self.is_seen_to_by_its_cohort(&hold) {
            self.finish("released");
            return Ok(Released::Released);
        }
        self.client.renewer.remove(&hold);
        // The views end before the request leaves: the store may free it any moment from then on.
        if self.held.check().is_ok() && hold.end() {
            self.giving = true;
        }
        let valid = || hold.in_time();
        // A lost lock is answered at once; what may be left of it is cleared in the background.
        if !self.giving || !valid() {
            self.finish("lost");
            self.clear(&hold);
            return Ok(Released::WasLost);
        }
        let (mut tries, mut unknown) = (0, false);
        loop {
            let again = std::mem::replace(&mut self.asked, true);
            let answer = self.client.backend.release(&hold.key).await;
            tries += 1;
            if answer.is_ok() {
                self.client.reaper.acknowledged();
            }
            match answer {
                // Nobody but ourselves could have ended it before its deadline: an earlier try,
                // unanswered, did.
                Ok(Released::WasLost) if again && valid() => {
                    self.finish("released");
                    return Ok(Released::Released);
                }
                Ok(released) => {
                    self.finish(if released == Released::Released { "released" } else { "lost" });
                    return Ok(released);
                }
                Err(e) => {
                    // What one try left open, a later one that did not leave at all does not close.
                    unknown |= e.outcome() == Outcome::Unknown;
                    if tries >= TRIES || e.outcome() == Outcome::Applied || !valid() {
                        let e = if unknown { e.unknown() } else { e };
                        return Err(e.during("release").lock(&hold.key.lock));
                    }
                    self.client.clock().sleep(BETWEEN).await;
                }
            }
        }
    }

    /// Lets go of the guard but not of the lock: it stays held until its TTL ends, and whoever has
    /// the ticket can take it up with [`Locks::resume`](crate::Locks::resume). Nothing is renewed
    /// meanwhile, so ask for a TTL that is long enough.
    ///
    /// # Errors
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) where a lock cannot outlive its process;
    /// the guard is then dropped, which releases it. [`Kind::Usage`](crate::Kind::Usage) on Redlock
    /// while its owner has entered the lock again: a release by the ticket would end that, too.
    pub fn detach(mut self) -> Result<Ticket, Error> {
        let backend = &self.client.backend;
        let refuse = |kind, what: &'static str, hint: &'static str| {
            Err(Error::new(kind, what).store(backend.site()).with_hint(hint))
        };
        if !backend.capability().detach {
            let what = "this store's locks end with their process and cannot be detached";
            let hint = "use a store whose capability says detach, such as sqlite";
            return refuse(Kind::Unsupported, what, hint);
        }
        if !backend.detach(&self.hold().key) {
            let what = "this owner has entered the lock again, and shares the hold";
            let hint = "release its other guards before this one is detached";
            return refuse(Kind::Usage, what, hint);
        }
        let ticket = self.ticket();
        self.client.renewer.remove(self.hold());
        let _ = self.hold().end();
        self.finish("detached");
        Ok(ticket)
    }

    /// The ticket of this hold: what [`Guard::detach`] gives, without letting go.
    ///
    /// Resumed with the same client, the hold passes to the new guard, and this one says that it
    /// was released. Resumed elsewhere while this guard lives, both hold it, and a release by one
    /// is known to the other only at its next renewal: detach before you pass a ticket on.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.export();
        let hold = self.hold();
        Ticket {
            lock: hold.key.lock.clone(),
            req: hold.key.req,
            token: hold.token,
            ttl: hold.ttl,
            store: fingerprint(self.client.backend.site()),
        }
    }

    /// What to put into one's own transaction at the very store that keeps the lock, to have that
    /// store refuse it once the lock is gone: no clock and no fence of one's own needed. `None`
    /// where the store has no such thing, or the hold is known to be lost.
    #[must_use]
    pub fn proof(&self) -> Option<Proof> {
        self.held.check().ok()?;
        let proof = self.client.backend.proof(&self.hold().key)?;
        self.export();
        Some(proof)
    }

    /// Clears in the background what may be left at the store, unless it is another guard's or
    /// closing has done so. Ends the views first: the store may free the lock any moment from then
    /// on.
    fn clear(&self, hold: &HoldRecord) {
        if hold.end()
            || self.giving
            || !matches!(hold.why(), Some(LossReason::Released | LossReason::Closed))
        {
            self.client.reaper.release(hold.key.clone(), hold.ttl);
        }
    }

    /// Whether its cohort hands the lock over, or gives it back.
    fn is_seen_to_by_its_cohort(&self, hold: &Arc<HoldRecord>) -> bool {
        let fresh = !self.giving && !self.client.reaper.forked();
        fresh && hold.share().is_some_and(|share| share.release(&self.client, hold))
    }

    /// The hold may be taken up or relied on elsewhere from now on: its lease is handed to nobody
    /// in this process any more.
    fn export(&self) {
        if let Some(share) = self.hold().share() {
            share.gone();
        }
    }

    fn finish(&mut self, outcome: &'static str) {
        self.done = true;
        let hold = self.hold();
        tracing::debug!(lock = %hold.key.lock, token = %hold.token, outcome, "ended");
        self.client.observer.held(&hold.key.lock, outcome, hold.age());
        self.client.observer.holds(-1.0);
    }
}

impl Deref for Guard {
    type Target = Held;
    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    /// Takes effect in the background: the library's thread sends the release and repeats it until
    /// it is acknowledged. In a forked copy of its process it has none: the lock is the parent's.
    fn drop(&mut self) {
        if !self.done && !self.client.reaper.forked() {
            let hold = self.hold().clone();
            if self.is_seen_to_by_its_cohort(&hold) {
                return self.finish("released");
            }
            self.client.renewer.remove(&hold);
            self.finish(match (self.giving, hold.is_lost()) {
                (true, _) => "unknown",
                (false, true) => "lost",
                (false, false) => "released",
            });
            self.clear(&hold);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.held, f)
    }
}

/// The shared record of one hold.
pub(crate) struct HoldRecord {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    /// In nanoseconds since boot; set before anybody has a guard of it.
    since: AtomicU64,
    /// The end that `max_hold` sets, likewise.
    max_end: AtomicU64,
    /// The lease it is of, where that is handed on inside this process.
    share: Option<Share>,
    /// The last lease was cut to end there, so its end, a margin earlier, is the work of
    /// `max_hold`.
    cut: AtomicBool,
    deadline: AtomicU64,
    /// The same end on the wall clock, where that is a witness: in nanoseconds since 1970.
    wall: Option<AtomicU64>,
    waiters: AtomicU32,
    lost: OnceLock<LossReason>,
    told: CancellationToken,
    clock: Clock,
    observer: Observer,
    /// A forked copy of this process has the memory of the hold but not the hold.
    pid: u32,
}

impl HoldRecord {
    pub(crate) fn new(
        key: Key,
        grant: &Grant,
        ttl: Duration,
        max_hold: Option<Duration>,
        clock: Clock,
        observer: Observer,
    ) -> Self {
        let since = clock.now();
        let max_end = max_hold.map_or(BootInstant::FAR, |d| grant.lease.sent.boot.plus(d));
        let until = grant.lease.until();
        Self {
            key,
            token: grant.tokens.first(),
            ttl,
            since: AtomicU64::new(since.as_nanos()),
            max_end: AtomicU64::new(max_end.as_nanos()),
            share: None,
            cut: AtomicBool::new(false),
            deadline: AtomicU64::new(until.boot.as_nanos()),
            wall: until.wall.map(|wall| AtomicU64::new(nanos(wall))),
            waiters: AtomicU32::new(grant.waiters),
            lost: OnceLock::new(),
            told: CancellationToken::new(),
            clock,
            observer,
            pid: std::process::id(),
        }
    }

    /// A hold of a lease that its cohort may hand on.
    pub(crate) fn of(mut self, share: Share) -> Self {
        self.share = Some(share);
        self
    }

    /// The hold of whoever is next, by the same lease: with the next token, and no end of its own
    /// yet. Made once this one has ended.
    pub(crate) fn successor(&self) -> Option<Self> {
        let load = |at: &AtomicU64| AtomicU64::new(at.load(Ordering::Acquire));
        Some(Self {
            key: self.key.clone(),
            token: Token::new(self.token.get() + 1).ok()?,
            ttl: self.ttl,
            since: AtomicU64::new(0),
            max_end: AtomicU64::new(BootInstant::FAR.as_nanos()),
            share: Some(self.share.as_ref()?.clone()),
            cut: AtomicBool::new(false),
            deadline: load(&self.deadline),
            wall: self.wall.as_ref().map(load),
            waiters: AtomicU32::new(self.waiters.load(Ordering::Relaxed)),
            lost: OnceLock::new(),
            told: CancellationToken::new(),
            clock: self.clock.clone(),
            observer: self.observer.clone(),
            pid: self.pid,
        })
    }

    /// Its holder has it from now on.
    pub(crate) fn begin(&self, max_hold: Option<Duration>) {
        let now = self.clock.now();
        self.since.store(now.as_nanos(), Ordering::Release);
        if let Some(d) = max_hold {
            self.max_end.store(now.plus(d).as_nanos(), Ordering::Release);
        }
    }

    pub(crate) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Whether this hold and another are of one lease, one after the other.
    pub(crate) fn is_of_the_lease_of(&self, other: &Self) -> bool {
        matches!((&self.share, &other.share), (Some(a), Some(b)) if a.is(b))
    }

    /// The end that `max_hold` sets.
    pub(crate) fn max_end(&self) -> BootInstant {
        BootInstant::from_nanos(self.max_end.load(Ordering::Acquire))
    }

    /// When this hold must not be believed in any more, on the boot-time clock.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::Acquire)).min(self.max_end())
    }

    /// How long after `now` this hold may still be believed in: as long as no clock that counts has
    /// reached its end.
    pub(crate) fn left(&self, now: ClockReading) -> Duration {
        // In this order: with the boot-time end of a renewal comes its end on the wall.
        let boot = self.deadline();
        let wall = self.wall.as_ref().map(|ns| Duration::from_nanos(ns.load(Ordering::Acquire)));
        ClockReading { boot, wall }.left(now)
    }

    /// Now, on the clocks that count for this hold.
    fn now(&self) -> ClockReading {
        if self.wall.is_some() { self.clock.reading() } else { self.clock.now().into() }
    }

    /// Moves the deadline after an acknowledged renewal. A renewal acknowledged after the old
    /// deadline does not bring the hold back: the holder may have been told already.
    ///
    /// Both ends are those of the one request that is believed; the wall may have been stepped
    /// since the last one, so its new end can be the earlier. Only the renewer calls this, one at a
    /// time.
    pub(crate) fn extend(&self, to: ClockReading, waiters: u32, cut: bool) {
        self.waiters.store(waiters, Ordering::Relaxed);
        if self.check(Duration::ZERO).is_err() {
            return;
        }
        self.cut.fetch_or(cut, Ordering::AcqRel);
        if to.boot.as_nanos() >= self.deadline.load(Ordering::Acquire) {
            if let (Some(mine), Some(wall)) = (&self.wall, to.wall) {
                mine.store(nanos(wall), Ordering::Release);
            }
            self.deadline.store(to.boot.as_nanos(), Ordering::Release);
        }
    }

    /// Why the deadline is where it is.
    pub(crate) fn end_of_time(&self) -> LossReason {
        match self.deadline() == self.max_end() || self.cut.load(Ordering::Acquire) {
            true => LossReason::MaxHold,
            false => LossReason::Expired,
        }
    }

    /// Says once and for ever that the hold is lost.
    pub(crate) fn latch(&self, why: LossReason) {
        if self.lost.set(why).is_ok() {
            self.observer.lost(&self.key.lock, why.word());
            tracing::warn!(lock = %self.key.lock, token = %self.token, why = why.word(), "lost");
        }
        self.told.cancel();
    }

    /// Says once and for ever that its guard has let go of the hold. No loss: nobody is warned, but
    /// a view that is still around must not believe in it. False when it had ended before.
    pub(crate) fn end(&self) -> bool {
        let first = self.lost.set(LossReason::Released).is_ok();
        self.told.cancel();
        first
    }

    /// The first half of [`latch`](Self::latch), as another thread may see it.
    #[cfg(test)]
    pub(crate) fn set_reason_only(&self, why: LossReason) {
        self.lost.set(why).unwrap();
    }

    pub(crate) fn why(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Whether the store cannot have given it to anybody else by the passing of time.
    pub(crate) fn in_time(&self) -> bool {
        !self.left(self.now()).is_zero()
    }

    pub(crate) fn check(&self, need: Duration) -> Result<(), Lost> {
        let fail = |why| Err(self.loss(why));
        if let Some(why) = self.lost.get() {
            // The thread that set the reason may not have cancelled the token yet.
            self.told.cancel();
            return fail(*why);
        }
        let left = self.left(self.now());
        let why = if std::process::id() != self.pid {
            LossReason::Forked
        } else if left.is_zero() {
            self.end_of_time()
        } else if need < left {
            return Ok(());
        } else {
            return fail(LossReason::TooShort);
        };
        self.latch(why);
        fail(*self.lost.get().unwrap_or(&why))
    }

    /// This hold's loss, for a reason.
    fn loss(&self, why: LossReason) -> Lost {
        Lost { lock: self.key.lock.clone(), token: self.token, why }
    }

    pub(crate) fn age(&self) -> Duration {
        self.clock.now().since(BootInstant::from_nanos(self.since.load(Ordering::Acquire)))
    }
}

/// A view of a hold that can be passed around freely: it keeps nothing locked.
#[derive(Clone)]
pub struct Held(pub(crate) Arc<HoldRecord>);

impl Held {
    /// The fencing token: hand it to the resource with every write. Works when lost, too: then it
    /// is the resource that refuses it.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// The lock's full name.
    #[must_use]
    pub fn lock(&self) -> &FullName {
        &self.0.key.lock
    }

    /// The TTL that was granted.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// How many wait for this lock, as of the last word from the store.
    #[must_use]
    pub fn waiters(&self) -> u32 {
        self.0.waiters.load(Ordering::Relaxed)
    }

    /// How long the hold is certain without another renewal; nothing when it is lost, and
    /// `Duration::MAX` where the lock lasts as long as its process.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match (self.check(), self.0.deadline()) {
            (Err(_), _) => Duration::ZERO,
            (Ok(()), BootInstant::FAR) => Duration::MAX,
            (Ok(()), _) => self.0.left(self.0.now()),
        }
    }

    /// Whether the lock is held at this moment: a comparison of clocks, no I/O.
    ///
    /// A pause right after it cannot be seen by anybody but the resource that checks the token.
    ///
    /// # Errors
    /// [`Lost`], for ever once it was so.
    pub fn check(&self) -> Result<(), Lost> {
        self.0.check(Duration::ZERO)
    }

    /// Whether the lock is held and certain to be so for another `need`, come what may.
    ///
    /// # Errors
    /// [`Lost`]; with [`LossReason::TooShort`] when it is held, but for less.
    pub fn check_for(&self, need: Duration) -> Result<(), Lost> {
        self.0.check(need)
    }

    /// Completes when the lock is lost or its guard has let go of it, and says why.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait; the loss itself is kept.
    pub async fn lost(&self) -> Lost {
        self.0.told.cancelled().await;
        self.0.loss(self.0.why().unwrap_or(LossReason::Expired))
    }

    /// The loss that a release found.
    pub(crate) fn gone(&self) -> Lost {
        self.0.loss(LossReason::Gone)
    }

    /// A token that is cancelled when the lock is lost or let go of, to pass down into other code.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.told.child_token()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("lock", &self.0.key.lock.to_string())
            .field("token", &self.0.token)
            .field("lost", &self.0.lost.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    use proptest::prelude::*;

    use super::*;
    use crate::backend::Lease;
    use crate::label::Label;
    use crate::lock::Lock;
    use crate::memory::Memory;
    use crate::name::{Name, Namespace};
    use crate::store::Store;
    use crate::token::TokenRange;
    use crate::ttl::Ttl;

    /// Looks, at the moment at which the views are told, whether a release has left or was done.
    struct Look(Arc<Client>, Memory, Held, Mutex<Option<(usize, usize)>>);

    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            let at_store = self.1.peek(self.2.lock()).map_or(0, |s| s.holds.len());
            self.3.lock().unwrap().get_or_insert((self.0.reaper.pending(), at_store));
        }
    }

    #[tokio::test]
    async fn views_of_a_dropped_guard_end_before_its_release_leaves() {
        let (space, label) = (Namespace::default(), Label::new("x"));
        let memory = Memory::new();
        let backend = memory.client().into_backend();
        let client = Arc::new(Client::new(backend, space, Ttl::DEFAULT, label, false, false));
        let guard = Lock::new(client.clone(), Name::new("a")).acquire().await.unwrap();
        let held = guard.held();
        let look = Arc::new(Look(client.clone(), memory, held.clone(), Mutex::new(None)));
        let waker = Waker::from(look.clone());
        let mut lost = pin!(held.lost());
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(guard);
        let seen = *look.3.lock().unwrap();
        assert_eq!(seen, Some((0, 1)), "released while a view still believed in it");
        client.reaper.drained(Duration::MAX).await;
        drop(Lock::new(client, Name::new("a")).try_acquire().await.unwrap().expect("it is free"));
    }

    const TTL: Duration = Duration::from_secs(10);

    fn hold(clock: &Clock, sent: ClockReading) -> HoldRecord {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let key = Key { lock, req: crate::ReqId::random() };
        let grant = Grant {
            req: key.req,
            tokens: TokenRange::one(Token::MIN),
            lease: Lease { sent, ttl: TTL, margin: Duration::ZERO },
            waiters: 0,
        };
        let observer = Observer::new("memory", false);
        HoldRecord::new(key, &grant, TTL, None, clock.clone(), observer)
    }

    #[test]
    fn a_renewal_acknowledged_after_the_deadline_does_not_bring_a_hold_back() {
        let clock = Clock::held();
        let hold = hold(&clock, clock.now().into());
        clock.advance(Duration::from_secs(6));
        hold.extend(clock.now().plus(TTL).into(), 0, false);
        clock.advance(Duration::from_secs(6));
        assert!(hold.check(Duration::ZERO).is_ok(), "an acknowledged renewal counts");
        clock.advance(Duration::from_secs(4));
        // Nobody looked while the deadline passed: no timer fired, nothing has latched yet.
        hold.extend(clock.now().plus(TTL).into(), 0, false);
        assert_eq!(hold.check(Duration::ZERO).unwrap_err().why, LossReason::Expired);
    }

    #[derive(Clone, Debug)]
    enum Do {
        Pass(u64),
        Step(i64),
        Renew,
    }

    fn happenings() -> impl Strategy<Value = Vec<Do>> {
        let one = prop_oneof![
            (0u64..6).prop_map(Do::Pass),
            (-20i64..8).prop_map(Do::Step),
            Just(Do::Renew),
        ];
        proptest::collection::vec(one, 1..20)
    }

    proptest! {
        /// Nobody but the holder looks: no renewer, no timer. It is held as long as neither clock
        /// has gone a lease further since the last renewal, and never longer than by one clock.
        #[test]
        fn two_clocks_are_right_after_any_steps_and_never_more_lenient_than_one(
            all in happenings(),
        ) {
            let clock = Clock::held();
            let both = hold(&clock, clock.reading());
            let alone = hold(&clock, clock.now().into());
            let lease = i64::try_from(TTL.as_secs()).unwrap();
            let (mut by_boot, mut by_wall, mut over) = (0, 0, false);
            for happening in all {
                match happening {
                    Do::Pass(s) => {
                        clock.advance(Duration::from_secs(s));
                        by_boot += s.cast_signed();
                        by_wall += s.cast_signed();
                    }
                    Do::Step(s) => {
                        clock.step_wall(s);
                        by_wall += s;
                    }
                    Do::Renew => {
                        both.extend(clock.reading().until(TTL, Duration::ZERO), 0, false);
                        alone.extend(clock.now().plus(TTL).into(), 0, false);
                        (by_boot, by_wall) = (0, 0);
                    }
                }
                over |= by_boot.max(by_wall) >= lease;
                prop_assert_eq!(both.check(Duration::ZERO).is_err(), over);
                prop_assert!(over || both.in_time());
                prop_assert!(over || alone.check(Duration::ZERO).is_ok());
            }
        }
    }
}
