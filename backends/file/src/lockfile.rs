//! One lock file: open it, lock it, make sure that it still is the one at its path.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::errors::if_there;
use crate::record::Record;

/// The record is padded to this, so that a shorter one leaves nothing of a longer one and the file
/// never changes its size. Twice what the longest name, label and owner need.
const SIZE: usize = 4096;

/// A lock file whose `flock` this process has. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
}

/// What was found in a lock file.
pub(crate) enum Content {
    /// Nothing: it is new.
    New,
    Known(Record),
    /// Something else: a write that a power cut tore, or not ours.
    Torn,
}

impl LockFile {
    /// Takes the lock if nobody has it.
    pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        Self::obtain(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// Blocks until it has the lock.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let got = Self::obtain(path, FlockOperation::LockExclusive)?;
        got.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn obtain(path: &Path, how: FlockOperation) -> io::Result<Option<Self>> {
        loop {
            let file = open(path)?;
            match flock(&file, how) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
            // It may have been swept between open and lock: then this lock is on a file that
            // nobody else will ever open, and worth nothing.
            let got = Self { file, path: path.to_owned() };
            if got.is_current()? {
                return Ok(Some(got));
            }
        }
    }

    /// Whether the file at the path is still this one.
    pub(crate) fn is_current(&self) -> io::Result<bool> {
        is_at(&self.file, &self.path)
    }

    pub(crate) fn read(&self) -> io::Result<Content> {
        let mut bytes = [0; SIZE];
        let n = read_at(&self.file, &mut bytes)?;
        if n == 0 {
            return Ok(Content::New);
        }
        Ok(serde_json::from_slice(&bytes[..n]).map_or(Content::Torn, Content::Known))
    }

    /// Writes the record. It needs no sync: while the machine runs everybody reads the same pages,
    /// and what a power cut loses the fence's ceiling makes good.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(record)?;
        bytes.resize(SIZE.max(bytes.len()), b' ');
        self.file.write_all_at(&bytes, 0)
    }

    /// Removes the file; only for one that is current, whose lock is ours.
    pub(crate) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Drop for LockFile {
    /// Unlocks rather than only closes: a child that was just forked may have a copy of the
    /// descriptor until it runs its program.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether the file at a path is this one.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let mine = file.metadata()?;
    let there = if_there(std::fs::symlink_metadata(path))?;
    Ok(there.is_some_and(|there| (mine.dev(), mine.ino()) == (there.dev(), there.ino())))
}

/// Reads a record without the lock: for eyes. `None` when there is none or it is being written.
pub(crate) fn peek(path: &Path) -> Option<Record> {
    let file = own().read(true).open(path).ok()?;
    let mut last: Option<Record> = None;
    // A read beside a write may see half of each; two equal ones in a row have seen neither.
    for _ in 0..8 {
        let mut bytes = [0; SIZE];
        let n = read_at(&file, &mut bytes).ok()?;
        let now = serde_json::from_slice(&bytes[..n]).ok();
        if now.is_some() && now == last {
            break;
        }
        last = now;
    }
    last
}

fn read_at(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], n as u64) {
            Ok(0) => break,
            Ok(k) => n += k,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn open(path: &Path) -> io::Result<File> {
    let mut how = own();
    how.read(true).write(true).create(true).truncate(false);
    let file = match how.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_dir(path.parent().unwrap_or(Path::new("/")))?;
            how.open(path)
        }
        other => other,
    }?;
    // A hard link to a file that is somebody's would be overwritten as well.
    match file.metadata()? {
        meta if meta.is_file() && meta.nlink() <= 1 => Ok(file),
        _ => Err(Errno::LOOP.into()),
    }
}

/// How every file of the store is opened: for this user alone, and never by way of a link.
pub(crate) fn own() -> OpenOptions {
    let mut how = OpenOptions::new();
    how.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    how
}

/// Reads a small file of the store.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    own().read(true).open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a directory for this user alone; one that is there already stays as it is.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
