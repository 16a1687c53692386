//! Identities: the [`Owner`] of a request, and the request's own id, a [`ReqId`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::{checked_text, through_string};
use crate::{Error, Kind, simulation};

/// The longest owner, in bytes.
pub const OWNER_MAX: usize = 64;

/// Fills a buffer with random bytes.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    if let Some(world) = simulation::world() {
        world.fill(bytes);
        return Ok(());
    }
    // Straight from the kernel: a generator in this process would be copied by a fork or a cloned
    // machine, and two requests with one id would both pass for replays of one grant.
    getrandom::fill(bytes)
}

/// The id of one request: 128 random bits. Every call that changes a store carries one, which is what
/// makes retries harmless.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReqId([u8; 16]);

impl ReqId {
    /// A new one, from the kernel's random source.
    ///
    /// # Panics
    /// When the kernel has no random source.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        fill(&mut bytes).expect("the kernel's random source answers");
        Self(bytes)
    }

    /// From its bytes: what a store kept, or a model counted.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A part of a duration that differs from request to request, so that they do not act in step.
    pub(crate) fn jitter(&self, most: Duration) -> Duration {
        most * u32::from(self.0[15]) / 255
    }
}

impl fmt::Display for ReqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ReqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReqId({self})")
    }
}

impl FromStr for ReqId {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        if s.len() == 32
            && s.bytes().all(|b| b.is_ascii_hexdigit())
            && let Ok(n) = u128::from_str_radix(s, 16)
        {
            return Ok(Self(n.to_be_bytes()));
        }
        Err(Error::new(Kind::Usage, format!("{s:?} is not a request id"))
            .with_hint("a request id is 32 hexadecimal digits"))
    }
}

through_string!(ReqId);

/// Who may enter a lock again that it already holds. A value, never a thread: give it to another
/// task or process, and that one may enter too.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(Arc<str>);

impl Owner {
    /// A new owner that nobody else is.
    ///
    /// # Panics
    /// When the kernel has no random source.
    #[must_use]
    #[allow(clippy::new_without_default)] // each call is another owner: not what Default means
    pub fn new() -> Self {
        Self::of(&ReqId::random())
    }

    /// The owner of a request that names none: nobody else's, and without more random bits.
    pub(crate) fn of(req: &ReqId) -> Self {
        let mut digits = [0; 32];
        // They fit: a request id is 32 digits.
        let _ = std::io::Write::write_fmt(&mut digits.as_mut_slice(), format_args!("{req}"));
        Self(str::from_utf8(&digits).unwrap_or_default().into())
    }

    /// An owner of a chosen name, for several processes that are one owner by agreement.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is empty, longer than 64 bytes, or holds a control character.
    pub fn named(id: impl AsRef<str>) -> Result<Self, Error> {
        let id = id.as_ref();
        if (1..=OWNER_MAX).contains(&id.len()) && !id.contains(char::is_control) {
            return Ok(Self(id.into()));
        }
        Err(Error::new(Kind::Usage, format!("{id:?} is not an owner"))
            .with_hint("an owner is 1 to 64 bytes of UTF-8 without control characters"))
    }

    /// The owner as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

checked_text!(Owner, named);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse_and_do_not_repeat() {
        let id = ReqId::random();
        assert_eq!(id.to_string().parse::<ReqId>().unwrap(), id);
        assert_ne!(id, ReqId::random());
        assert!("12".parse::<ReqId>().is_err() && "+".repeat(32).parse::<ReqId>().is_err());
        assert_eq!(Owner::of(&id).as_str(), id.to_string());
        let owner = Owner::new();
        assert_eq!(owner.to_string().parse::<Owner>().unwrap(), owner);
        assert!(Owner::named("").is_err() && Owner::named("a\nb").is_err());
        assert!(Owner::named("x".repeat(65)).is_err());
    }
}
