//! A cursor over a script's reply, an array of values: typed reads, `None` where a value does not fit.

use std::time::Duration;

use distlock_core::Token;
use redis::Value;

/// The words of a reply that are not read yet.
pub(crate) struct ReplyCursor<'a>(pub(crate) &'a [Value]);

impl<'a> ReplyCursor<'a> {
    pub(crate) fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(words) => Some(Self(words)),
            _ => None,
        }
    }

    pub(crate) fn next(&mut self) -> Option<&'a Value> {
        self.0.split_off_first()
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        match self.next()? {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.signed()?.try_into().ok()
    }

    pub(crate) fn count(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn token(&mut self) -> Option<Token> {
        Token::new(self.number()?).ok()
    }

    /// A span in microseconds.
    pub(crate) fn span(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    /// A span that may be none: -1.
    pub(crate) fn maybe_span(&mut self) -> Option<Option<Duration>> {
        match self.signed()? {
            -1 => Some(None),
            micros => Some(Some(Duration::from_micros(micros.try_into().ok()?))),
        }
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.next()? {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// The score of a member of a sorted set.
    pub(crate) fn score(&mut self) -> Option<u64> {
        self.text()?.parse::<f64>().ok().map(|score| score as u64)
    }

    /// A number, as it is or as text.
    pub(crate) fn parsed(&mut self) -> Option<u64> {
        match self.0.first()? {
            Value::Int(_) => self.number(),
            _ => self.text()?.parse().ok(),
        }
    }

    /// What is left of a key in milliseconds; nothing is known of one that another client made
    /// without a TTL.
    pub(crate) fn key_left(&mut self) -> Option<Duration> {
        self.parsed().map(Duration::from_millis)
    }
}
