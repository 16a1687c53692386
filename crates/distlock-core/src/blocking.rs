//! The same locks for code without a runtime. Fine inside one, too: everything runs on the
//! library's own thread, and the calling thread blocks. Whatever blocks panics when it is called on
//! that thread, which callbacks such as [`Lock::on_wait`] run on: the work could never finish.
//!
//! ```
//! # use distlock_core::{blocking, memory::Memory, Locks};
//! let locks = blocking::Locks::from(Locks::from_store(Memory::new()));
//! let total = locks.lock("report").run(|held| held.token().get() > 0)?;
//! # assert!(total);
//! # Ok::<(), distlock_core::Error>(())
//! ```

use std::num::NonZeroU32;
use std::ops::Deref;
use std::time::Duration;

use crate::engine::block_on;
use crate::{
    Busy, Capability, Clock, Closed, Error, Force, Forced, LockInfo, Lost, Mode, Namespace,
    Options, Owner, Proof, QueueStatus, Released, Store, Ticket, Token,
};

/// A client of one store, for code without a runtime.
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}

impl Locks {
    /// What can be chosen before connecting.
    pub fn options() -> Options {
        Options::default()
    }

    /// A client of a store that the caller made; see [`crate::Locks::from_store`]. With options:
    /// `options.open(store).map(blocking::Locks::from)`.
    #[must_use]
    pub fn from_store(store: impl Store) -> Self {
        crate::Locks::from_store(store).into()
    }

    /// A lock of this name, to be asked for. An invalid name is an error of the acquire.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// The same client for code with a runtime.
    #[must_use]
    pub fn as_async(&self) -> &crate::Locks {
        &self.0
    }

    /// What the store promises.
    #[must_use]
    pub fn capability(&self) -> &Capability {
        self.0.capability()
    }

    /// The address of the store, fit to print: no password in it.
    #[must_use]
    pub fn site(&self) -> &str {
        self.0.site()
    }

    /// The namespace of this client.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        self.0.namespace()
    }

    /// Takes up a hold that was detached; see [`crate::Locks::resume`].
    ///
    /// # Errors
    /// [`Kind::Lost`](crate::Kind::Lost) when it is not held any more, or never was at this store;
    /// [`Kind::Usage`](crate::Kind::Usage) for an invalid ticket;
    /// [`Kind::Closed`](crate::Kind::Closed) after [`Locks::close`]; store trouble.
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard, Error> {
        let (locks, ticket) = (self.0.clone(), ticket.clone());
        block_on(async move { locks.resume(&ticket).await }).map(Guard::from)
    }

    /// Every lock whose name starts with a prefix that is held or waited for, in order of name.
    ///
    /// # Errors
    /// Store trouble.
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>, Error> {
        let (locks, prefix) = (self.0.clone(), prefix.as_ref().to_owned());
        block_on(async move { locks.list(prefix).await })
    }

    /// One lock, if it is held or waited for.
    ///
    /// # Errors
    /// Store trouble, or an invalid name.
    pub fn show(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>, Error> {
        let (locks, name) = (self.0.clone(), name.as_ref().to_owned());
        block_on(async move { locks.show(name).await })
    }

    /// Takes a lock away from its holder; see [`crate::Locks::force`].
    ///
    /// # Errors
    /// Store trouble, an invalid name, or a store that cannot.
    pub fn force(
        &self,
        name: impl AsRef<str>,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let (locks, name) = (self.0.clone(), name.as_ref().to_owned());
        block_on(async move { locks.force(name, token, how).await })
    }

    /// Gives everything back and ends the client; see [`crate::Locks::close`].
    pub fn close(&self) -> Closed {
        let locks = self.0.clone();
        block_on(async move { locks.close().await })
    }
}

/// A lock that is about to be asked for.
#[must_use = "a lock is asked for only by one of its acquiring methods"]
#[derive(Clone)]
pub struct Lock(crate::Lock);

