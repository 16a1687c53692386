//! Tokens that never go back.
//!
//! A grant's token is above every earlier one because the lock file remembers the highest. Two
//! things could lose that memory, and the `fence` file covers both:
//! * a **sweep** removes the file: before that, the `floor` is raised to its highest token, and
//!   new files start above the floor;
//! * a **power cut** loses writes that were not synced: no token is granted above the `ceiling`,
//!   which is raised ahead of the clock and synced, and at the first open after a boot the ceiling
//!   becomes the floor. One sync for all locks every ten seconds instead of one for every grant.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use distlock_core::host::Boot;
use distlock_core::{Error, Kind};
use serde::{Deserialize, Serialize};

use crate::errors::trouble;
use crate::layout::exclusive;
use crate::lockfile::{own, read};

/// How far ahead the ceiling is raised, in microseconds: tokens are microseconds of the wall clock.
const AHEAD: u64 = 10_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bounds {
    /// Files that are new start above this.
    pub(crate) floor: u64,
    /// No token above this has been told to anybody.
    pub(crate) ceiling: u64,
}

#[derive(Serialize, Deserialize)]
struct Document {
    boot: String,
    shift: String,
    floor: u64,
    ceiling: u64,
}

/// The `fence` file of a directory.
pub(crate) struct Fence {
    dir: PathBuf,
    machine: Boot,
    known: Bounds,
}

impl Fence {
    /// Opens it and, after a boot, turns the ceiling into the floor. The caller has the directory
    /// to itself. `others` says whether some process uses the directory now.
    pub(crate) fn open(
        dir: &Path,
        machine: &Boot,
        others: impl FnOnce() -> bool,
    ) -> Result<Self, Error> {
        let mut fence =
            Self { dir: dir.to_owned(), machine: machine.clone(), known: Bounds::default() };
        let Some(doc) = fence.load()? else {
            fence.store(Bounds::default())?;
            return Ok(fence);
        };
        fence.known = Bounds { floor: doc.floor, ceiling: doc.ceiling };
        if doc.boot != machine.id {
            fence.store(Bounds { floor: doc.floor.max(doc.ceiling), ceiling: doc.ceiling })?;
        } else if doc.shift != machine.shift {
            if others() {
                return Err(Error::new(
                    Kind::Refused,
                    format!("{} is in use from another time namespace", dir.display()),
                )
                .with_hint("processes whose boot clocks differ cannot share a directory"));
            }
            fence.store(fence.known)?;
        }
        Ok(fence)
    }

    /// The floor as it is now on disk: another process may have raised it.
    pub(crate) fn floor(&mut self) -> Result<u64, Error> {
        Ok(self.refresh()?.floor)
    }

    /// Both bounds as they are now on disk.
    pub(crate) fn refresh(&mut self) -> Result<Bounds, Error> {
        if let Some(doc) = self.load()? {
            self.known = Bounds { floor: doc.floor, ceiling: doc.ceiling };
        }
        Ok(self.known)
    }

    /// Makes sure that `token` may be told: when this returns, the ceiling on disk is not below it.
    pub(crate) fn allow(&mut self, token: u64) -> Result<(), Error> {
        if token <= self.known.ceiling {
            return Ok(());
        }
        let _alone = exclusive(&self.dir)?;
        let now = self.refresh()?;
        if token > now.ceiling {
            self.store(Bounds { ceiling: token.saturating_add(AHEAD), ..now })?;
        }
        Ok(())
    }

    /// Makes sure that new files start above `token`.
    pub(crate) fn raise_floor(&mut self, token: u64) -> Result<(), Error> {
        let _alone = exclusive(&self.dir)?;
        let now = self.refresh()?;
        if token > now.floor {
            self.store(Bounds { floor: token, ..now })?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.join("fence")
    }

    fn load(&self) -> Result<Option<Document>, Error> {
        let path = self.path();
        match read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| {
                Error::new(Kind::Layout, format!("{} makes no sense", path.display()))
                    .with_hint("restore it, or remove it if no resource compares tokens")
                    .because(e)
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(trouble("read", &path, e)),
        }
    }

    fn store(&mut self, bounds: Bounds) -> Result<(), Error> {
        let doc = Document {
            boot: self.machine.id.clone(),
            shift: self.machine.shift.clone(),
            floor: bounds.floor,
            ceiling: bounds.ceiling,
        };
        let path = self.path();
        let fresh = self.dir.join("fence.new");
        let write = || {
            let mut file = own().write(true).create(true).truncate(true).open(&fresh)?;
            file.write_all(&serde_json::to_vec(&doc)?)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|e| trouble("write", &path, e))?;
        self.known = bounds;
        Ok(())
    }
}
