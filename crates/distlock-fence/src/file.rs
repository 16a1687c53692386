//! A file that goes only forward: replaced as a whole, by holders of rising tokens.
//!
//! 1. Write the new content to a file beside it, and put it on disk.
//! 2. Lock the sidecar `NAME.fence`, and refuse a token below the one in it.
//! 3. Put the token into the sidecar, on disk.
//! 4. Rename the new content into place, and put that on disk.
//!
//! The fence comes before the data: a crash in between refuses somebody who has written nothing,
//! while the other order would let an older holder write over newer data.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use distlock_core::{Token, engine};
use rustix::fs::{FlockOperation, flock};

use crate::{Error, Stale};

mod generations;
mod sidecar;

pub use generations::Generations;

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error::Store(Box::new(e))
    }
}

/// A file that only holders of rising tokens replace. Readers open it as any other file and see
/// one whole content or the next.
///
/// All writers must go through it, on a local file system: the lock between them is `flock`.
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    fence: PathBuf,
}

impl FencedFile {
    /// The file at a path; it need not be there yet.
    ///
    /// # Errors
    /// [`Error::Usage`] when the path names no file.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let Some(name) = path.file_name() else {
            return Err(Error::Usage(format!("{} names no file", path.display())));
        };
        let mut name = name.to_owned();
        name.push(".fence");
        Ok(Self { fence: path.with_file_name(name), path })
    }

    /// Replaces the content. When it returns the new content is on disk.
    ///
    /// # Errors
    /// [`Error::Stale`] when a higher token was here; [`Error::Store`] when the disk failed, and
    /// then either content may be there.
    pub fn replace(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        let dir = folder(&self.path);
        let new = beside(&self.path, content)?;
        let entered = self.enter(token)?;
        new.persist(&self.path).map_err(|e| e.error)?;
        File::open(dir)?.sync_all()?;
        drop(entered);
        Ok(())
    }

    /// As [`FencedFile::replace`], off the caller's executor.
    ///
    /// # Errors
    /// As [`FencedFile::replace`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the write; it is done, or refused, a little later.
    pub async fn replace_async(&self, token: Token, content: Vec<u8>) -> Result<(), Error> {
        let file = self.clone();
        let done = engine::unblock(move || Ok(file.replace(token, &content))).await;
        done.unwrap_or_else(|e| Err(Error::Store(Box::new(e))))
    }

    /// Lets a token in and keeps all others out until the answer is dropped: for effects other
    /// than replacing the file as a whole. The token is on disk when this returns.
    ///
    /// # Errors
    /// [`Error::Stale`] when a higher token was here; [`Error::Layout`] when the sidecar is
    /// damaged; [`Error::Store`] when the disk failed.
    pub fn enter(&self, token: Token) -> Result<Entered, Error> {
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(false);
        let sidecar = how.open(&self.fence)?;
        flock(&sidecar, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        match sidecar::read(&sidecar)? {
            Some(highest) if highest > token => {
                Err(Stale { resource: self.path.display().to_string(), token, highest }.into())
            }
            Some(highest) if highest == token => Ok(Entered { _sidecar: sidecar }),
            highest => {
                sidecar::write(&sidecar, highest, token)?;
                // The name too: a fence that a crash takes away fences nothing.
                File::open(folder(&self.fence))?.sync_all()?;
                Ok(Entered { _sidecar: sidecar })
            }
        }
    }

    /// The highest token that was let in.
    ///
    /// # Errors
    /// [`Error::Layout`] when the sidecar is damaged; [`Error::Store`] when it cannot be read.
    pub fn highest(&self) -> Result<Option<Token>, Error> {
        match File::open(&self.fence) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
            Ok(sidecar) => {
                flock(&sidecar, FlockOperation::LockShared).map_err(io::Error::from)?;
                sidecar::read(&sidecar)
            }
        }
    }
}

/// Leave to work on a fenced file. Dropping it lets the next one in, at once.
#[derive(Debug)]
#[must_use = "others may enter as soon as this is dropped"]
pub struct Entered {
    /// Closing it gives the kernel's lock back.
    _sidecar: File,
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// The content in a file of its own in the same folder, on disk, with the rights of the file it is
/// to replace.
fn beside(path: &Path, content: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    let rights = match fs::metadata(path) {
        Ok(now) => now.permissions(),
        Err(_) => fs::Permissions::from_mode(0o666), // less what the umask takes
    };
    let mut new = tempfile::Builder::new()
        .prefix(".distlock-")
        .permissions(rights)
        .tempfile_in(folder(path))?;
    new.write_all(content)?;
    new.as_file().sync_all()?;
    Ok(new)
}
