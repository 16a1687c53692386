//! The processes that a server has forked.
//!
//! A redis forks to write its file. Killing the server alone leaves that one to write on into a
//! directory that is being removed, or has been.

use std::fs;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A killed process ends in microseconds; this is for one that the disk keeps waiting.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The children of a process and theirs.
pub(super) fn of(pid: Pid) -> Vec<Pid> {
    let id = pid.as_raw_nonzero();
    let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = list.split_whitespace().filter_map(|c| Pid::from_raw(c.parse().ok()?));
    children.flat_map(|c| of(c).into_iter().chain([c])).collect()
}

/// Sends a signal to the offspring of a process, which must stand still.
pub(super) fn signal(pid: Pid, signal: Signal) {
    for child in of(pid) {
        if let Ok(handle) = pidfd_open(child, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// Waits until a process has ended, but not for ever.
pub(super) fn wait(pid: Pid) {
    if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) {
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&PATIENCE));
    }
}

/// Kills the offspring of a process and waits until it has ended. The process itself must stand
/// still, so that it neither forks more nor lets go of a number that another may then have.
pub(super) fn kill(pid: Pid) {
    for child in of(pid) {
        if let Ok(handle) = pidfd_open(child, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&PATIENCE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Redis, raw};
    use super::*;

    #[tokio::test]
    async fn what_a_server_forked_ends_with_it() {
        // The child waits this many microseconds for each key: it is there until it is killed.
        let slow = Redis::new().arg("rdb-key-save-delay", "600000000");
        let server = slow.start().await.unwrap();
        assert!(!raw(server.addr(), &["SET", "k", "v"]).await.unwrap().is_error());
        let info = raw(server.addr(), &["INFO", "server"]).await.unwrap().to_string();
        let pid = info.lines().find_map(|l| l.strip_prefix("process_id:")).unwrap();
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        assert!(of(pid).is_empty());
        assert!(!raw(server.addr(), &["BGSAVE"]).await.unwrap().is_error());
        let children = of(pid);
        assert_eq!(children.len(), 1);
        let there = pidfd_open(children[0], PidfdFlags::empty()).unwrap();
        let dir = server.dir().to_owned();
        drop(server);
        let ended = poll(&mut [PollFd::new(&there, PollFlags::IN)], Some(&Timespec::default()));
        assert_eq!(ended, Ok(1));
        assert!(!dir.exists());
    }
}
