//! Which users could put a file or a link where a store keeps its files.
//!
//! A store that is files is only as safe as its directory: a user who may write there could have a
//! process of root overwrite any file, by a link of the right name. So every directory on the way
//! must be changeable by this user and root alone.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::{Error, Kind};

/// Anybody may make files in a directory of this mode, but change only their own.
const STICKY: u32 = 0o1000;
/// As many links as the kernel follows.
const LINKS: u32 = 40;

/// Whom this process trusts with its files: its user, root, and who owns `/`. In a user namespace
/// root may be none of the users that have a name there.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    users: [u32; 3],
    groups: [u32; 2],
}

impl Trusted {
    fn here() -> Self {
        let me = rustix::process::geteuid().as_raw();
        let top = fs::metadata("/").map_or(0, |m| m.uid());
        // Many systems give each user a group of the same name and let it write.
        Self { users: [me, 0, top], groups: [rustix::process::getegid().as_raw(), 0] }
    }

    fn owns(&self, meta: &Metadata) -> bool {
        self.users.contains(&meta.uid())
    }

    /// Whether somebody else may write to it.
    fn shares(&self, meta: &Metadata) -> bool {
        let group = meta.mode() & 0o020 != 0 && !self.groups.contains(&meta.gid());
        group || meta.mode() & 0o002 != 0
    }
}

/// Makes sure that nobody but this user and root can change what a path means: each directory and
/// link on the way belongs to one of them, and no other user may write in the directories, unless
/// they are sticky (`/tmp`). What does not exist yet is no fault.
///
/// # Errors
/// [`Kind::Refused`], naming the directory and what to do.
pub fn trusted_path(path: &Path) -> Result<(), Error> {
    let trusted = Trusted::here();
    let path = std::path::absolute(path).map_err(|e| unreadable(path, e))?;
    let mut way: VecDeque<OsString> = parts(&path).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = way.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let meta = match fs::symlink_metadata(&next) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unreadable(&next, e)),
        };
        if !trusted.owns(&meta) {
            return Err(foreign(&next, &meta));
        }
        if meta.is_symlink() {
            links += 1;
            let to = fs::read_link(&next).map_err(|e| unreadable(&next, e))?;
            if links > LINKS {
                return Err(unreadable(&next, rustix::io::Errno::LOOP.into()));
            }
            if to.is_absolute() {
                at = PathBuf::from("/");
            }
            let rest = std::mem::take(&mut way);
            way = parts(&to).chain(rest).collect();
            continue;
        }
        if meta.is_dir() && trusted.shares(&meta) && meta.mode() & STICKY == 0 {
            return Err(shared(&next, &meta));
        }
        at = next;
    }
    Ok(())
}

/// As [`trusted_path`], for a directory in which a store keeps its files: there a sticky one is
/// refused, too, because anybody could take the name of a file first.
///
/// # Errors
/// [`Kind::Refused`], naming the directory and what to do.
pub fn private_dir(dir: &Path) -> Result<(), Error> {
    trusted_path(dir)?;
    match fs::metadata(dir) {
        Ok(meta) if meta.is_dir() && Trusted::here().shares(&meta) => Err(shared(dir, &meta)),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(unreadable(dir, e)),
    }
}

/// Makes sure that what lies at a path is no link, and of this user or root; a directory is not
/// shared with others, either. What does not exist is no fault.
///
/// # Errors
/// [`Kind::Refused`], naming it and what to do.
pub fn own_entry(path: &Path) -> Result<(), Error> {
    let trusted = Trusted::here();
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => Err(link(path)),
        Ok(meta) if !trusted.owns(&meta) => Err(foreign(path, &meta)),
        Ok(meta) if meta.is_dir() && trusted.shares(&meta) => Err(shared(path, &meta)),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(unreadable(path, e)),
    }
}

/// A link where a store expects a file of its own.
#[must_use]
pub fn link(path: &Path) -> Error {
    Error::new(Kind::Refused, format!("{} is a link, where a file is expected", path.display()))
        .with_hint("somebody may have put it there to have another file overwritten; remove it")
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

const HINT: &str = "choose a directory that only you can write in, or say ?trust=all if everybody who \
                    can is trusted (a container's volume)";

fn foreign(path: &Path, meta: &Metadata) -> Error {
    let (path, uid) = (path.display(), meta.uid());
    Error::new(Kind::Refused, format!("{path} belongs to another user (uid {uid})")).with_hint(HINT)
}

fn shared(path: &Path, meta: &Metadata) -> Error {
    let (path, mode) = (path.display(), meta.mode() & 0o7777);
    Error::new(Kind::Refused, format!("other users can write in {path} (mode {mode:04o})"))
        .with_hint(HINT)
}

fn unreadable(path: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied => Kind::Credentials,
        io::ErrorKind::NotADirectory => Kind::Usage,
        _ => Kind::Store,
    };
    Error::new(kind, format!("cannot look at {}", path.display())).because(e)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn refused(result: Result<(), Error>, part: &str) {
        let e = result.expect_err(part);
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.to_string().contains(part) && e.hint().is_some(), "{part}: {e:?}");
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_write_in_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (open, below) = (dir.path().join("open"), dir.path().join("open/below"));
        fs::create_dir_all(&below).unwrap();
        for path in [dir.path(), &open, &below, &below.join("new/er")] {
            private_dir(path).unwrap();
        }
        chmod(&open, 0o777);
        refused(private_dir(&open), "mode 0777");
        refused(private_dir(&below), "mode 0777");
        refused(private_dir(&below.join("new")), "mode 0777");
        // In a sticky one others cannot touch what is ours, but can take a name before us.
        chmod(&open, 0o1777);
        refused(private_dir(&open), "mode 1777");
        private_dir(&below).unwrap();
        // Our own group may write: it is usually ours alone.
        chmod(&open, 0o775);
        private_dir(&open).unwrap();
    }

    #[test]
    fn links_are_followed_to_where_they_lead_and_no_entry_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let (open, here) = (dir.path().join("open"), dir.path().join("here"));
        fs::create_dir_all(open.join("below")).unwrap();
        symlink("open/below/../below", &here).unwrap();
        private_dir(&here).unwrap();
        chmod(&open, 0o777);
        refused(private_dir(&here), "mode 0777");
        refused(own_entry(&here), "is a link");
        own_entry(&dir.path().join("nothing")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(private_dir(&dir.path().join("loop")).is_err());
    }
}
