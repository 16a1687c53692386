//! What a lock protects: a resource that checks fencing tokens, and keeps a log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use distlock_core::{Clock, Token};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// A number in a file, which takes a write under a token only if that is at least as high as the
/// highest it has seen. It knows nothing of locks and processes, and any process can write to it.
#[derive(Debug)]
pub struct Resource {
    path: PathBuf,
    _dir: Option<TempDir>,
}

/// One line of a resource's log: a write, or a read that raised its fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// Nanoseconds of the boot clock.
    pub at: u64,
    /// Who wrote: a request of a history, or a process.
    pub by: String,
    /// The token of the writer, also where it was not looked at.
    pub token: Option<u64>,
    /// Whether the token was looked at.
    pub fenced: bool,
    /// A read only.
    pub read: bool,
    /// Whether it was let in.
    pub accepted: bool,
    /// The value after it.
    pub value: i64,
    /// The highest token seen up to here.
    pub highest: u64,
}

/// A line is never longer.
const LINE: u64 = 512;

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
        let by = std::process::id().to_string();
        self.step(&by, Some(token), true, |value| Some(value + 1)).map(|w| w.accepted)
    }

    /// Reads the value under a token, from which on lower ones are refused: whoever reads in order to
    /// write must, or an older holder's write slips in between the two.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn read_fenced(&self, by: &str, token: Token) -> io::Result<Write> {
        self.step(by, Some(token), true, |_| None)
    }

    /// Writes a value under a token, which is looked at if `fenced`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, by: &str, token: Token, fenced: bool, value: i64) -> io::Result<Write> {
        self.step(by, Some(token), fenced, |_| Some(value))
    }

    /// The value as it is now, read by somebody whom nobody checks.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn value(&self) -> io::Result<i64> {
        Ok(self.log()?.last().map_or(0, |w| w.value))
    }

    fn step(
        &self,
        by: &str,
        token: Option<Token>,
        fenced: bool,
        change: impl FnOnce(i64) -> Option<i64>,
    ) -> io::Result<Write> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .append(true)
            .open(&self.path)?;
        file.lock()?;
        let last = last(&mut file)?;
        let (value, highest) = last.map_or((0, 0), |w| (w.value, w.highest));
        let token = token.map(Token::get);
        let accepted = !fenced || token.is_some_and(|t| t >= highest);
        let change = change(value);
        let write = Write {
            at: Clock::system().now().as_nanos(),
            by: by.to_owned(),
            token,
            fenced,
            read: change.is_none(),
            accepted,
            value: change.filter(|_| accepted).unwrap_or(value),
            highest: if fenced { highest.max(token.unwrap_or(0)) } else { highest },
        };
        let mut line = serde_json::to_vec(&write)?;
        line.push(b'\n');
        file.write_all(&line)?;
        Ok(write)
    }

    /// Everything that was tried, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log(&self) -> io::Result<Vec<Write>> {
        let text = match std::fs::read_to_string(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
    }

    /// The tokens of the writes it took, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn taken(&self) -> io::Result<Vec<Token>> {
        let taken = self.log()?.into_iter().filter(|w| w.accepted && !w.read);
        taken.filter_map(|w| w.token).map(|t| Token::new(t).map_err(io::Error::other)).collect()
    }
}

/// The last line, without reading those before it.
fn last(file: &mut File) -> io::Result<Option<Write>> {
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(LINE)))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    text.lines().last().map(|line| serde_json::from_str(line).map_err(io::Error::other)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    #[test]
    fn an_older_token_is_refused_and_the_same_one_is_not() {
        let resource = Resource::new().unwrap();
        let other = Resource::at(resource.path());
        assert!(resource.write(token(7)).unwrap() && other.write(token(7)).unwrap());
        assert!(other.write(token(9)).unwrap());
        assert!(!resource.write(token(8)).unwrap());
        assert_eq!(other.taken().unwrap(), [token(7), token(7), token(9)]);
    }

    #[test]
    fn a_fenced_read_shuts_older_writers_out() {
        let resource = Resource::new().unwrap();
        assert!(resource.put("a", token(3), true, 10).unwrap().accepted);
        let read = resource.read_fenced("b", token(5)).unwrap();
        assert!(read.accepted && read.read && read.value == 10);
        assert!(!resource.put("a", token(3), true, 11).unwrap().accepted);
        assert_eq!(resource.value().unwrap(), 10);
        // Whom nobody checks is let in, and lowers nothing.
        assert!(resource.put("a", token(3), false, 12).unwrap().accepted);
        assert!(!resource.put("a", token(4), true, 13).unwrap().accepted);
        assert_eq!(resource.value().unwrap(), 12);
        assert_eq!(resource.log().unwrap().len(), 5);
    }
}
