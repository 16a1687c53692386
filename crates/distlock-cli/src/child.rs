//! The command under the lock.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::{Failure, Status};

/// A command that can be started.
pub(crate) struct Program<'a> {
    words: &'a [OsString],
}

/// A started command.
pub(crate) struct Child {
    pid: Pid,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Nothing new.
    Runs,
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
}

impl<'a> Program<'a> {
    /// Looks for a command now, so that one that cannot be started does not wait for the lock first.
    pub(crate) fn find(words: &'a [OsString]) -> Result<Self, Failure> {
        let name = words.first().map_or(OsStr::new(""), OsString::as_os_str);
        let shown = name.to_string_lossy();
        let mut present = None;
        for path in places(name) {
            if path.is_file() {
                if access(&path, Access::EXEC_OK).is_ok() {
                    return Ok(Self { words });
                }
                present = Some(path);
            } else if path.exists() && name.as_encoded_bytes().contains(&b'/') {
                present = Some(path);
            }
        }
        Err(match present {
            Some(path) => {
                let what = format!("{} is not an executable file", path.display());
                Failure::new(Status::NOT_EXECUTABLE, what)
                    .hint("chmod +x makes a script executable")
            }
            None => Failure::new(Status::NOT_FOUND, format!("there is no command {shown:?}"))
                .hint("the command is a program, not shell syntax: sh -c '…' runs the latter"),
        })
    }

    /// Starts it in a group, with these variables.
    pub(crate) fn start(&self, group: Pid, vars: &[(&str, String)]) -> Result<Child, Failure> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(vars.iter().map(|(k, v)| (k, v)));
        match command.process_group(group.as_raw_pid()).spawn() {
            Ok(child) => Ok(Child { pid: Pid::from_child(&child) }),
            Err(e) => {
                let status = match e.kind() {
                    ErrorKind::NotFound => Status::NOT_FOUND,
                    _ => Status::NOT_EXECUTABLE,
                };
                let name = self.words[0].to_string_lossy();
                Err(Failure::new(status, format!("cannot start {name:?}: {e}")))
            }
        }
    }
}

/// Where a command may be, as exec(3) looks for it.
fn places(name: &OsStr) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_encoded_bytes().contains(&b'/') {
        return vec![Path::new(name).to_owned()];
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(name)).collect()
}

impl Child {
    /// Its number, which is its own until a look has said that it ended.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// What became of it since the last look.
    pub(crate) fn look(&self) -> Change {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        match waitpid(Some(self.pid), options) {
            Ok(Some((_, status))) => {
                if let Some(code) = status.exit_status() {
                    Change::Exited(code)
                } else if let Some(signal) = status.terminating_signal() {
                    Change::Killed(signal)
                } else if let Some(signal) = status.stopping_signal() {
                    Change::Stopped(signal)
                } else {
                    Change::Runs
                }
            }
            Ok(None) => Change::Runs,
            // Somebody else collected it: all we know is that it is gone.
            Err(_) => Change::Exited(i32::from(Status::INTERNAL.0)),
        }
    }
}
