//! The scripts against the specification: generated sequences of moves, run on a real server and
//! on [`NodeState`](distlock_core::quorum::NodeState), must give the same answers, tell the same
//! clients, leave the same state, and no key without an end. Time is held: the scripts read it
//! from a key.

mod compare;
mod cost;
mod limits;
mod moves;
mod scene;
