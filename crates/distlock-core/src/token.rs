//! The fencing token: the number a resource compares to refuse a holder that is no longer one.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind};

/// A fencing token: unique per grant of a name and rising in grant order, 1 ≤ t < 2^63.
///
/// Hand it to the resource with every write; the resource remembers the highest it has seen and
/// refuses a lower one. On every wire a token is text, because JSON readers round large numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(u64);

impl Token {
    /// The smallest token.
    pub const MIN: Token = Token(1);
    /// The largest token.
    pub const MAX: Token = Token((1 << 63) - 1);

    /// Checks and takes a number.
    ///
    /// # Errors
    /// [`Kind::Usage`] outside 1 ≤ t < 2^63.
    pub fn new(n: u64) -> Result<Self, Error> {
        if (Self::MIN.0..=Self::MAX.0).contains(&n) {
            return Ok(Self(n));
        }
        Err(no_token(n))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

fn no_token(shown: impl fmt::Display) -> Error {
    Error::new(Kind::Usage, format!("{shown} is not a fencing token"))
        .with_hint("a token is a whole number from 1 to 9223372036854775807")
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Token {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Self::new(s.parse().map_err(|_| no_token(format_args!("{s:?}")))?)
    }
}

crate::text::through_string!(Token);

/// The tokens one grant may use: usually one; several once locks are handed on inside a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TokenRange {
    first: Token,
    len: NonZeroU32,
}

impl TokenRange {
    /// The range of one token.
    #[must_use]
    pub const fn one(first: Token) -> Self {
        Self { first, len: NonZeroU32::MIN }
    }

    /// `len` tokens from `first` on.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the last would pass the largest token.
    pub fn new(first: Token, len: NonZeroU32) -> Result<Self, Error> {
        Token::new(first.0.saturating_add(u64::from(len.get()) - 1))?;
        Ok(Self { first, len })
    }

    /// The first token: the grant's own.
    #[must_use]
    pub const fn first(self) -> Token {
        self.first
    }

    /// The last token.
    #[must_use]
    pub const fn last(self) -> Token {
        Token(self.first.0 + (self.len.get() as u64 - 1))
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> NonZeroU32 {
        self.len
    }

    /// Whether a token is one of them.
    #[must_use]
    pub const fn contains(self, token: Token) -> bool {
        token.0 >= self.first.0 && token.0 - self.first.0 < self.len.get() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_bounds_and_travel_as_text() {
        assert!(Token::new(0).is_err() && Token::new(1 << 63).is_err());
        let t = Token::new((1 << 63) - 1).unwrap();
        assert_eq!(serde_json::to_string(&t).unwrap(), "\"9223372036854775807\"");
        assert_eq!(serde_json::from_str::<Token>("\"9223372036854775807\"").unwrap(), t);
        assert!("x".parse::<Token>().is_err());
        let r = TokenRange::new(Token::new(5).unwrap(), NonZeroU32::new(3).unwrap()).unwrap();
        assert!(r.contains(Token::new(7).unwrap()) && !r.contains(Token::new(8).unwrap()));
        assert_eq!(r.last().get(), 7);
        assert!(TokenRange::new(Token::MAX, NonZeroU32::new(2).unwrap()).is_err());
    }
}
