//! The scripts against the specification: generated sequences of moves, run on a real server and
//! on [`LockState`], must give the same answers and leave the same state.
//!
//! Time is held: the scripts read it from a key. A promotion that nobody hears is taken back by the
//! script within its own call; the specification is told so by [`Op::Withdraw`].

mod cost;
mod examples;
mod limits;
mod oracle;
mod run;
mod scene;
mod sequences;
