//! One distributed lock over the stores people already run, with fencing tokens everywhere.
//!
//! ```
//! # async fn ship(_: distlock::Token) -> Result<(), distlock::Error> { Ok(()) }
//! # #[tokio::main] async fn main() -> Result<(), distlock::Error> {
//! let locks = distlock::connect("memory:").await?;
//! let guard = locks.lock("orders/42").label("checkout").await?; // waits its turn
//! ship(guard.token()).await?; // the resource refuses a lower token
//! let _ = guard.release().await?; // or drop it
//! # Ok(()) }
//! ```
//!
//! [`connect`] takes a URL, [`connect_default`] the one of the environment or the embedded
//! default. [`Locks::lock`] names a lock, [`Lock`] says how it is wanted, [`Guard`] is the lock
//! held. [`blocking`] is the same for code without a runtime. With the feature `fence` (and one a
//! resource, such as `fence-postgres`) `distlock::fence` has what belongs at the resource.

mod connect;
mod registry;

pub use connect::{Connect, connect, connect_blocking, connect_default, schema, stores};
pub use distlock_core::*;
#[cfg(feature = "fence")]
pub use distlock_fence as fence;

/// The same locks for code without a runtime; fine inside one, too.
pub mod blocking {
    pub use crate::connect::connect_blocking as connect;
    pub use distlock_core::blocking::*;
}

/// The code in the README and in the task pages compiles and runs.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/tasks/take-a-lock.md")]
    struct TakeALock;
    #[doc = include_str!("../../../docs/tasks/wait-or-not.md")]
    struct WaitOrNot;
    #[doc = include_str!("../../../docs/tasks/loss-and-fencing.md")]
    struct LossAndFencing;
    #[doc = include_str!("../../../docs/tasks/re-enter.md")]
    struct ReEnter;
    #[doc = include_str!("../../../docs/tasks/blocking.md")]
    struct Blocking;
}
