//! The core of distlock: everything but the stores.
//!
//! | where | what |
//! |---|---|
//! | [`name`], [`ids`], [`token`], [`ttl`], [`mode`], [`label`], [`ticket`] | the words: values that can only be valid |
//! | [`error`], [`busy`], [`lost`], [`info`] | what can be answered |
//! | [`state`] | the pure specification of a lock |
//! | [`seam`], [`capability`] | what everything above sees of a store |
//! | [`lease`] and [`leased`], [`session`] and [`pinned`] | what a store offers, and the driver of its family |
//! | [`memory`] | the specification as a store |
//! | [`clock`], [`engine`] | the doors to time and to threads |
//!
//! Users want the `distlock` crate, which adds the stores.

#[cfg(not(target_os = "linux"))]
compile_error!("distlock runs on Linux: its deadlines need CLOCK_BOOTTIME and timerfd");

pub mod busy;
pub mod capability;
pub mod clock;
pub mod engine;
pub mod error;
pub mod ids;
pub mod info;
pub mod label;
pub mod lease;
pub mod lost;
pub mod mode;
pub mod name;
pub mod seam;
pub mod session;
pub mod state;
pub mod ticket;
pub mod token;
pub mod ttl;

pub use busy::{Busy, Holder, Human, Standing};
pub use capability::{Capability, Fence};
pub use clock::{BootInstant, Clock};
pub use error::{Error, Kind, Outcome};
pub use ids::{Owner, ReqId};
pub use info::{HoldInfo, LockInfo, WaiterInfo};
pub use label::Label;
pub use lost::{Lost, Why};
pub use mode::Mode;
pub use name::{FullName, Name, Namespace};
pub use seam::{Force, Forced, Released};
pub use ticket::Ticket;
pub use token::{Token, TokenRange};
pub use ttl::{Patience, Ttl};
