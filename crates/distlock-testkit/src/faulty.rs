//! A store for users' own tests that loses, stalls and steals on command.
//!
//! It is the memory store, so it is fast and follows the specification, with a [`Faults`] handle
//! beside it. A test of how one's own code takes the loss of a lock:
//!
//! ```
//! use distlock_core::{Locks, Clock};
//! use distlock_testkit::faulty::Faulty;
//! use std::time::Duration;
//!
//! /// The code under test: stops as soon as its lock is lost, and says how far it came.
//! async fn import(locks: &Locks, tick: &tokio::sync::Notify) -> Result<u32, u32> {
//!     let guard = locks.lock("import").ttl(Duration::from_secs(10)).await.expect("a lock");
//!     let mut done = 0;
//!     loop {
//!         tokio::select! {
//!             biased;
//!             _ = guard.lost() => return Err(done),
//!             () = tick.notified() => done += 1,
//!         }
//!         if done == 100 { return Ok(done) }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let clock = Clock::held();                       // time passes only when the test says so
//! let store = Faulty::on(clock.clone());
//! let faults = store.faults();
//! let locks = Locks::from_store(store);
//! let tick = tokio::sync::Notify::new();
//!
//! let test = async {
//!     tick.notify_one();
//!     faults.granted("import").await;              // the code holds its lock
//!     faults.lose("import").await;                 // an operator deletes it
//!     clock.advance(Duration::from_secs(4));       // its next renewal finds out
//! };
//! let (outcome, ()) = tokio::join!(import(&locks, &tick), test);
//! assert!(matches!(outcome, Err(0 | 1)));
//! # }
//! ```

mod faults;

use std::sync::Arc;
use std::time::Duration;

use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal};
use distlock_core::leased::Leased;
use distlock_core::memory::Memory;
use distlock_core::seam::{Ask, Backend, Due, Force, Forced, Key, Released};
use distlock_core::state::Pulse;
use distlock_core::{Clock, Error, FullName, Store, Token};

use faults::Fate;
pub use faults::{Call, Faults};

/// The memory store with faults on command.
pub struct Faulty {
    memory: Memory,
    faults: Faults,
}

impl Faulty {
    /// A store of its own, on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Clock::system())
    }

    /// A store of its own, on a given clock; [`Clock::held`] lets a test decide when time passes.
    #[must_use]
    pub fn on(clock: Clock) -> Self {
        Self::over(Memory::on(clock))
    }

    /// One more client of a memory store, with faults of its own: others are not disturbed.
    #[must_use]
    pub fn over(memory: Memory) -> Self {
        let memory = memory.client();
        Self { faults: Faults::new(memory.clone()), memory }
    }

    /// The handle that gives the commands. Clones are the same handle.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// One call: held up, refused, or answered into the void, as the faults have it.
    async fn call<T>(&self, call: Call, work: impl Future<Output = T>) -> Result<T, Error> {
        match self.faults.before(call).await {
            Fate::Refused => Err(self.faults.refusal()),
            fate => {
                let answer = work.await;
                self.faults.after(call).await;
                match fate {
                    Fate::Unanswered => Err(self.faults.silence()),
                    _ => Ok(answer),
                }
            }
        }
    }
}

impl Default for Faulty {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for Faulty {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(Leased::new(self))
    }
}

impl LeaseStore for Faulty {
    fn capability(&self) -> &Capability {
        self.memory.capability()
    }

    fn site(&self) -> &str {
        self.memory.site()
    }

    fn clock(&self) -> &Clock {
        self.memory.clock()
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        self.call(Call::Acquire, async {
            let answer = self.memory.acquire(ask, wait_lease).await;
            if let Ok(Answer::Granted { .. }) = answer {
                self.faults.note(ask.key());
            }
            answer
        })
        .await?
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        self.call(Call::Heartbeat, self.memory.heartbeat(waiting)).await?
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        match self.call(Call::Renew, self.memory.renew(due)).await {
            Ok(renewals) => renewals,
            Err(e) => due.iter().map(|_| Renewal::Unknown(e.clone())).collect(),
        }
    }

    async fn release(&self, key: &Key, requeue: Option<&Ask>) -> Result<Released, Error> {
        self.call(Call::Release, self.memory.release(key, requeue)).await?
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        self.call(Call::Cancel, self.memory.cancel(key)).await?
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.call(Call::Inspect, self.memory.inspect(query)).await?
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.call(Call::Force, self.memory.force(lock, token, how)).await?
    }

    fn listen(&self, ears: Ears) {
        self.memory.listen(ears);
    }

    async fn close(&self) {
        self.memory.close().await;
    }
}
