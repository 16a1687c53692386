//! The descriptors that carry this process's kernel locks, so that the guardian can keep them.
//!
//! A kernel lock lives as long as any copy of its descriptor. With a copy in the guardian's hands
//! the lock of a killed `distlock` is freed when the guardian has ended the command, not before.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// At most this many; a lock takes a few.
pub(crate) const MOST: usize = 32;

/// Copies of the descriptors through which this process holds kernel locks. Empty where the kernel
/// does not give them.
pub(crate) fn with_locks() -> Vec<OwnedFd> {
    let Ok(me) = pidfd_open(getpid(), PidfdFlags::empty()) else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc/self/fdinfo") else { return Vec::new() };
    let locked = entries.flatten().filter(|entry| {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        info.lines()
            .any(|l| l.starts_with("lock:") && (l.contains("FLOCK") || l.contains("OFDLCK")))
    });
    locked
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|n| pidfd_getfd(&me, n, PidfdGetfdFlags::empty()).ok())
        .take(MOST)
        .collect()
}
