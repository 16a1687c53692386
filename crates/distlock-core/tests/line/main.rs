//! The line driver over a store in memory that fails, falls silent, ends sessions and loses watches.

#[path = "../support/clockwork.rs"]
mod clockwork;
mod cohort;
mod guards;
mod leaving;
mod scene;
mod waiting;
