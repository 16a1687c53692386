//! A cursor over bytes that a script packed with `struct.pack`: typed reads, `None` where they do not fit.

use std::time::Duration;

use distlock_core::{Micros, ReqId};

/// Packed bytes that are not read yet.
pub(crate) struct PackedCursor<'a>(pub(crate) &'a [u8]);

impl<'a> PackedCursor<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        self.0.split_off(..n)
    }

    /// Bytes after their length.
    pub(crate) fn sized(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_le_bytes(*self.take()?);
        self.bytes(length.into())
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| *byte)
    }

    pub(crate) fn small(&mut self) -> Option<u32> {
        self.take().map(|b| u32::from_le_bytes(*b))
    }

    /// Whole numbers below 2^53 are kept as doubles, the only numbers of the scripts.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let double = f64::from_le_bytes(*self.take()?);
        (0.0..9_007_199_254_740_992.0).contains(&double).then_some(double as u64)
    }

    pub(crate) fn duration(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    pub(crate) fn time(&mut self) -> Option<Micros> {
        self.number().map(Micros)
    }

    pub(crate) fn req(&mut self) -> Option<ReqId> {
        self.take().map(|b| ReqId::from_bytes(*b))
    }

    /// Text that ends with a zero byte.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let text = std::str::from_utf8(self.bytes(end)?).ok()?;
        self.byte()?;
        Some(text)
    }
}
