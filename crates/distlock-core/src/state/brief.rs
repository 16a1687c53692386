//! How a state is written down briefly: what is as usual is left out, durations are microseconds.
//!
//! Stores that keep the state as text read and write all of it at each move; a queue of a thousand
//! waiters is then half as long.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whether a value is what its type starts with.
pub(super) fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a block is the usual one: a single token.
pub(super) fn is_one(block: &NonZeroU32) -> bool {
    *block == NonZeroU32::MIN
}

/// The usual block.
pub(super) fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

pub(super) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX).serialize(s)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    u64::deserialize(d).map(Duration::from_micros)
}