impl Lock {
    /// See [`crate::Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::Lock::label`].
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self(self.0.label(label))
    }

    /// See [`crate::Lock::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        Self(self.0.owner(owner))
    }

    /// See [`crate::Lock::mode`].
    pub fn mode(self, mode: Mode) -> Self {
        Self(self.0.mode(mode))
    }

    /// See [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// See [`crate::Lock::permits`].
    pub fn permits(self, n: NonZeroU32) -> Self {
        Self(self.0.permits(n))
    }

    /// See [`crate::Lock::min_hold`].
    pub fn min_hold(self, d: Duration) -> Self {
        Self(self.0.min_hold(d))
    }

    /// See [`crate::Lock::max_hold`].
    pub fn max_hold(self, d: Duration) -> Self {
        Self(self.0.max_hold(d))
    }

    /// See [`crate::Lock::lock_delay`].
    pub fn lock_delay(self, d: Duration) -> Self {
        Self(self.0.lock_delay(d))
    }

    /// See [`crate::Lock::linger`].
    pub fn linger(self, d: Duration) -> Self {
        Self(self.0.linger(d))
    }

    /// See [`crate::Lock::without_renewal`].
    pub fn without_renewal(self) -> Self {
        Self(self.0.without_renewal())
    }

    /// See [`crate::Lock::on_wait`]. Called on the library's thread: be quick, and do not block.
    pub fn on_wait(self, hear: impl Fn(&QueueStatus) + Send + Sync + 'static) -> Self {
        Self(self.0.on_wait(hear))
    }

    /// Waits for its turn, as long as it takes.
    ///
    /// # Errors
    /// Store trouble, an invalid option or name, or [`Kind::Closed`](crate::Kind::Closed).
    pub fn acquire(self) -> Result<Guard, Error> {
        block_on(self.0.acquire()).map(Guard::from)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Store trouble, or bad input.
    pub fn try_acquire(self) -> Result<Result<Guard, Busy>, Error> {
        block_on(self.0.try_acquire()).map(|r| r.map(Guard::from))
    }

    /// Waits for its turn for at most `d`.
    ///
    /// # Errors
    /// Store trouble, or bad input.
    pub fn try_acquire_for(self, d: Duration) -> Result<Result<Guard, Busy>, Error> {
        block_on(self.0.try_acquire_for(d)).map(|r| r.map(Guard::from))
    }

    /// Waits for its turn, runs `work` on this thread under the lock, and releases it. Work on a
    /// thread cannot be interrupted: long work asks `held.check()` now and then, and a loss during
    /// it is an error afterwards.
    ///
    /// # Errors
    /// Store trouble, bad input, or the loss of the lock during the work.
    pub fn run<T>(self, work: impl FnOnce(Held) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let value = work(guard.held());
        guard.check()?;
        let held = guard.held();
        match guard.release() {
            Ok(Released::WasLost) => Err(held.0.gone().into()),
            Ok(Released::Released) | Err(_) => Ok(value),
        }
    }
}

fn there<T>(guard: Option<T>) -> T {
    guard.expect("give_back puts the guard back")
}

/// A held lock; see [`crate::Guard`]. Dropping it releases in the background, without blocking.
#[must_use = "the lock is released as soon as its guard is dropped"]
#[derive(Debug)]
pub struct Guard {
    /// Always there between calls: [`Guard::give_back`] lends it to the library's thread.
    guard: Option<crate::Guard>,
    held: Held,
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        let held = Held(guard.held());
        Self { guard: Some(guard), held }
    }
}

impl Guard {
    /// Gives the lock back and says whether it was held up to this moment; see
    /// [`crate::Guard::release`].
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown, and the release is repeated in
    /// the background until it is acknowledged or the lease has ended.
    pub fn release(self) -> Result<Released, Error> {
        block_on(self.into_async().release())
    }

