//! memcached's clock: whole seconds, two of them uncertain.
//!
//! The server looks at the time once a second and keeps only its whole seconds. An item stored with
//! exptime N after one such look ends at the N-th one after it, so it lives more than N − 1 and at
//! most N seconds. The looks are a millisecond more than a second apart (1.0009 s on average in a
//! run of twelve), so about every twenty minutes one of them finds two seconds gone, and an item
//! stored just before it lives one second less. Hence N − 2, and hence no "exptime = TTL + 1".

use std::time::Duration;

use distlock_core::{BootInstant, Clock};

/// How much less than its exptime an item may live.
pub(crate) const COARSE: Duration = Duration::from_secs(2);
/// How long a fence that nobody uses is kept: past the longest lease, and a day more.
pub(crate) const FENCE_SECS: u32 = 48 * 3600;

/// The exptime of a lease. Never 0, which would mean for ever.
pub(crate) fn secs(ttl: Duration) -> u32 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    u32::try_from(whole).unwrap_or(u32::MAX).max(1)
}

/// The exptime after which a guard may believe for `wanted`, but no more than the full lease.
pub(crate) fn renewal(wanted: Duration, full: Duration) -> u32 {
    secs((wanted + COARSE) * 10 / 9).min(secs(full))
}

/// An exptime that is over after `d`, and surely not before.
pub(crate) fn at_least(d: Duration) -> u32 {
    secs(d + COARSE)
}

/// What a replay may claim of a lease of which the server says that `left` seconds are left. The
/// drift of the time that has passed is given up as well, so that the deadline of a replay is never
/// later than that of the first answer.
pub(crate) fn replayed(full: Duration, left: u32) -> Duration {
    let left = Duration::from_secs(left.into()).min(full);
    left.saturating_sub((full - left) / 8)
}

/// Whole seconds until a moment, rounded up.
pub(crate) fn until(clock: &Clock, at: BootInstant) -> u32 {
    secs(at.since(clock.now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptimes_are_rounded_up_and_never_for_ever() {
        let ms = Duration::from_millis;
        assert_eq!((secs(ms(0)), secs(ms(1)), secs(ms(1000)), secs(ms(1001))), (1, 1, 1, 2));
        assert_eq!(at_least(ms(700)), 3);
        // What is wanted is left once the margin is taken off, unless the full lease is less.
        let (wanted, full) = (ms(1500), ms(10_000));
        let got = Duration::from_secs(renewal(wanted, full).into());
        assert!(got - got / 10 - COARSE >= wanted && got < full);
        assert_eq!(renewal(full, full), 10);
    }

    #[test]
    fn a_replay_claims_no_more_than_the_first_answer() {
        let full = Duration::from_secs(40);
        let believed = |left: Duration| left - left / 10 - COARSE;
        for passed in 0..40 {
            let left = replayed(full, 40 - passed);
            let end = Duration::from_secs(passed.into()) + left - left / 10;
            let over = left.is_zero() && passed > 34;
            assert!(over || end <= believed(full) + COARSE, "after {passed}: {end:?}");
        }
        assert_eq!(replayed(full, 99), full);
    }
}
