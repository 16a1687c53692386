//! Time as a store had it: without what the machine kept everybody waiting.
//!
//! Some laws say "within a second". A machine that stands still for two, because it is virtual and
//! was moved, or because its disk catches up, breaks none of them. So a thread that wants to run
//! every few milliseconds counts how much later it was let, and that is no store's fault.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, engine};
use rustix::time::ClockId;

use crate::measure::cpu_clock;

const EVERY: Duration = Duration::from_millis(5);
/// What a busy machine takes without standing still.
const USUAL: Duration = Duration::from_millis(20);

/// Processor time of the stopwatch's own thread, as of its last tick.
static OWN: AtomicU64 = AtomicU64::new(0);

/// What the stopwatch itself has cost so far: no store's cost.
pub(crate) fn own_cpu() -> Duration {
    Duration::from_nanos(OWN.load(Ordering::Acquire))
}

/// For how long this process was kept from running, since the first who asked.
fn stood_still() -> Duration {
    static NANOS: OnceLock<&'static AtomicU64> = OnceLock::new();
    let nanos = NANOS.get_or_init(|| {
        let nanos: &AtomicU64 = Box::leak(Box::default());
        let (begun, begins) = std::sync::mpsc::channel();
        let count = move || {
            let clock = Clock::system();
            let mut last = clock.now();
            let _ = begun.send(());
            loop {
                #[allow(clippy::disallowed_methods)] // a thread with nothing else to do
                std::thread::sleep(EVERY);
                let now = clock.now();
                let late = now.since(last).saturating_sub(EVERY);
                if late > USUAL {
                    let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                    nanos.fetch_add(late, Ordering::AcqRel);
                }
                last = now;
                let own = cpu_clock(ClockId::ThreadCPUTime).as_nanos();
                OWN.store(u64::try_from(own).unwrap_or(u64::MAX), Ordering::Release);
            }
        };
        engine::thread("stopwatch", count).expect("a thread");
        // What stops this process from here on is counted.
        let _ = begins.recv();
        nanos
    });
    Duration::from_nanos(nanos.load(Ordering::Acquire))
}

/// Counts the time in which this process could run.
pub struct Stopwatch {
    start: BootInstant,
    stood: Duration,
}

impl Stopwatch {
    /// Starts counting.
    #[must_use]
    pub fn start() -> Self {
        Self { stood: stood_still(), start: Clock::system().now() }
    }

    /// How long it has run.
    #[must_use]
    pub fn took(&self) -> Duration {
        let whole = Clock::system().now().since(self.start);
        whole.saturating_sub(stood_still() - self.stood)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, getpid};

    use super::*;

    /// Set for the copy of this program that is to stand still: the other tests must not.
    const STANDS: &str = "DISTLOCK_TESTKIT_STANDS";

    /// A process that is stopped for a while does not count it.
    #[test]
    fn standing_still_does_not_count() {
        if std::env::var_os(STANDS).is_none() {
            let me = std::env::current_exe().expect("this program");
            let mut copy = Command::new(me);
            copy.args(["--exact", "stopwatch::tests::standing_still_does_not_count"]);
            let end = copy.env(STANDS, "1").output().expect("its end");
            assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stdout));
            return;
        }
        let (watch, clock) = (Stopwatch::start(), Clock::system());
        let start = clock.now();
        let me = Pid::as_raw(Some(getpid()));
        // Somebody else has to wake a process that stands.
        let script = format!("kill -STOP {me}; sleep 1; kill -CONT {me}");
        Command::new("sh").args(["-c", &script]).status().expect("a shell");
        // The thread hears of it as soon as it runs again.
        loop {
            let (took, whole) = (watch.took(), clock.now().since(start));
            if whole.saturating_sub(took) >= Duration::from_millis(900) {
                return;
            }
            assert!(whole < Duration::from_secs(20), "it counted {took:?} of {whole:?}");
        }
    }
}
