//! The same locks for code without a runtime; fine inside one, too.
//!
//! Everything runs on the library's own thread, and the calling thread blocks. Each function and
//! method is the twin of the one with the same name outside this module.
//!
//! ```
//! use distlock::blocking::{Connect, Locks};
//!
//! let locks = Locks::options().namespace("shop").connect("memory:")?;
//! let guard = locks.lock("orders/42").acquire()?;
//! assert!(guard.lost_within(std::time::Duration::ZERO).is_none());
//! let _released = guard.release()?;
//! # Ok::<(), distlock::Error>(())
//! ```
//!
//! # Panics
//! All of them panic when called on the library's own thread, which a callback such as
//! [`Lock::on_wait`] runs on: that thread could never finish the work it waits for.

#[doc(inline)]
pub use distlock_core::blocking::{Guard, Held, Lock, Locks};
use distlock_core::engine::block_on;
use distlock_core::{Error, Options};

/// A client of the store at a URL; see [`connect`](crate::connect).
///
/// # Errors
/// As [`connect`](crate::connect).
pub fn connect(url: impl AsRef<str>) -> Result<Locks, Error> {
    Connect::connect(Options::default(), url)
}

/// A client of the store that the environment names, or of the embedded default; see
/// [`connect_default`](crate::connect_default).
///
/// # Errors
/// As [`connect_default`](crate::connect_default).
pub fn connect_default() -> Result<Locks, Error> {
    Connect::connect_default(Options::default())
}

/// Connecting with options: `Locks::options().namespace("shop").connect(url)`. Import this trait or
/// [`distlock::Connect`](crate::Connect), not both: their methods have the same names.
pub trait Connect: Sized {
    /// Like [`connect`], with these options. What the URL says (`?namespace=`, `?require=`) counts
    /// besides.
    ///
    /// # Errors
    /// As [`connect`], and [`Kind::Usage`](crate::Kind::Usage) for an invalid option.
    fn connect(self, url: impl AsRef<str>) -> Result<Locks, Error>;

    /// Like [`connect_default`], with these options.
    ///
    /// # Errors
    /// As [`connect_default`], and [`Kind::Usage`](crate::Kind::Usage) for an invalid option.
    fn connect_default(self) -> Result<Locks, Error>;

    /// A client that only looks; see
    /// [`connect_to_look`](crate::Connect::connect_to_look).
    ///
    /// # Errors
    /// As [`connect`] and [`connect_default`].
    fn connect_to_look(self, url: Option<&str>) -> Result<Option<Locks>, Error>;
}

impl Connect for Options {
    fn connect(self, url: impl AsRef<str>) -> Result<Locks, Error> {
        let url = url.as_ref().to_owned();
        block_on(async move { crate::Connect::connect(self, url).await }).map(Locks::from)
    }

    fn connect_default(self) -> Result<Locks, Error> {
        block_on(crate::Connect::connect_default(self)).map(Locks::from)
    }

    fn connect_to_look(self, url: Option<&str>) -> Result<Option<Locks>, Error> {
        let url = url.map(ToOwned::to_owned);
        let found =
            block_on(async move { crate::Connect::connect_to_look(self, url.as_deref()).await })?;
        Ok(found.map(Locks::from))
    }
}
