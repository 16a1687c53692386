//! Content that is never replaced: each token writes a file of its own, and readers take the
//! highest.
//!
//! Nobody has to lock anything, and readers need not know of fences: a late holder's file has a
//! lower number and is passed over. Suits whatever can list names, also stores of objects.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use distlock_core::Token;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{beside, folder};
use crate::{Error, Stale};

/// Immutable generations `NAME.<token>` of one content.
#[derive(Clone, Debug)]
pub struct Generations {
    path: PathBuf,
    stem: String,
}

impl Generations {
    /// The generations beside a path: `config` has `config.00000000000000000042`.
    ///
    /// # Errors
    /// [`Error::Usage`] when the path names no file, or not in UTF-8.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) => Ok(Self { stem: format!("{name}."), path }),
            None => Err(Error::Usage(format!("{} names no file", path.display()))),
        }
    }

    /// Writes this token's generation; it is on disk when this returns.
    ///
    /// # Errors
    /// [`Error::Stale`] when a higher generation is there: this one is passed over by readers.
    /// [`Error::Store`] when this token has written before, or the disk failed.
    pub fn write(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        let new = beside(&self.path, content)?.into_temp_path();
        let at = self.path.with_file_name(format!("{}{:020}", self.stem, token.get()));
        renameat_with(CWD, &*new, CWD, &at, RenameFlags::NOREPLACE).map_err(io::Error::from)?;
        // It has its name; there is nothing left to remove under the old one.
        let _ = new.keep();
        File::open(folder(&self.path))?.sync_all()?;
        match self.latest()? {
            Some((highest, _)) if highest > token => {
                Err(Stale { resource: self.path.display().to_string(), token, highest }.into())
            }
            _ => Ok(()),
        }
    }

    /// The generation that counts, and where it is.
    ///
    /// # Errors
    /// [`Error::Store`] when the folder cannot be read.
    pub fn latest(&self) -> Result<Option<(Token, PathBuf)>, Error> {
        Ok(self.all()?.into_iter().max())
    }

    /// Removes all but the highest `keep` generations, and at least the highest stays. Gives the
    /// number removed. A reader that has listed names may find one gone: it lists again.
    ///
    /// # Errors
    /// [`Error::Store`] when the folder cannot be read or changed.
    pub fn prune(&self, keep: usize) -> Result<usize, Error> {
        let mut all = self.all()?;
        all.sort();
        let old = all.len().saturating_sub(keep.max(1));
        for (_, path) in &all[..old] {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        Ok(old)
    }

    fn all(&self) -> Result<Vec<(Token, PathBuf)>, Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder(&self.path))? {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name.to_str().and_then(|n| n.strip_prefix(&self.stem));
            let token = digits.filter(|d| d.len() == 20).and_then(|d| d.parse().ok());
            found.extend(token.map(|token| (token, entry.path())));
        }
        Ok(found)
    }
}
