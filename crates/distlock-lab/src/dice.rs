//! Numbers from a seed: the same seed, the same plan.

use std::time::Duration;

/// A stream of numbers that its seed decides (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for something that has a name.
    pub(crate) fn of(seed: u64, what: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut dice = Self(seed ^ what.bytes().fold(0xcbf2_9ce4_8422_2325, mix));
        dice.next();
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// One of several.
    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        &of[at]
    }

    /// So many percent of the time.
    pub(crate) fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// Milliseconds between two.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_names_part_streams() {
        let roll = |mut d: Dice| (0..8).map(|_| d.below(1000)).collect::<Vec<_>>();
        assert_eq!(roll(Dice::of(7, "redis")), roll(Dice::of(7, "redis")));
        assert_ne!(roll(Dice::of(7, "redis")), roll(Dice::of(7, "mysql")));
        assert_ne!(roll(Dice::new(1)), roll(Dice::new(2)));
        // Fixed for ever: a seed in a report must give the same plan in later versions.
        assert_eq!(Dice::new(1).next(), 10_451_216_379_200_822_465);
    }
}
