//! What stands in a lock file.

use std::time::Duration;

use distlock_core::{FullName, Holder, Label, Owner, ReqId, Token};
use serde::{Deserialize, Serialize};

/// The number of this layout; a directory with a higher one is refused.
pub(crate) const LAYOUT: u32 = 1;

/// The content of a lock file. Only the holder of the file's `flock` writes it; anybody reads it.
///
/// Times are microseconds of the boot clock, and mean something only in the boot they name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) lock: FullName,
    /// The highest token ever granted, as far as this file knows.
    pub(crate) hi: u64,
    pub(crate) boot: String,
    /// The last change: what is idle for long is swept.
    pub(crate) touched: u64,
    /// Nobody is granted before: a `min_hold` or a lock-delay.
    pub(crate) not_before: u64,
    pub(crate) hold: Option<HoldRecord>,
}

/// The holder. One that is `Held` while the `flock` is free has crashed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct HoldRecord {
    pub(crate) req: ReqId,
    pub(crate) owner: Owner,
    pub(crate) label: Label,
    pub(crate) token: Token,
    pub(crate) pid: u32,
    pub(crate) session: String,
    pub(crate) granted: u64,
    pub(crate) min_hold: u64,
    pub(crate) lock_delay: u64,
    pub(crate) phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Held,
    /// Released already, kept by its `min_hold`.
    Lingering,
}

impl Record {
    /// A lock that nobody has held yet, or whose file was swept: its tokens start above `floor`.
    pub(crate) fn new(lock: FullName, floor: u64, boot: &str) -> Self {
        Self { lock, hi: floor, boot: boot.to_owned(), touched: 0, not_before: 0, hold: None }
    }

    /// Brings the record up to date after the `flock` was taken: a record of an earlier boot
    /// loses its times, a holder that never let go has crashed. Answers the crashed one.
    pub(crate) fn take_over(&mut self, now: u64, boot: &str, floor: u64) -> Option<HoldRecord> {
        if self.boot != boot {
            // What was written last before the machine went down may not be here; the floor is.
            self.hi = self.hi.max(floor);
            boot.clone_into(&mut self.boot);
            self.not_before = 0;
            self.hold.take_if(|h| h.phase == Phase::Lingering);
        }
        let crashed = self.hold.take_if(|h| h.phase == Phase::Held);
        if let Some(dead) = &crashed {
            self.not_before = self.not_before.max(now.saturating_add(dead.lock_delay));
            self.touched = now;
        }
        if self.not_before <= now {
            self.hold = None;
        }
        crashed
    }

    /// Ends the hold in order. It lingers when its `min_hold` is not over.
    pub(crate) fn release(&mut self, now: u64, linger: bool) {
        self.touched = now;
        let Some(hold) = &mut self.hold else { return };
        let until = hold.granted.saturating_add(hold.min_hold);
        if linger && until > now {
            hold.phase = Phase::Lingering;
            self.not_before = until;
        } else {
            self.hold = None;
        }
    }

    /// How long nobody is granted yet, in the boot that is now.
    pub(crate) fn left(&self, now: u64, boot: &str) -> Option<Duration> {
        (self.boot == boot && self.not_before > now)
            .then(|| Duration::from_micros(self.not_before - now))
    }

    /// Free for longer than `retention`: nothing but the token is in it.
    pub(crate) fn idle(&self, now: u64, boot: &str, retention: Duration) -> bool {
        if self.boot != boot {
            return true;
        }
        let keep = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        self.hold.as_ref().is_none_or(|h| h.phase == Phase::Lingering)
            && self.not_before <= now
            && now.saturating_sub(self.touched) >= keep
    }
}

impl HoldRecord {
    /// The holder as others see it.
    pub(crate) fn seen(&self, now: u64, left: Option<Duration>) -> Holder {
        Holder {
            label: self.label.clone(),
            owner: self.owner.clone(),
            token: self.token,
            age: Duration::from_micros(now.saturating_sub(self.granted)),
            left,
        }
    }
}

/// A duration as a record keeps it.
pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(min_hold: u64, lock_delay: u64) -> Record {
        let lock = FullName { space: "".parse().unwrap(), name: "n".parse().unwrap() };
        let mut r = Record::new(lock, 7, "b1");
        r.hold = Some(HoldRecord {
            req: ReqId::random(),
            owner: Owner::new(),
            label: Label::new("l"),
            token: Token::new(9).unwrap(),
            pid: 1,
            session: "s".into(),
            granted: 100,
            min_hold,
            lock_delay,
            phase: Phase::Held,
        });
        r
    }

    #[test]
    fn an_early_release_lingers_and_a_late_one_does_not() {
        let mut r = held(50, 0);
        r.release(120, true);
        assert_eq!(r.left(120, "b1"), Some(Duration::from_micros(30)));
        assert!(r.take_over(130, "b1", 0).is_none() && r.hold.is_some());
        assert!(r.take_over(150, "b1", 0).is_none() && r.hold.is_none());
        let mut r = held(50, 0);
        r.release(150, true);
        assert_eq!((r.left(150, "b1"), r.hold), (None, None));
    }

    #[test]
    fn a_crash_starts_the_delay_once_and_a_reboot_forgets_times_but_no_token() {
        let mut r = held(0, 40);
        assert!(r.take_over(200, "b1", 0).is_some());
        assert!(r.take_over(210, "b1", 0).is_none());
        assert_eq!(r.not_before, 240);
        let mut r = held(1000, 0);
        r.release(120, true);
        assert!(r.take_over(5, "b2", 500).is_none());
        assert_eq!((r.hi, r.not_before, r.hold), (500, 0, None));
    }
}
