//! What the SQL stores of distlock share.
//!
//! * [`Lane`]: a connection that belongs to the library's own thread, so that a caller who goes
//!   away never leaves a statement half done.
//! * [`Crowds`]: which locks were waited for lately, where a short way would lead nowhere.
//! * [`Tied`]: a connection that a session lock is tied to, used in turn and never half.
//! * [`Seats`]: so many of those, used again when nothing is tied to them any more.
//! * [`Witness`]: one that notices when the server goes, so that whoever holds such a lock is told.
//! * [`Versioned`]: the version algorithm, a compare-and-set on one row, over any table that can do
//!   the few things of [`Rows`].

mod crowds;
mod desk;
mod lane;
mod rows;
mod seats;
mod tied;
mod versioned;
mod witness;

pub use crowds::Crowds;
pub use lane::{Lane, Opens, Trouble, Work};
pub use rows::{Page, Row, Rows, Write};
pub use seats::{Seat, Seats};
pub use tied::Tied;
pub use versioned::Versioned;
pub use witness::{Dozes, Witness};
