//! Real servers as values: a private copy on a free port, with its data in a directory of its own,
//! that ends and cleans up when the value is dropped.

mod process;
mod redis;

pub use process::{Program, Server};
pub use redis::redis;
