//! How long a lock outlives a holder that fell silent.

use std::fmt;
use std::time::Duration;

use crate::{BootInstant, Error, Kind};

/// The time after which a store gives a silent holder's lock to the next: 100 ms to 24 h.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest: below it a renewal could not be tried twice over a network.
    pub const MIN: Ttl = Ttl(Duration::from_millis(100));
    /// The longest.
    pub const MAX: Ttl = Ttl(Duration::from_secs(24 * 3600));
    /// What applies when nobody says otherwise: ten seconds.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(10));

    /// Checks and takes a duration.
    ///
    /// # Errors
    /// [`Kind::Usage`] outside 100 ms to 24 h.
    pub fn new(ttl: Duration) -> Result<Self, Error> {
        if (Self::MIN.0..=Self::MAX.0).contains(&ttl) {
            return Ok(Self(ttl));
        }
        Err(Error::new(Kind::Usage, format!("a TTL of {ttl:?} is out of range"))
            .with_hint("a TTL is 100ms to 24h; for longer work keep the TTL short, it is renewed"))
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;
    fn try_from(d: Duration) -> Result<Self, Error> {
        Self::new(d)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// How long an acquire may wait for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Patience {
    /// Not at all: busy is the answer.
    Never,
    /// At most this long, then busy is the answer.
    For(Duration),
    /// Until it is granted.
    #[default]
    Forever,
}

impl Patience {
    /// A wait of at most `d`; a wait of nothing is no wait.
    #[must_use]
    pub const fn at_most(d: Duration) -> Self {
        if d.is_zero() { Self::Never } else { Self::For(d) }
    }

    /// When a wait that begins now ends.
    #[must_use]
    pub fn until(self, now: BootInstant) -> BootInstant {
        match self {
            Self::Never => now,
            Self::For(d) => now.plus(d),
            Self::Forever => BootInstant::FAR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_has_bounds() {
        assert!(Ttl::new(Duration::from_millis(99)).is_err());
        assert!(Ttl::new(Duration::from_millis(100)).is_ok());
        assert!(Ttl::new(Duration::from_secs(86_401)).is_err());
        assert_eq!(Patience::at_most(Duration::ZERO), Patience::Never);
    }
}
