//! A deterministic simulation of the client library.
//!
//! The real `Locks`, guards, keeper, reaper and drivers run in one thread, on virtual time and a
//! seeded scheduler, over the memory doubles of each family and behind a network that delays,
//! reorders, repeats and loses. Random programs use them; the laws are checked at every step. A
//! failing seed is shrunk and printed with a trace.
//!
//! | where | what |
//! |---|---|
//! | [`program`] | what is done, and what goes wrong: plain data from a seed |
//! | [`world`] | the executor, time and the network |
//! | [`lease`], [`session`] | stores across that network; the line and the quorum bring theirs |
//! | [`laws`] | what must hold |
//! | [`check()`], [`shrink()`] | one program, and a failing one made small |

mod actor;
mod check;
pub mod laws;
pub mod lease;
pub mod program;
pub mod rng;
pub mod session;
mod stage;
pub mod world;

pub use check::{Failure, check, shrink, sweep};
pub use program::{Family, Program};
