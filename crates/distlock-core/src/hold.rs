//! One hold, as its guard, its keeper and its resource's code share it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{BootInstant, Clock};
use crate::lost::{Lost, Why};
use crate::name::FullName;
use crate::observe::Observer;
use crate::seam::{Grant, Key};
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
    waiters: AtomicU32,
    lost: OnceLock<Why>,
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
        Self {
            key,
            token: grant.tokens.first(),
            ttl,
            since,
            max_end: max_hold.map_or(BootInstant::FAR, |d| grant.sent.plus(d)),
            cut: AtomicBool::new(false),
            deadline: AtomicU64::new(grant.deadline().as_nanos()),
            waiters: AtomicU32::new(grant.waiters),
            lost: OnceLock::new(),
            told: CancellationToken::new(),
            clock,
            observer,
            pid: std::process::id(),
        }
    }

    /// When this hold must not be believed in any more.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::Acquire)).min(self.max_end)
    }

    /// Moves the deadline after an acknowledged renewal. A renewal acknowledged after the old
    /// deadline does not bring the hold back: the holder may have been told already.
    pub(crate) fn extend(&self, to: BootInstant, waiters: u32, cut: bool) {
        self.waiters.store(waiters, Ordering::Relaxed);
        if self.check(Duration::ZERO).is_ok() {
            self.cut.fetch_or(cut, Ordering::AcqRel);
            self.deadline.fetch_max(to.as_nanos(), Ordering::AcqRel);
        }
    }

    /// Why the deadline is where it is.
    pub(crate) fn end_of_time(&self) -> Why {
        match self.deadline() == self.max_end || self.cut.load(Ordering::Acquire) {
            true => Why::MaxHold,
            false => Why::Expired,
        }
    }

    /// Says once and for ever that the hold is lost.
    pub(crate) fn latch(&self, why: Why) {
        if self.lost.set(why).is_ok() {
            self.observer.lost(&self.key.lock, why.word());
            tracing::warn!(lock = %self.key.lock, token = %self.token, why = why.word(), "lost");
            self.told.cancel();
        }
    }

    /// Says once and for ever that its guard has let go of the hold. No loss: nobody is warned, but
    /// whoever still has a view of it must not believe in it.
    pub(crate) fn end(&self) {
        if self.lost.set(Why::Released).is_ok() {
            self.told.cancel();
        }
    }

    pub(crate) fn why(&self) -> Option<Why> {
        self.lost.get().copied()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Whether the store cannot have given it to anybody else by the passing of time.
    pub(crate) fn in_time(&self) -> bool {
        self.clock.now() < self.deadline()
    }

    fn check(&self, need: Duration) -> Result<(), Lost> {
        let fail = |why| Err(Lost { lock: self.key.lock.clone(), token: self.token, why });
        if let Some(why) = self.lost.get() {
            return fail(*why);
        }
        let now = self.clock.now();
        let deadline = self.deadline();
        let why = if std::process::id() != self.pid {
            Why::Forked
        } else if now < deadline {
            if need < deadline.since(now) {
                return Ok(());
            }
            return fail(Why::TooShort);
        } else {
            self.end_of_time()
        };
        self.latch(why);
        fail(*self.lost.get().unwrap_or(&why))
    }

    pub(crate) fn age(&self) -> Duration {
        self.clock.now().since(self.since)
    }
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
            (Ok(()), deadline) => deadline.since(self.0.clock.now()),
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
    /// [`Lost`]; with [`Why::TooShort`] when it is held, but for less.
    pub fn check_for(&self, need: Duration) -> Result<(), Lost> {
        self.0.check(need)
    }

    /// Completes when the lock is lost or its guard has let go of it, and says why.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait; the loss itself is kept.
    pub async fn lost(&self) -> Lost {
        self.0.told.cancelled().await;
        let why = self.0.lost.get().copied().unwrap_or(Why::Expired);
        Lost { lock: self.0.key.lock.clone(), token: self.0.token, why }
    }

    /// The loss that a release found.
    pub(crate) fn gone(&self) -> Lost {
        Lost { lock: self.0.key.lock.clone(), token: self.0.token, why: Why::Gone }
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
    use super::*;
    use crate::name::{Name, Namespace};
    use crate::token::TokenRange;

    #[test]
    fn a_renewal_acknowledged_after_the_deadline_does_not_bring_a_hold_back() {
        let clock = Clock::held();
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let key = Key { lock, req: crate::ReqId::random() };
        let ttl = Duration::from_secs(10);
        let grant = Grant {
            req: key.req,
            tokens: TokenRange::one(Token::MIN),
            sent: clock.now(),
            ttl,
            margin: Duration::ZERO,
            waiters: 0,
        };
        let observer = Observer::new("memory", false);
        let hold = Hold::new(key, &grant, ttl, None, clock.clone(), observer);
        clock.advance(Duration::from_secs(6));
        hold.extend(clock.now().plus(ttl), 0, false);
        clock.advance(Duration::from_secs(6));
        assert!(hold.check(Duration::ZERO).is_ok(), "an acknowledged renewal counts");
        clock.advance(Duration::from_secs(4));
        // Nobody looked while the deadline passed: no timer fired, nothing has latched yet.
        hold.extend(clock.now().plus(ttl), 0, false);
        assert_eq!(hold.check(Duration::ZERO).unwrap_err().why, Why::Expired);
    }
}
