//! One hold, as its guard, its keeper and its resource's code share it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::{Grant, Key};
use crate::clock::{BootInstant, Clock};
use crate::clock_reading::ClockReading;
use crate::loss::{LossReason, Lost};
use crate::name::FullName;
use crate::observe::Observer;
use crate::token::Token;

/// The shared record of one hold.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    pub(crate) since: BootInstant,
    /// The end that `max_hold` sets.
    pub(crate) max_end: BootInstant,
    /// The last lease was cut to end there, so its end, a margin earlier, is the work of `max_hold`.
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

impl Hold {
    pub(crate) fn new(
        key: Key,
        grant: &Grant,
        ttl: Duration,
        max_hold: Option<Duration>,
        clock: Clock,
        observer: Observer,
    ) -> Self {
        let since = clock.now();
        let until = grant.until();
        Self {
            key,
            token: grant.tokens.first(),
            ttl,
            since,
            max_end: max_hold.map_or(BootInstant::FAR, |d| grant.sent.boot.plus(d)),
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

    /// When this hold must not be believed in any more, on the boot-time clock.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::Acquire)).min(self.max_end)
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
        if self.wall.is_some() { self.clock.moment() } else { self.clock.now().into() }
    }

    /// Moves the deadline after an acknowledged renewal. A renewal acknowledged after the old
    /// deadline does not bring the hold back: the holder may have been told already.
    ///
    /// Both ends are those of the one request that is believed; the wall may have been stepped
    /// since the last one, so its new end can be the earlier. Only the keeper calls this, one at a
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
        match self.deadline() == self.max_end || self.cut.load(Ordering::Acquire) {
            true => LossReason::MaxHold,
            false => LossReason::Expired,
        }
    }

    /// Says once and for ever that the hold is lost.
    pub(crate) fn latch(&self, why: LossReason) {
        if self.lost.set(why).is_ok() {
            self.observer.lost(&self.key.lock, why.word());
            tracing::warn!(lock = %self.key.lock, token = %self.token, why = why.word(), "lost");
            self.told.cancel();
        }
    }

    /// Says once and for ever that its guard has let go of the hold. No loss: nobody is warned, but
    /// whoever still has a view of it must not believe in it. False when it had ended before.
    pub(crate) fn end(&self) -> bool {
        let first = self.lost.set(LossReason::Released).is_ok();
        if first {
            self.told.cancel();
        }
        first
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

    fn check(&self, need: Duration) -> Result<(), Lost> {
        let fail = |why| Err(Lost { lock: self.key.lock.clone(), token: self.token, why });
        if let Some(why) = self.lost.get() {
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

    pub(crate) fn age(&self) -> Duration {
        self.clock.now().since(self.since)
    }
}

fn nanos(wall: Duration) -> u64 {
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
}

/// A view of a hold that can be passed around freely: it keeps nothing locked.
#[derive(Clone)]
pub struct Held(pub(crate) Arc<Hold>);

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
        let why = self.0.lost.get().copied().unwrap_or(LossReason::Expired);
        Lost { lock: self.0.key.lock.clone(), token: self.0.token, why }
    }

    /// The loss that a release found.
    pub(crate) fn gone(&self) -> Lost {
        Lost { lock: self.0.key.lock.clone(), token: self.0.token, why: LossReason::Gone }
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
    use proptest::prelude::*;

    use super::*;
    use crate::name::{Name, Namespace};
    use crate::token::TokenRange;

    const TTL: Duration = Duration::from_secs(10);

    fn hold(clock: &Clock, sent: ClockReading) -> Hold {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let key = Key { lock, req: crate::ReqId::random() };
        let grant = Grant {
            req: key.req,
            tokens: TokenRange::one(Token::MIN),
            sent,
            ttl: TTL,
            margin: Duration::ZERO,
            waiters: 0,
        };
        let observer = Observer::new("memory", false);
        Hold::new(key, &grant, TTL, None, clock.clone(), observer)
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
        /// Nobody but the holder looks: no keeper, no timer. It is held as long as neither clock
        /// has gone a lease further since the last renewal, and never longer than by one clock.
        #[test]
        fn two_clocks_are_right_after_any_steps_and_never_more_lenient_than_one(
            all in happenings(),
        ) {
            let clock = Clock::held();
            let both = hold(&clock, clock.moment());
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
                        both.extend(clock.moment().until(TTL, Duration::ZERO), 0, false);
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
