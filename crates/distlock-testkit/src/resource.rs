//! What a lock protects: a resource that checks fencing tokens.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use distlock_core::Token;
use tempfile::TempDir;

/// A file that takes a write only with a token at least as high as the highest it has taken. It
/// knows nothing of locks, clocks or processes, and any process can write to it.
#[derive(Debug)]
pub struct Resource {
    path: PathBuf,
    _dir: Option<TempDir>,
}

impl Resource {
    /// A new one, which ends with the value.
    ///
    /// # Errors
    /// When no file can be made.
    pub fn new() -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("distlock-resource-").tempdir()?;
        Ok(Self { path: dir.path().join("resource"), _dir: Some(dir) })
    }

    /// The one at a path, as another process knows it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), _dir: None }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes under a token; whether it was taken. The comparison and the write are one step.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, token: Token) -> io::Result<bool> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .append(true)
            .open(&self.path)?;
        file.lock()?;
        let highest = tokens(&mut file)?.last().copied();
        let fresh = highest.is_none_or(|highest| token >= highest);
        if fresh {
            writeln!(file, "{token}")?;
        }
        Ok(fresh)
    }

    /// The tokens of the writes it took, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn taken(&self) -> io::Result<Vec<Token>> {
        tokens(&mut File::open(&self.path)?)
    }
}

fn tokens(file: &mut File) -> io::Result<Vec<Token>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    text.lines().map(|line| line.parse().map_err(io::Error::other)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_token_is_refused_and_the_same_one_is_not() {
        let resource = Resource::new().unwrap();
        let token = |n| Token::new(n).unwrap();
        let other = Resource::at(resource.path());
        assert!(resource.write(token(7)).unwrap() && other.write(token(7)).unwrap());
        assert!(other.write(token(9)).unwrap());
        assert!(!resource.write(token(8)).unwrap());
        assert_eq!(other.taken().unwrap(), [token(7), token(7), token(9)]);
    }
}
