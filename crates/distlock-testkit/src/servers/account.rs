//! A user of this machine that a server runs as.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Whom to run a server as that refuses root: this user, when the test runs as root and the
    /// machine knows the name; otherwise whoever runs the test.
    pub(super) fn unless_root_is_fine(name: &str) -> Option<Self> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        Self::in_list(&passwd, name).filter(|_| rustix::process::geteuid().is_root())
    }

    fn in_list(passwd: &str, name: &str) -> Option<Self> {
        let line = passwd.lines().find(|l| l.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let uid = fields.next()?.parse().ok()?;
        Some(Self { uid, gid: fields.next()?.parse().ok()? })
    }

    /// Gives a directory and the files in it to this user, one level deep: what is deeper was made
    /// by the user itself.
    pub(super) fn own(self, dir: &Path) -> io::Result<()> {
        chown(dir, Some(self.uid), Some(self.gid))?;
        for entry in fs::read_dir(dir)? {
            chown(entry?.path(), Some(self.uid), Some(self.gid))?;
        }
        Ok(())
    }

    /// Runs a program as this user, at home in `dir` and in no other group.
    pub(super) fn run(self, command: &mut Command, dir: &Path) {
        command.uid(self.uid).gid(self.gid).env("HOME", dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(Account::in_list(passwd, "postgres"), Some(Account { uid: 101, gid: 104 }));
        assert_eq!(Account::in_list(passwd, "post"), None);
    }
}
