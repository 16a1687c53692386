//! Who is left in a process group.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

/// The living processes of a group, besides one. There is no system call for it; `/proc` knows.
pub(crate) fn others(group: Pid, besides: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(|pid| *pid != besides && is_alive_in(*pid, group))
        .collect()
}

fn is_alive_in(pid: Pid, group: Pid) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // "pid (any name) state ppid pgrp …": the name may hold anything, so count from its end.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    let alive = !matches!(fields.next(), None | Some("Z" | "X"));
    let pgrp = fields.nth(1).and_then(|g| g.parse().ok()).and_then(Pid::from_raw);
    alive && pgrp == Some(group)
}

/// Asks a group to end. A stopped process hears it only once it goes on.
pub(crate) fn ask_to_end(group: Pid) {
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
}

/// Ends the processes of a group besides one, and answers when they are gone. One by one, through
/// a handle that means this very process, whoever gets its number next.
pub(crate) fn end_others(group: Pid, besides: Pid) {
    loop {
        let left = others(group, besides);
        if left.is_empty() {
            return;
        }
        for pid in left {
            let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if is_alive_in(pid, group) {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
                // Readable once it has ended; one that sits in the kernel is looked at again.
                let short = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&short));
            }
        }
    }
}

/// Ends a group, whoever calls it included.
pub(crate) fn end(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
}
