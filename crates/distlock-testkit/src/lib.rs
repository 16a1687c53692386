//! What the stores of distlock are tested with, and what users test their own code with.
//!
//! | where | what |
//! |---|---|
//! | [`suite!`], [`Suite`], [`StoreUnderTest`] | naming a store to the suite |
//! | [`laws`] | the laws every store must pass, plain async functions over a [`StoreUnderTest`] |
//! | [`history`] | what many processes saw, and whether it can have been one lock |
//! | [`faulty`] | a store for users' own tests that loses, stalls and steals on command |
//! | [`doubles`] | stores in memory for tests of the drivers |
//! | [`Resource`] | what a lock protects: it checks fencing tokens |
//! | [`ProxiedRoute`] | a way to a store through proxies, for the laws of lost and late answers |
//! | `differential` (a feature) | a store's translation of the specification against it |
//! | [`late`] | a request that reaches a database after its own repetition |
//! | [`proxy`] | a TCP proxy that delays, cuts, drops and repeats |
//! | [`takeover`] | holder and first waiter die together |
//! | [`servers`] | real servers as values: start, pause, kill, wipe |
//!
//! A store's test file is one line (and `harness = false` in its `Cargo.toml`):
//!
//! ```text
//! distlock_testkit::suite!(distlock_testkit::Suite::memory());
//! ```

mod child;
#[cfg(feature = "differential")]
pub mod differential;
pub mod doubles;
mod ended;
pub mod faulty;
pub mod fellow;
pub mod history;
pub mod late;
mod law;
pub mod laws;
mod measure;
pub mod proxy;
mod resource;
mod road;
mod roles;
pub mod servers;
mod site;
mod stopwatch;
mod suite;
pub mod takeover;
mod trials;
pub mod wait;

pub use child::Child;
pub use ended::the_end_is_told_at_once;
pub use law::{Law, Traits};
pub use resource::{Resource, Write};
pub use road::ProxiedRoute;
pub use roles::{Role, Stage, say};
pub use site::{Made, StoreUnderTest};
pub use stopwatch::Stopwatch;
pub use suite::{Connect, Hook, Leftovers, Lose, MakeRoad, Suite, as_child, as_child_of, run};
pub use trials::{Named, trials};
pub use wait::task;
