//! The core of distlock: everything but the stores.
//!
//! | where | what |
//! |---|---|
//! | [`Locks`], [`Lock`], [`Guard`], [`Held`], [`blocking`] | what users hold |
//! | [`name`], [`ids`], [`token`], [`ttl`], [`mode`], [`label`], [`ticket`], [`url`] | the words: values that can only be valid |
//! | [`error`], [`busy`], [`loss`], [`info`], [`proof`] | what can be answered |
//! | [`state`] | the pure specification of a lock |
//! | [`backend`], [`capability`] | what everything above sees of a store |
//! | [`lease`] and [`lease_driver`], [`queue`], [`session`] and [`session_driver`], [`quorum`] | what a store offers, and the driver of its family |
//! | [`memory`] | the specification as a store |
//! | [`clock`], [`engine`], [`host`] | the doors to time, to threads and to the machine |
//!
//! Users want the `distlock` crate, which adds the stores.

#[cfg(not(target_os = "linux"))]
compile_error!("distlock runs on Linux: its deadlines need CLOCK_BOOTTIME and timerfd");

pub mod backend;
pub mod blocking;
pub mod busy;
pub mod capability;
mod client;
pub mod clock;
pub mod clock_reading;
mod cohort;
mod concurrency;
pub mod contention;
pub mod duration;
pub mod engine;
pub mod error;
mod guard;
pub mod host;
pub mod ids;
mod in_doubt;
pub mod info;
pub mod label;
pub mod lease;
pub mod lease_driver;
mod lock;
mod locks;
pub mod loss;
pub mod memory;
pub mod mode;
pub mod name;
mod observe;
pub mod proof;
pub mod queue;
pub mod quorum;
mod reaper;
mod renewal;
mod renewal_schedule;
mod retry;
mod same_owner;
pub mod session;
pub mod session_driver;
#[doc(hidden)]
pub mod simulation;
pub mod single_flight;
pub mod state;
pub mod store;
mod sync;
#[cfg(test)]
mod tests;
mod text;
pub mod ticket;
mod timer;
pub mod token;
pub mod ttl;
pub mod url;
mod waiters;

use concurrency::abreast;
use retry::{Backoff, GRACE};
use same_owner::SameOwner;
use simulation::HashMap;

pub use backend::{
    Ask, Attempt, Backend, Before, Due, Event, Force, Forced, Fut, Grant, Kept, Key, Lease,
    Released, StoreInfo, Told, Watcher,
};
pub use busy::{Busy, Holder, Human, QueueStatus};
pub use capability::{Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp};
pub use clock::{BootInstant, Clock};
pub use clock_reading::ClockReading;
pub use contention::ContentionHint;
pub use error::{Error, Kind, Outcome};
pub use guard::{Guard, Held};
pub use ids::{Owner, ReqId};
pub use info::{HoldInfo, LockInfo, Query, WaiterInfo};
pub use label::Label;
pub use lease::{Class, EventSink, LeaseStore, Move, Replies, Run, Wake};
pub use lease_driver::LeaseDriver;
pub use lock::Lock;
pub use locks::{Closed, Locks, Options};
pub use loss::{LossReason, Lost};
pub use mode::Mode;
pub use name::{FullName, Name, Namespace};
pub use proof::Proof;
pub use queue::{QueueDriver, QueueStore};
pub use quorum::{QuorumDriver, QuorumNode};
pub use session::{Alive, Locked, SessionStore};
pub use session_driver::SessionDriver;
pub use single_flight::SingleFlight;
pub use state::{Effects, LockState, Micros, Op, Reply, Rules};
pub use store::Store;
pub use sync::Mutex;
pub use ticket::Ticket;
pub use token::{Token, TokenRange};
pub use ttl::{Patience, Ttl};
pub use url::{Secret, StoreUrl};
