//! A moment on both clocks of a machine.
//!
//! A virtual machine can be paused, or resumed from a snapshot, so that its boot-time clock does not
//! move, while the store's does. Often its wall clock is put right afterwards, which makes that a
//! second witness: time has passed if either clock says so. Both are measured from the same moment
//! and never added up, so that one renewal starts both anew.

use std::time::Duration;

use crate::BootInstant;

/// A moment on the boot-time clock and, where that is a witness, on the wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClockReading {
    /// On the boot-time clock.
    pub boot: BootInstant,
    /// On the wall clock, since 1970; `None` where steps of the wall must change nothing.
    pub wall: Option<Duration>,
}

impl ClockReading {
    /// When a lease asked for at this moment must not be believed in any more.
    #[must_use]
    pub fn until(self, ttl: Duration, margin: Duration) -> Self {
        let wall = self.wall.map(|wall| wall.saturating_add(ttl).saturating_sub(margin));
        Self { boot: crate::backend::deadline(self.boot, ttl, margin), wall }
    }

    /// How long after `now` this is, by the clock that is further on; nothing when one of them has
    /// reached it. A wall clock that either side does not name has no say.
    #[must_use]
    pub fn left(self, now: ClockReading) -> Duration {
        let by_boot = self.boot.since(now.boot);
        match (self.wall, now.wall) {
            (Some(end), Some(now)) => by_boot.min(end.saturating_sub(now)),
            _ => by_boot,
        }
    }

    /// How long after `earlier` this is, by the clock that went further.
    #[must_use]
    pub fn since(self, earlier: ClockReading) -> Duration {
        let by_boot = self.boot.since(earlier.boot);
        match (self.wall, earlier.wall) {
            (Some(now), Some(then)) => by_boot.max(now.saturating_sub(then)),
            _ => by_boot,
        }
    }
}

impl From<BootInstant> for ClockReading {
    fn from(boot: BootInstant) -> Self {
        Self { boot, wall: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Two witnesses never make a lease longer than one, and agree with it while the wall is
        /// not stepped forward.
        #[test]
        fn the_wall_can_only_end_a_lease_earlier(
            ttl in 0u64..1 << 40,
            margin in 0u64..1 << 40,
            passed in 0u64..1 << 41,
            step in -(1i64 << 41)..1 << 41,
        ) {
            let epoch = Duration::from_secs(1_750_000_000);
            let (ttl, margin) = (Duration::from_nanos(ttl), Duration::from_nanos(margin));
            let at = |ns: u64, step: i64| ClockReading {
                boot: BootInstant::from_nanos(1 << 42).plus(Duration::from_nanos(ns)),
                wall: Some(Duration::from_nanos(
                    u64::try_from(epoch.as_nanos()).unwrap().saturating_add(ns).saturating_add_signed(step),
                )),
            };
            let (sent, now) = (at(0, 0), at(passed, step));
            let alone = ClockReading::from(sent.boot).until(ttl, margin).left(now);
            let both = sent.until(ttl, margin).left(now);
            prop_assert!(both <= alone);
            let forward = Duration::from_nanos(u64::try_from(step).unwrap_or(0));
            prop_assert_eq!(both, alone.saturating_sub(forward));
            prop_assert_eq!(now.since(sent), Duration::from_nanos(passed).saturating_add(forward));
        }
    }
}
