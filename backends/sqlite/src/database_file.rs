//! Where the database lies, and whether it may lie there.
//!
//! The database file itself is never opened here: closing any descriptor of it would drop the
//! kernel locks that SQLite holds on it in this process.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use distlock_core::host::{LocalFs, own_entry, private_dir, trusted_path};
use distlock_core::{Error, Kind};
use rustix::fs::{AtFlags, CWD, FileType, Mode, StatxAttributes, StatxFlags, mknodat, statx};

/// A database file that exists, on a file system that will do.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseFile {
    /// The file, with every link resolved: all processes agree on it.
    pub(crate) file: PathBuf,
    /// The directory of the sockets, beside it.
    pub(crate) sockets: PathBuf,
    /// Whether a reboot takes it away.
    pub(crate) volatile: bool,
}

/// Which very files a connection works on: SQLite goes on with them when others are put in their
/// place, and would not see that everybody else uses those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Files {
    /// The database.
    pub(crate) db: (u64, u64),
    /// The file with the locks between processes.
    pub(crate) shm: (u64, u64),
}

impl Files {
    /// Those at the path now; a missing one is no file's number.
    pub(crate) fn at(file: &Path) -> Self {
        let number = |p: &Path| fs::metadata(p).map_or((0, 0), |m| (m.dev(), m.ino()));
        Self { db: number(file), shm: number(&beside(file, "-shm")) }
    }
}

/// SQLite takes paths of 512 bytes, with what it appends.
const LONGEST: usize = 500;

impl DatabaseFile {
    /// Whether there is a database. An empty file is none yet.
    pub(crate) fn exists(path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|m| !m.is_file() || m.len() > 0)
    }

    /// Makes sure that there is a file to open, private to its user.
    #[cfg(test)]
    pub(crate) fn prepare(path: &Path) -> Result<Self, Error> {
        Self::find(path, true, false)
    }

    /// Finds the file; creates it, private to its user, if `create`. Refuses a directory in which
    /// somebody else could put a file or a link, unless `trust_all`.
    pub(crate) fn find(path: &Path, create: bool, trust_all: bool) -> Result<Self, Error> {
        let text = path.to_string_lossy();
        if text.is_empty() || text == ":memory:" || text.starts_with("file:") {
            return Err(Error::new(Kind::Usage, format!("{text:?} is not the path of a file"))
                .with_hint("for locks inside one process use memory:"));
        }
        let wrong = |e: io::Error| trouble(path, e);
        let path = std::path::absolute(path).map_err(wrong)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        // Before anything is created, so that nothing is left on a file system that is refused.
        LocalFs::of(parent)?;
        if !trust_all {
            private_dir(parent)?;
        }
        if create {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(wrong)?;
            let mode = Mode::RUSR | Mode::WUSR;
            match mknodat(CWD, &path, FileType::RegularFile, mode, 0) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(wrong(e.into())),
            }
        } else if !Self::exists(&path) {
            return Err(absent(&path));
        }
        let file = fs::canonicalize(&path).map_err(wrong)?;
        if !trust_all {
            trusted_path(&path)?;
            is_private(&file)?;
        }
        if file.as_os_str().len() > LONGEST {
            return Err(Error::new(Kind::Usage, "the path is too long for SQLite")
                .with_hint(format!("at most {LONGEST} bytes, links resolved")));
        }
        let meta = fs::metadata(&file).map_err(wrong)?;
        if !meta.is_file() {
            return Err(Error::new(Kind::Usage, format!("{} is not a file", file.display()))
                .with_hint("name a file in it, for example locks.db"));
        }
        // SQLite finds the log and the locks by the file's name: under a second name there would
        // be others, and two who hold the same lock.
        if meta.nlink() > 1 || is_mounted(&file) {
            let fault = format!("{} is known by a second name", file.display());
            return Err(Error::new(Kind::Refused, fault).with_hint(
                "remove the other hard links; mount its directory, not the file alone",
            ));
        }
        let volatile = LocalFs::of(&file)?.volatile;
        Ok(Self { sockets: beside(&file, ".distlock"), file, volatile })
    }
}

/// Refuses files that somebody else has put beside the database, or still could: SQLite opens them
/// by their names, and follows links.
fn is_private(file: &Path) -> Result<(), Error> {
    private_dir(file.parent().unwrap_or(Path::new("/")))?;
    let suffixes = ["", "-wal", "-shm", "-journal", ".distlock"];
    suffixes.into_iter().try_for_each(|suffix| own_entry(&beside(file, suffix)))
}

/// The path of the file that SQLite or this store keeps beside the database under a suffix.
pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut path = file.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

/// Nobody has used a lock here yet, or it is another path that is meant.
pub(crate) fn absent(path: &Path) -> Error {
    Error::new(Kind::Unreachable, format!("there is no database {}", path.display()))
        .with_hint("the first lock taken there creates it")
}

/// Whether something is mounted on the very path, as container engines do with single files.
fn is_mounted(path: &Path) -> bool {
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .is_ok_and(|s| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
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
    fn a_mount_is_told_from_what_lies_in_one() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self/status")));
        assert!(!is_mounted(tempfile::NamedTempFile::new().unwrap().path()));
    }

    #[test]
    fn only_local_file_systems_are_served() {
        // A real one, and nothing is created on it.
        assert_eq!(
            DatabaseFile::prepare(Path::new("/proc/locks.db")).unwrap_err().kind(),
            Kind::Refused
        );
        assert_eq!(
            DatabaseFile::prepare(Path::new("/sys/a/b.db")).unwrap_err().kind(),
            Kind::Refused
        );
    }
}
