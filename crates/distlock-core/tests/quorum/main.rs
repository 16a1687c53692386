//! The quorum driver over nodes in memory that fail, fall silent, answer late and lose data.

#[path = "../support/clockwork.rs"]
mod clockwork;
mod crowd;
mod dead;
mod dropped;
mod healing;
mod node;
mod owner;
mod scene;
mod time;
mod undo;
mod wall;