    /// Like [`Guard::release`], but leaves the guard to the caller, who may try again after an
    /// error; see [`crate::Guard::give_back`].
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown.
    pub fn give_back(&mut self) -> Result<Released, Error> {
        let mut guard = there(self.guard.take());
        let (guard, answer) = block_on(async move {
            let answer = guard.give_back().await;
            (guard, answer)
        });
        self.guard = Some(guard);
        answer
    }

    /// Lets go of the guard but not of the lock; see [`crate::Guard::detach`].
    ///
    /// # Errors
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) where a lock cannot outlive its process,
    /// [`Kind::Usage`](crate::Kind::Usage) on Redlock while its owner has entered the lock again.
    /// The guard is dropped then, which releases it.
    pub fn detach(self) -> Result<Ticket, Error> {
        self.into_async().detach()
    }

    /// The ticket of this hold; see [`crate::Guard::ticket`].
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.inner().ticket()
    }

    /// The condition to put into one's own transaction at the same store; see
    /// [`crate::Guard::proof`].
    #[must_use]
    pub fn proof(&self) -> Option<Proof> {
        self.inner().proof()
    }

    /// A view of this hold to pass to other threads: token, check and loss, but not the lock itself.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// This guard for code with a runtime.
    pub fn into_async(self) -> crate::Guard {
        there(self.guard)
    }

    fn inner(&self) -> &crate::Guard {
        there(self.guard.as_ref())
    }
}

impl Deref for Guard {
    type Target = Held;
    fn deref(&self) -> &Held {
        &self.held
    }
}

/// A view of a hold that can be passed to other threads: it keeps nothing locked. It has every
/// method of [`crate::Held`]; those that wait block the calling thread.
#[derive(Clone, Debug)]
pub struct Held(crate::Held);

impl Held {
    /// Blocks until the lock is lost or its guard has let go of it, and says why. Meant for a
    /// thread of its own, beside the one that works.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let held = self.0.clone();
        block_on(async move { held.lost().await })
    }

    /// Like [`Held::lost`], for at most `d`; `None` when the lock is still held then.
    #[must_use]
    pub fn lost_within(&self, d: Duration) -> Option<Lost> {
        let held = self.0.clone();
        block_on(async move { Clock::system().timeout(d, held.lost()).await })
    }
}

impl Deref for Held {
    type Target = crate::Held;
    fn deref(&self) -> &crate::Held {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Force;
    use crate::loss::LossReason;
    use crate::memory::Memory;

    #[test]
    fn a_thread_learns_of_a_loss_and_of_a_release() {
        let locks = Locks::from_store(Memory::new());
        let guard = locks.lock("a").acquire().unwrap();
        assert_eq!(guard.lost_within(Duration::from_millis(1)), None);
        assert_eq!(locks.force("a", None, Force::Now).unwrap(), Forced::Done);
        assert_eq!(guard.lost().why, LossReason::Revoked);
        let mut guard = locks.lock("b").acquire().unwrap();
        let view = guard.held();
        let waits = crate::engine::thread("waits", move || {
            assert_eq!(view.lost().why, LossReason::Released);
        });
        assert_eq!(guard.give_back().unwrap(), Released::Released);
        assert_eq!(guard.give_back().unwrap(), Released::WasLost);
        waits.unwrap().join().expect("the view was told");
    }

    #[test]
    fn a_client_tells_its_store_and_what_it_left_behind() {
        let locks = Locks::from(Locks::options().namespace("shop").open(Memory::new()).unwrap());
        assert_eq!(locks.namespace().as_str(), "shop");
        assert_eq!(locks.site(), locks.as_async().site());
        let ticket = locks.lock("a").acquire().unwrap().detach().unwrap();
        let guard = locks.resume(&ticket).unwrap();
        assert_eq!((guard.ticket(), guard.proof()), (ticket, None));
        assert_eq!(locks.close().left, 0);
        assert_eq!(guard.check().unwrap_err().why, LossReason::Closed);
    }
}
