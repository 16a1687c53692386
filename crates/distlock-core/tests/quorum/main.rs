//! The quorum driver over nodes in memory that fail, fall silent, answer late and lose data.

mod crowd;
mod dead;
mod dropped;
mod healing;
mod node;
mod scene;
mod time;
mod undo;
mod wall;
