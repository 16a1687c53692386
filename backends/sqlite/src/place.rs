//! Where the database lies, and whether it may lie there.
//!
//! The database file itself is never opened here: closing any descriptor of it would drop the
//! kernel locks that SQLite holds on it in this process.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use distlock_core::{Error, Kind};
use rustix::fs::{CWD, FileType, Mode, mknodat, statfs};

/// A database file that exists, on a file system that will do.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The file, with every link resolved: all processes agree on it.
    pub(crate) file: PathBuf,
    /// The directory of the sockets, beside it.
    pub(crate) sockets: PathBuf,
    /// Whether a reboot takes it away.
    pub(crate) volatile: bool,
}

/// The file systems served. An allow list, because a file system that two kernels share would make
/// each believe that the other's leases are of an earlier boot.
const LOCAL: &[(u64, &str)] = &[
    (0xEF53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (TMPFS, "tmpfs"),
    (0x794C_7630, "overlayfs"),
];
const TMPFS: u64 = 0x0102_1994;
/// SQLite takes paths of 512 bytes, with what it appends.
const LONGEST: usize = 500;

impl Place {
    /// Makes sure that there is a file to open, private to its user.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Error> {
        let text = path.to_string_lossy();
        if text.is_empty() || text == ":memory:" || text.starts_with("file:") {
            return Err(Error::new(Kind::Usage, format!("{text:?} is not the path of a file"))
                .with_hint("for locks inside one process use memory:"));
        }
        let wrong = |e: io::Error| trouble(path, e);
        let path = std::path::absolute(path).map_err(wrong)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        // Before anything is created, so that nothing is left on a file system that is refused.
        local(parent.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/")))?;
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(wrong)?;
        let mode = Mode::RUSR | Mode::WUSR;
        match mknodat(CWD, &path, FileType::RegularFile, mode, 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(wrong(e.into())),
        }
        let file = fs::canonicalize(&path).map_err(wrong)?;
        if file.as_os_str().len() > LONGEST {
            return Err(Error::new(Kind::Usage, "the path is too long for SQLite")
                .with_hint(format!("at most {LONGEST} bytes, links resolved")));
        }
        if !fs::metadata(&file).map_err(wrong)?.is_file() {
            return Err(Error::new(Kind::Usage, format!("{} is not a file", file.display()))
                .with_hint("name a file in it, for example locks.db"));
        }
        let magic = local(&file)?;
        let mut sockets = file.clone().into_os_string();
        sockets.push(".distlock");
        Ok(Self { file, sockets: sockets.into(), volatile: magic == TMPFS })
    }
}

/// The magic number of the file system a path lies on, if that is a local one.
fn local(path: &Path) -> Result<u64, Error> {
    let stat = statfs(path).map_err(|e| trouble(path, e.into()))?;
    // Sign extension would spoil the magics above 2^31.
    #[allow(clippy::cast_sign_loss)]
    let magic = stat.f_type as u64 & 0xFFFF_FFFF;
    allowed(magic).map(|()| magic).map_err(|e| e.store(path.display()))
}

fn allowed(magic: u64) -> Result<(), Error> {
    if LOCAL.iter().any(|(m, _)| *m == magic) {
        return Ok(());
    }
    let names: Vec<&str> = LOCAL.iter().map(|(_, n)| *n).collect();
    Err(Error::new(
        Kind::Refused,
        format!("a file system of type {magic:#x} is not known as local"),
    )
    .with_hint(format!("put the file on one of: {}", names.join(", "))))
}

fn trouble(path: &Path, e: io::Error) -> Error {
    let (kind, hint) = match e.kind() {
        io::ErrorKind::PermissionDenied => {
            (Kind::Credentials, "the store belongs to another user; choose a path of your own")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (Kind::Refused, "this place is read-only; choose a path that can be written")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            (Kind::Usage, "a part of the path is a file")
        }
        io::ErrorKind::NotFound => (Kind::Usage, "is it a link that leads nowhere?"),
        _ => (Kind::Store, "check the path and its file system"),
    };
    Error::new(kind, format!("{} cannot be used", path.display())).with_hint(hint).because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_file_systems_are_served() {
        for (magic, _) in LOCAL {
            assert!(allowed(*magic).is_ok());
        }
        // nfs, smb2, cifs, fuse, 9p, ceph, ramfs
        for magic in
            [0x6969, 0xFE53_4D42, 0xFF53_4D42, 0x6573_5546, 0x0102_1997, 0x00C3_6400, 0x8584_58F6]
        {
            let e = allowed(magic).unwrap_err();
            assert_eq!(e.kind(), Kind::Refused);
            assert!(e.hint().is_some_and(|h| h.contains("xfs")));
        }
        // A real one, and nothing is created on it.
        assert_eq!(Place::prepare(Path::new("/proc/locks.db")).unwrap_err().kind(), Kind::Refused);
        assert_eq!(Place::prepare(Path::new("/sys/a/b.db")).unwrap_err().kind(), Kind::Refused);
    }
}
