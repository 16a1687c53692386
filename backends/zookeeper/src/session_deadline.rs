//! How long a session is certain to last, from what was heard of it.
//!
//! A server answers for its clients; what it heard of them it reports to the leader, whose clock
//! alone ends sessions, with its next answer to the leader's ping, at least once a tick. So an
//! acknowledged write shows nothing about the leader's clock. But when a later write, sent a tick
//! after that answer, is acknowledged too, the server was still in touch with the leader, and the
//! report was made: the session lasts its whole timeout from the *first* of the two on.

use std::collections::VecDeque;
use std::time::Duration;

use distlock_core::{ClockReading, Lease};

/// What was heard of a session.
#[derive(Debug)]
pub(crate) struct Pulse {
    ttl: Duration,
    tick: Duration,
    /// Sent before the leader surely heard of the session.
    base: ClockReading,
    /// Acknowledged writes that no later one has confirmed: when each was sent and acknowledged.
    unproven: VecDeque<(ClockReading, ClockReading)>,
}

impl Pulse {
    /// Of a session just opened: the leader itself opened it, after `asked`.
    pub(crate) fn new(asked: ClockReading, ttl: Duration, tick: Duration) -> Self {
        Self { ttl, tick, base: asked, unproven: VecDeque::new() }
    }

    /// A write was acknowledged.
    pub(crate) fn acknowledged(&mut self, sent: ClockReading, now: ClockReading) {
        while let Some((first, answered)) = self.unproven.front()
            && sent.boot >= answered.boot.plus(self.tick)
        {
            if first.boot > self.base.boot {
                self.base = *first;
            }
            self.unproven.pop_front();
        }
        // A few a tick are enough, and a crowd must not fill it.
        let spare =
            |last: &(ClockReading, ClockReading)| last.0.boot.plus(self.tick / 8) > sent.boot;
        if !self.unproven.back().is_some_and(spare) {
            self.unproven.push_back((sent, now));
        }
    }

    /// The lease as it is known now.
    pub(crate) fn lease(&self) -> Lease {
        Lease { sent: self.base, ttl: self.ttl, margin: margin(self.ttl, self.tick) }
    }
}

/// What is given up of a lease: a tenth for clocks that run at different rates, and one tick.
pub(crate) fn margin(ttl: Duration, tick: Duration) -> Duration {
    ttl / 10 + tick
}

#[cfg(test)]
mod tests {
    use distlock_core::BootInstant;

    use super::*;

    fn at(ms: u64) -> ClockReading {
        BootInstant::from_nanos(ms * 1_000_000).into()
    }

    fn pulse() -> Pulse {
        Pulse::new(at(0), Duration::from_secs(10), Duration::from_secs(2))
    }

    #[test]
    fn one_acknowledged_write_proves_nothing() {
        let mut p = pulse();
        p.acknowledged(at(3000), at(3010));
        assert_eq!(p.lease().sent, at(0));
        // Nor does a second that follows within a tick of the first one's answer.
        p.acknowledged(at(5009), at(5020));
        assert_eq!(p.lease().sent, at(0));
    }

    #[test]
    fn a_write_a_tick_later_proves_the_one_before() {
        let mut p = pulse();
        p.acknowledged(at(3000), at(3010));
        p.acknowledged(at(5010), at(5020));
        assert_eq!(p.lease().sent, at(3000));
        p.acknowledged(at(7020), at(7030));
        assert_eq!(p.lease().sent, at(5010));
    }

    /// An answer that took long counts from when it came.
    #[test]
    fn the_tick_counts_from_the_answer() {
        let mut p = pulse();
        p.acknowledged(at(1000), at(4000));
        p.acknowledged(at(5000), at(5010));
        assert_eq!(p.lease().sent, at(0));
        p.acknowledged(at(6000), at(6010));
        assert_eq!(p.lease().sent, at(1000));
    }

    #[test]
    fn a_crowd_of_writes_is_not_remembered_one_by_one() {
        let mut p = pulse();
        for ms in 0..20_000 {
            p.acknowledged(at(ms), at(ms));
        }
        assert!(p.unproven.len() < 10, "{}", p.unproven.len());
        assert!(p.lease().sent.boot >= at(17_500).boot, "{:?}", p.lease().sent);
    }
}
