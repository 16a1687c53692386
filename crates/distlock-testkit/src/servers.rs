//! Real servers as values: a private copy on a free port, with its data in a directory of its own,
//! that ends and cleans up when the value is dropped.

mod memcached;
mod process;
mod redis;

pub use memcached::{full_memcached, memcached, silent_memcached, tiny_memcached};
pub use process::{Program, Server};
pub use redis::redis;
