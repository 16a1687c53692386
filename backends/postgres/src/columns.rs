//! Columns to values of the core and back.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::{Mode, Token};

/// A number of the mode, as the tables have it.
pub(crate) fn number_of(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit(n) => i32::try_from(n.get()).unwrap_or(i32::MAX),
    }
}

/// A mode from its number.
pub(crate) fn mode_of(n: i64) -> Option<Mode> {
    Some(match n {
        0 => Mode::Exclusive,
        -1 => Mode::Shared,
        n => Mode::Permit(NonZeroU32::new(u32::try_from(n).ok()?)?),
    })
}

pub(crate) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn span(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

pub(crate) fn count(n: i64) -> Option<u32> {
    u32::try_from(n).ok()
}

pub(crate) fn token(n: i64) -> Option<Token> {
    Token::new(u64::try_from(n).ok()?).ok()
}
