//! `memcached://host`: a lock is an item that `add` could store; advisory only.
//!
//! 1. Acquire `add`s the lock's item, which memcached does for one client alone, and takes a token
//!    from a second item, the fence, by compare-and-swap (`acquire`, where the order is argued).
//! 2. The item ends by itself: its exptime is the TTL in whole seconds, and a guard stops believing
//!    two seconds and a tenth of the TTL earlier, because memcached's clock is that coarse.
//! 3. Renewal writes the item again by compare-and-swap, so that it never brings back one that has
//!    ended and never touches another's (`renew`).
//! 4. Release deletes by compare-and-swap (`release`). What this client last wrote it remembers
//!    (`known_items`), so that both need one round trip; what it does not know it reads first.
//! 5. Cancel deletes what the request may have stored; the client remembers the request as ended.
//! 6. Waiters poll: memcached has no notifications for this.
//!
//! All calls of a client go through one connection on the library's thread, pipelined, in the order
//! in which they were made (`connection`). That order is relied upon: a cancel made after an acquire
//! arrives after it, unless the connection broke between them.

mod acquire;
mod capability;
mod connection;
mod dump;
mod errors;
mod handshake;
mod inspect;
mod key;
mod known_items;
mod open;
mod options;
mod record;
mod release;
mod renew;
mod store;
mod time;
mod wire;

pub use capability::{capabilities, capability};
#[doc(hidden)]
pub use key::{fence as fence_key, lock as lock_key};
pub use open::open;
pub use store::Memcached;
