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

use distlock_core::backend::{Backend, Force, Forced, StoreInfo};
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies};
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::memory::Memory;
use distlock_core::state::Reply;
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
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Faulty {
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let n = moves.len();
        let Some(call) = moves.first().map(Call::of) else { return Replies::new() };
        let keys: Vec<_> = moves.iter().map(Move::key).collect();
        let play = async {
            let replies = self.memory.play(class, moves).await;
            for (key, reply) in keys.into_iter().zip(&replies) {
                if let Ok(Reply::Granted { .. }) = reply {
                    self.faults.note(key);
                }
            }
            replies
        };
        self.call(call, play).await.unwrap_or_else(|e| vec![Err(e); n])
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

    fn listen(&self, sink: EventSink) {
        self.memory.listen(sink);
    }

    async fn close(&self) {
        self.memory.close().await;
    }
}
