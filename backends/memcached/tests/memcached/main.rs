//! What is memcached's own: order of tokens, ghosts, evictions, restarts, servers that misbehave.
#![allow(clippy::disallowed_methods)] // raw servers and tasks of the tests themselves
#![allow(clippy::unwrap_used)] // in helpers of tests, too

mod ghosts;
mod hostile;
mod items;
mod kit;
mod losses;
mod order;
