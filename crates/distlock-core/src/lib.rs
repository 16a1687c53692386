//! The core of distlock: everything but the stores.
//!
//! | where | what |
//! |---|---|
//! | [`Locks`], [`Lock`], [`Guard`], [`Held`], [`blocking`] | what users hold |
//! | [`name`], [`ids`], [`token`], [`ttl`], [`mode`], [`label`], [`ticket`], [`url`] | the words: values that can only be valid |
//! | [`error`], [`busy`], [`lost`], [`info`], [`proof`] | what can be answered |
//! | [`state`] | the pure specification of a lock |
//! | [`seam`], [`capability`] | what everything above sees of a store |
//! | [`lease`] and [`leased`], [`line`](mod@line), [`session`] and [`pinned`], [`quorum`] | what a store offers, and the driver of its family |
//! | [`memory`] | the specification as a store |
//! | [`clock`], [`engine`], [`host`] | the doors to time, to threads and to the machine |
//!
//! Users want the `distlock` crate, which adds the stores.

#[cfg(not(target_os = "linux"))]
compile_error!("distlock runs on Linux: its deadlines need CLOCK_BOOTTIME and timerfd");

mod abreast;
mod agenda;
mod asking;
pub mod blocking;
pub mod busy;
pub mod capability;
mod client;
pub mod clock;
mod doubts;
pub mod duration;
pub mod engine;
pub mod error;
pub mod fault;
mod fellows;
pub mod flight;
mod guard;
mod hold;
pub mod host;
pub mod ids;
pub mod info;
mod keeper;
pub mod label;
pub mod lease;
pub mod leased;
pub mod line;
mod lock;
mod locks;
pub mod lost;
pub mod memory;
pub mod mode;
pub mod moment;
pub mod name;
mod observe;
pub mod pinned;
pub mod proof;
pub mod quorum;
mod reaper;
pub mod seam;
pub mod session;
#[doc(hidden)]
pub mod simulation;
pub mod state;
pub mod store;
pub mod teeth;
#[cfg(test)]
mod tests;
pub mod ticket;
mod timer;
pub mod token;
pub mod ttl;
pub mod url;
mod waiting;

pub use busy::{Busy, Holder, Human, Standing};
pub use capability::{Capability, Fence};
pub use clock::{BootInstant, Clock};
pub use error::{Error, Kind, Outcome};
pub use guard::Guard;
pub use hold::Held;
pub use ids::{Owner, ReqId};
pub use info::{HoldInfo, LockInfo, WaiterInfo};
pub use label::Label;
pub use lock::Lock;
pub use locks::{Closed, Locks, Options};
pub use lost::{Lost, Why};
pub use mode::Mode;
pub use moment::Moment;
pub use name::{FullName, Name, Namespace};
pub use proof::Proof;
pub use seam::{Force, Forced, Released};
pub use store::Store;
pub use ticket::Ticket;
pub use token::{Token, TokenRange};
pub use ttl::{Patience, Ttl};
