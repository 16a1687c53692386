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
//! | I want to … | start at |
//! |---|---|
//! | connect to a store | [`connect`], [`connect_default`]; with options [`Locks::options`] and [`Connect`] |
//! | take a lock | [`Locks::lock`], then the methods of [`Lock`]; the held lock is a [`Guard`] |
//! | learn of a loss | [`Held::lost`], [`Held::check`], [`LossReason`] |
//! | see and break locks | [`Locks::list`], [`Locks::show`], [`Locks::force`] |
//! | know what a store promises | [`Locks::capability`], [`stores`], [`capability`] |
//! | do all this without a runtime | [`blocking`] |
//! | check the token at the resource | `distlock::fence`, with the feature `fence` and one a resource, such as `fence-postgres` |
//! | write a store | [`backend`] |

pub mod backend;
pub mod blocking;
mod connect;
mod registry;

pub use connect::{Connect, connect, connect_default, schema, stores};
#[doc(inline)]
pub use distlock_core::{
    Busy, Capability, Closed, Error, Fence, Force, Forced, FullName, Guard, Held, HoldInfo, Holder,
    Human, Kind, Label, Lock, LockInfo, Locks, LossReason, Lost, Mode, Name, Namespace, Options,
    Outcome, Owner, Proof, QueueStatus, Released, ReqId, Ticket, Token, Ttl, WaiterInfo,
};
#[cfg(feature = "fence")]
#[doc(inline)]
pub use distlock_fence as fence;

/// The values that a [`Capability`] is made of.
pub mod capability {
    #[doc(inline)]
    pub use distlock_core::capability::{
        Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp,
    };
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
    #[doc = include_str!("../../../docs/tasks/hot-locks.md")]
    struct HotLocks;
    #[doc = include_str!("../../../docs/tasks/loss-and-fencing.md")]
    struct LossAndFencing;
    #[doc = include_str!("../../../docs/tasks/re-enter.md")]
    struct ReEnter;
    #[doc = include_str!("../../../docs/tasks/blocking.md")]
    struct Blocking;
}
