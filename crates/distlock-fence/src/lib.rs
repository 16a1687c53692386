//! What to put at the resource beside a lock, or instead of one. Works with the locks of distlock
//! and with anything else that hands out rising numbers.
//!
//! | where | what |
//! |---|---|
//! | [`FenceGate`] | the fence of a server of one's own, in memory |
//! | modules `mysql`, `postgres`, `sqlite` | `fence` and `once` in the caller's own transaction, `take`, `change` |
//! | modules `redis`, `file`, `http` | fenced keys, fenced files, a fenced service and its client |
//! | [`optimistic`] | read, change, write if nobody else did, with a bounded retry |
//! | [`advice`] | which of these one needs, if any: the table of the guide |
//! | [`Error`], [`Stale`], [`Conflict`] | what a resource answers instead |
//!
//! Each resource is a feature of its name.

pub mod advice;
pub mod error;
#[cfg(feature = "file")]
pub mod file;
mod gate;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod optimistic;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sqlx_rows;

pub use distlock_core::Token;
pub use error::{Conflict, Error, Stale};
pub use gate::{FenceGate, Permit};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use sql::{Column, First, Once, Versioned};

/// The code in the guide compiles, and what needs no server runs.
#[cfg(all(
    doctest,
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    feature = "redis",
    feature = "file",
    feature = "http"
))]
mod pages {
    #[doc = include_str!("../../../docs/guide/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../../docs/guide/once-only.md")]
    struct OnceOnly;
}
