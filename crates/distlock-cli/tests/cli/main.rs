//! Drives the real binary, on the real stores. The processes of a test share nothing but a store
//! and a directory; whatever a test waits for is an event it can see: a file, a line, an end.
#![allow(clippy::unwrap_used)] // helpers of tests count as tests

mod advise;
mod counter;
mod exits;
mod guardian;
mod help;
mod recipes;
mod redis;
mod scene;
mod signals;
mod start;
mod terminal;
mod tickets;
mod unkillable;
mod views;
