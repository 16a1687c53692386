//! What this process costs, as the kernel counts it.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::stopwatch;

/// Processor time of all threads so far, without the test kit's stopwatch: its thread runs every few
/// milliseconds, which costs as much as the heartbeats of a thousand waiters.
pub(crate) fn cpu() -> Duration {
    cpu_clock(ClockId::ProcessCPUTime).saturating_sub(stopwatch::own_cpu())
}

/// A processor time clock of the calling process or thread.
pub(crate) fn cpu_clock(clock: ClockId) -> Duration {
    let t = clock_gettime(clock);
    let (s, ns) = (u64::try_from(t.tv_sec), u32::try_from(t.tv_nsec));
    Duration::new(s.unwrap_or(0), ns.unwrap_or(0))
}

/// Resident memory in bytes.
pub(crate) fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok()).expect("a number");
    pages * rustix::param::page_size() as u64
}

/// Open file descriptors.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Threads.
pub(crate) fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
