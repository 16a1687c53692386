//! The one source of chance: splitmix64, seeded.

use std::time::Duration;

/// A generator that gives the same numbers for the same seed, for ever.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % (n.max(1) as u64)).unwrap_or(0)
    }

    /// True `n` times out of a thousand.
    pub fn chance(&mut self, n: u32) -> bool {
        self.bits() % 1000 < u64::from(n)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A duration of `from` to `to` milliseconds, in microseconds' steps.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        let (from, to) = (from * 1000, to * 1000);
        Duration::from_micros(from + self.bits() % (to - from).max(1))
    }

    /// A duration of up to one of these, in milliseconds: most are short, and some are not.
    pub fn up_to(&mut self, most: &[u64]) -> Duration {
        let most = self.pick(most);
        self.millis(0, most)
    }
}
