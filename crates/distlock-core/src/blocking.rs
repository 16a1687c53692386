//! The same locks for code without a runtime. Fine inside one, too: everything runs on the
//! library's own thread, and the calling thread blocks.
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

use crate::backend::{Force, Forced, Released};
use crate::busy::{Busy, QueueStatus};
use crate::capability::Capability;
use crate::engine::block_on;
use crate::error::Error;
use crate::hold::Held;
use crate::ids::Owner;
use crate::info::LockInfo;
use crate::mode::Mode;
use crate::ticket::Ticket;
use crate::token::Token;

/// A client of one store, for code without a runtime.
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}

impl Locks {
    /// A lock of this name, to be asked for.
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

    /// See [`crate::Locks::resume`].
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard, Error> {
        let (locks, ticket) = (self.0.clone(), ticket.clone());
        block_on(async move { locks.resume(&ticket).await }).map(Guard)
    }

    /// See [`crate::Locks::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>, Error> {
        let (locks, prefix) = (self.0.clone(), prefix.as_ref().to_owned());
        block_on(async move { locks.list(prefix).await })
    }

    /// See [`crate::Locks::show`].
    ///
    /// # Errors
    /// As there.
    pub fn show(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>, Error> {
        let (locks, name) = (self.0.clone(), name.as_ref().to_owned());
        block_on(async move { locks.show(name).await })
    }

    /// See [`crate::Locks::force`].
    ///
    /// # Errors
    /// As there.
    pub fn force(
        &self,
        name: impl AsRef<str>,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let (locks, name) = (self.0.clone(), name.as_ref().to_owned());
        block_on(async move { locks.force(name, token, how).await })
    }

    /// See [`crate::Locks::close`].
    pub fn close(&self) {
        let locks = self.0.clone();
        block_on(async move { locks.close().await });
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
    /// Store trouble, or bad input.
    pub fn acquire(self) -> Result<Guard, Error> {
        block_on(self.0.acquire()).map(Guard)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Store trouble, or bad input.
    pub fn try_acquire(self) -> Result<Result<Guard, Busy>, Error> {
        block_on(self.0.try_acquire()).map(|r| r.map(Guard))
    }

    /// Waits for its turn for at most `d`.
    ///
    /// # Errors
    /// Store trouble, or bad input.
    pub fn try_acquire_for(self, d: Duration) -> Result<Result<Guard, Busy>, Error> {
        block_on(self.0.try_acquire_for(d)).map(|r| r.map(Guard))
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
            Ok(Released::WasLost) => Err(held.gone().into()),
            Ok(Released::Released) | Err(_) => Ok(value),
        }
    }
}

/// A held lock; see [`crate::Guard`].
#[must_use = "the lock is released as soon as its guard is dropped"]
#[derive(Debug)]
pub struct Guard(crate::Guard);

impl Guard {
    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released, Error> {
        block_on(self.0.release())
    }

    /// See [`crate::Guard::detach`].
    ///
    /// # Errors
    /// As there.
    pub fn detach(self) -> Result<Ticket, Error> {
        self.0.detach()
    }

    /// See [`crate::Guard::held`].
    #[must_use]
    pub fn held(&self) -> Held {
        self.0.held()
    }
}

impl Deref for Guard {
    type Target = Held;
    fn deref(&self) -> &Held {
        &self.0
    }
}
