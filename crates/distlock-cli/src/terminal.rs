//! The terminal, and whose it is while the command runs.
//!
//! The command is a process group of its own, so it may read the terminal, and Ctrl-C reaches it,
//! only when the terminal is handed to that group.

use std::io::{self, IsTerminal, Stdin};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal of stdin, if there is one.
pub(crate) struct Terminal {
    stdin: Stdin,
    handed: Option<Option<Termios>>,
}

impl Terminal {
    /// The terminal of stdin, if stdin is one.
    pub(crate) fn of_stdin() -> Option<Self> {
        let stdin = io::stdin();
        stdin.is_terminal().then_some(Self { stdin, handed: None })
    }

    /// Hands it to a group, if it is ours to give. Leaves it when the output goes elsewhere: then
    /// a pager behind us may need the keyboard, and the command says by itself when it does.
    pub(crate) fn hand_over(&mut self, group: Pid) {
        if io::stdout().is_terminal() {
            self.hand_over_wanted(group);
        }
    }

    /// Hands it to a group that asks for it, if it is ours to give.
    pub(crate) fn hand_over_wanted(&mut self, group: Pid) -> bool {
        if tcgetpgrp(&self.stdin).ok() != Some(getpgrp()) {
            return self.handed.is_some();
        }
        let modes = tcgetattr(&self.stdin).ok();
        let done = tcsetpgrp(&self.stdin, group).is_ok();
        if done {
            self.handed = Some(modes);
        }
        done
    }

    /// Takes it back; with `restore`, in the modes it had, since the command could not do that.
    /// True when it was away.
    pub(crate) fn take_back(&mut self, group: Pid, restore: bool) -> bool {
        let Some(modes) = self.handed.take() else { return false };
        // If it is neither ours nor the command's, the shell has given it to another job.
        if tcgetpgrp(&self.stdin).ok() == Some(group) {
            // A group that is not in front is stopped by TTOU for this, unless it is blocked.
            let mut ttou = SigSet::empty();
            ttou.add(Signal::SIGTTOU);
            let _ = ttou.thread_block();
            let _ = tcsetpgrp(&self.stdin, getpgrp());
            if let Some(modes) = modes.filter(|_| restore) {
                let _ = tcsetattr(&self.stdin, OptionalActions::Drain, &modes);
            }
            let _ = ttou.thread_unblock();
        }
        true
    }
}
