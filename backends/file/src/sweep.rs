//! Removing lock files that nobody has used for long, in small steps.
//!
//! 1. Take the file's lock without waiting, and make sure that it is idle and nobody is in the
//!    queue.
//! 2. Raise the fence's floor to the highest token of the batch.
//! 3. Remove the files while their locks are ours: a request that waits or comes meanwhile finds
//!    that its file is not the one at the path any more, and opens anew.

use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use distlock_core::{BootInstant, Error};

use crate::errors::trouble;
use crate::lockfile::{Content, LockFile, peek};
use crate::record::Record;
use crate::worker::Worker;

/// How many files are looked at in one go beside other work.
const STEP: usize = 16;

/// Where the sweep stands in the directory.
pub(crate) struct Sweeper {
    retention: Duration,
    spaces: Vec<PathBuf>,
    files: Option<ReadDir>,
    /// A pass is over; the next begins no earlier than this.
    next: Option<BootInstant>,
}

impl Sweeper {
    pub(crate) fn new(retention: Duration) -> Self {
        Self { retention, spaces: Vec::new(), files: None, next: None }
    }
}

impl Worker {
    /// A step beside other work: its troubles are nobody's answer.
    pub(crate) fn sweep_quietly(&mut self) {
        if self.sweeper.next.is_some_and(|at| self.clock.now() < at) {
            return;
        }
        if let Err(e) = self.sweep(STEP) {
            tracing::warn!(error = %e, "idle lock files stay for now");
        }
    }

    /// Looks at up to `at_most` files and removes the idle ones among them; answers how many.
    pub(crate) fn sweep(&mut self, at_most: usize) -> Result<usize, Error> {
        if self.sweeper.files.is_none() && self.sweeper.spaces.is_empty() {
            self.sweeper.spaces = self.spaces().map_err(|e| trouble("list", &self.dir, e))?;
        }
        let mut idle = Vec::new();
        for _ in 0..at_most {
            let Some(path) = self.next_file() else { break };
            idle.extend(self.idle(&path).map(|(file, hi)| (file, hi, path)));
        }
        let Some(highest) = idle.iter().map(|(_, hi, _)| *hi).max() else { return Ok(0) };
        self.tokens.raise_floor(highest)?;
        let removed = idle.len();
        for (file, _, path) in idle {
            let _ = std::fs::remove_dir(path.with_extension("q"));
            file.remove().map_err(|e| trouble("remove", &path, e))?;
        }
        Ok(removed)
    }

    /// An idle lock, now ours, and its highest token.
    fn idle(&self, path: &Path) -> Option<(LockFile, u64)> {
        let long_free = |r: &Record| r.idle(self.now(), &self.boot, self.sweeper.retention);
        // Read before locking: a lock in use must not be touched, not even for a moment. An empty
        // file was made by a process that ended before its first grant.
        let empty = || std::fs::metadata(path).is_ok_and(|m| m.len() == 0);
        if !peek(path).map_or_else(empty, |r| long_free(&r))
            || !self.living(&path.with_extension("q")).is_ok_and(|queue| queue.is_empty())
        {
            return None;
        }
        let file = LockFile::try_lock(path).ok().flatten()?;
        match file.read() {
            Ok(Content::Known(r)) if long_free(&r) => Some((file, r.hi)),
            Ok(Content::New) => Some((file, 0)),
            _ => None,
        }
    }

    fn next_file(&mut self) -> Option<PathBuf> {
        loop {
            for entry in self.sweeper.files.as_mut().into_iter().flatten().flatten() {
                if entry.path().extension().is_some_and(|e| e == "lock") {
                    return Some(entry.path());
                }
            }
            self.sweeper.files = None;
            let Some(space) = self.sweeper.spaces.pop() else {
                // Nothing that is there now grows old before.
                let rest = self.sweeper.retention / 16;
                self.sweeper.next = Some(self.clock.now().plus(rest));
                return None;
            };
            self.sweeper.files = std::fs::read_dir(space).ok();
        }
    }

    fn spaces(&self) -> io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&self.dir)?.collect::<io::Result<Vec<_>>>()?;
        let space = |e: &DirEntry| e.file_name().as_encoded_bytes().starts_with(b"_");
        Ok(entries.iter().filter(|e| space(e)).map(DirEntry::path).collect())
    }
}
