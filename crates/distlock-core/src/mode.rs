//! How a lock is held: alone, with other readers, or as one of n permits.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone: nobody else holds it in any way.
    #[default]
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// As one of n. The first holder fixes n; asking with another n is refused.
    Permit(NonZeroU32),
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permit(n) => write!(f, "permit({n})"),
        }
    }
}
