//! The laws of `LockState::step`: by example, by generated histories, and by exhaustive search.
//!
//! `cargo test -p distlock-core --test state model` runs the models alone.

mod claim_examples;
mod desk;
mod examples;
mod laws;
mod line_examples;
mod line_network_model;
mod line_timed_model;
mod line_told;
mod mode_examples;
mod network_model;
mod properties;
mod redlock_model;
mod report;
mod timed_model;
mod token_examples;
mod variants;
