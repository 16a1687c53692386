//! The processes of a command: those of its group, and those that descend from it in a
//! group of their own, as timeout(1), setsid(1) and shells with job control make one.

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// One very process: its number, and when it started, since numbers are given out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) started: u64,
}

/// What `/proc` says of a living process.
struct Seen {
    process: Process,
    parent: Option<Pid>,
    group: Option<Pid>,
    /// The letter of its state.
    state: u8,
}

/// The processes of a command. Besides the group only what descends from the command itself is
/// found, and only while its parent lives: `/proc` forgets the parents of orphans. So a process that
/// was seen once is remembered from then on.
#[derive(Clone, Debug)]
pub(crate) struct ProcessGroup {
    pub(crate) group: Pid,
    /// The command itself, once it has started.
    pub(crate) command: Option<Process>,
    /// Seen outside the group when last looked for.
    strays: Vec<Process>,
}

impl Process {
    /// The living process of this number.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        look(pid).map(|seen| seen.process)
    }

    /// A handle that means this very process, also when its number is given out again.
    fn handle(self) -> Option<OwnedFd> {
        let handle = pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        (Self::of(self.pid) == Some(self)).then_some(handle)
    }

    fn send(self, signal: Signal) {
        if let Some(handle) = self.handle() {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

impl ProcessGroup {
    /// The processes of this group, and of a command that may leave it.
    pub(crate) const fn new(group: Pid, command: Option<Process>) -> Self {
        Self { group, command, strays: Vec::new() }
    }

    /// Looks for the processes, before one of them dies and leaves orphans.
    pub(crate) fn remember(&mut self) {
        self.members();
    }

    /// The living ones, besides one.
    pub(crate) fn others(&mut self, besides: Pid) -> Vec<Process> {
        self.members().iter().map(|m| m.process).filter(|p| p.pid != besides).collect()
    }

    /// Whether one waits in the kernel for a child that is stopped. That is a shell to which Ctrl-Z
    /// came while it started a program by vfork(2): it neither stops, so nobody is told, nor goes
    /// on before that child does.
    pub(crate) fn is_stuck(&mut self) -> bool {
        is_stuck(&self.members())
    }

    /// There is no system call for it; `/proc` knows.
    fn members(&mut self) -> Vec<Seen> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let all: Vec<Seen> = pids.filter_map(|pid| look(Pid::from_raw(pid)?)).collect();
        let (mut ours, mut rest): (Vec<Seen>, Vec<Seen>) = all.into_iter().partition(|seen| {
            seen.group == Some(self.group)
                || Some(seen.process) == self.command
                || self.strays.contains(&seen.process)
        });
        loop {
            let ours_too = |seen: &Seen| ours.iter().any(|o| Some(o.process.pid) == seen.parent);
            let (children, others): (Vec<Seen>, _) = rest.into_iter().partition(ours_too);
            if children.is_empty() {
                let strays = ours.iter().filter(|m| m.group != Some(self.group));
                self.strays = strays.map(|stray| stray.process).collect();
                return ours;
            }
            ours.extend(children);
            rest = others;
        }
    }

    /// Sends a signal to the group, and to the command if it has left it: what it started
    /// elsewhere it answers for itself, as timeout(1) does, and should not hear things twice.
    pub(crate) fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
        let Some(command) = self.command else { return };
        if look(command.pid).is_some_and(|s| s.process == command && s.group != Some(self.group)) {
            command.send(signal);
        }
    }

    /// Asks it to end. A stopped process hears it only once it goes on.
    pub(crate) fn ask_to_end(&mut self) {
        self.remember();
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    /// Ends it, the calling process included if it is of the group.
    pub(crate) fn end(&mut self) {
        self.remember();
        self.strays.iter().for_each(|stray| stray.send(Signal::KILL));
        let _ = kill_process_group(self.group, Signal::KILL);
    }

    /// Sends KILL to all besides one process; says whether there was anybody left. A process that
    /// it does not end at once (it sleeps in the kernel, or is another user's) is left at the next
    /// look.
    pub(crate) fn kill_others(&mut self, besides: Pid) -> bool {
        let left = self.others(besides);
        left.iter().for_each(|process| process.send(Signal::KILL));
        !left.is_empty()
    }
}

fn is_stuck(members: &[Seen]) -> bool {
    let waits = |pid| members.iter().any(|m| m.state == b'D' && Some(m.process.pid) == pid);
    members.iter().any(|m| m.state == b'T' && waits(m.parent))
}

fn look(pid: Pid) -> Option<Seen> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (any name) state ppid pgrp … starttime …": the name may hold anything, so count from
    // its end, where the state is the first and the start the twentieth.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_ascii_whitespace().collect();
    if matches!(fields.first(), None | Some(&("Z" | "X"))) {
        return None;
    }
    let pid_at = |i: usize| fields.get(i).and_then(|n| n.parse().ok()).and_then(Pid::from_raw);
    let started = fields.get(19)?.parse().ok()?;
    let state = fields.first()?.bytes().next()?;
    Some(Seen { process: Process { pid, started }, parent: pid_at(1), group: pid_at(2), state })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: i32, parent: i32, state: u8) -> Seen {
        let (pid, parent) = (Pid::from_raw(pid).unwrap(), Pid::from_raw(parent));
        Seen { process: Process { pid, started: 1 }, parent, group: Some(pid), state }
    }

    #[test]
    fn only_who_waits_in_the_kernel_for_a_stopped_child_is_stuck() {
        assert!(is_stuck(&[seen(10, 9, b'D'), seen(11, 10, b'T')]));
        // One that stops its own child goes on by itself, and so does one that waits for the disk.
        assert!(!is_stuck(&[seen(10, 9, b'S'), seen(11, 10, b'T')]));
        assert!(!is_stuck(&[seen(10, 9, b'D'), seen(11, 10, b'R'), seen(12, 11, b'T')]));
        assert!(!is_stuck(&[]));
    }

    #[test]
    fn the_state_of_a_process_is_read() {
        let me = look(rustix::process::getpid()).expect("this process");
        assert!(me.state.is_ascii_uppercase(), "{}", me.state);
    }
}
