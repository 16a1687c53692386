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
use std::io::Write;
use std::path::{Path, PathBuf};

use distlock_core::host::Boot;
use distlock_core::{Error, Kind};
use serde::{Deserialize, Serialize};

use crate::errors::{if_there, trouble};
use crate::layout::exclusive;
use crate::lockfile::{own, read};

/// How far ahead the ceiling is raised, in microseconds: tokens are microseconds of the wall clock.
const AHEAD: u64 = 10_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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
    #[serde(flatten)]
    bounds: Bounds,
}

/// The `fence` file of a directory.
pub(crate) struct Tokens {
    dir: PathBuf,
    machine: Boot,
    known: Bounds,
}

impl Tokens {
    /// Opens it and, after a boot, turns the ceiling into the floor. The caller has the directory
    /// to itself. `others` says whether some process uses the directory now.
    pub(crate) fn open(
        dir: &Path,
        machine: &Boot,
        others: impl FnOnce() -> bool,
    ) -> Result<Self, Error> {
        let mut fence =
            Self { dir: dir.to_owned(), machine: machine.clone(), known: Bounds::default() };
        let Some(Document { boot, shift, bounds }) = fence.load()? else {
            fence.store(Bounds::default())?;
            return Ok(fence);
        };
        fence.known = bounds;
        if boot != machine.id {
            fence.store(Bounds { floor: bounds.floor.max(bounds.ceiling), ..bounds })?;
        } else if shift != machine.shift {
            if others() {
                return Err(Error::new(
                    Kind::Refused,
                    format!("{} is in use from another time namespace", dir.display()),
                )
                .with_hint("processes whose boot clocks differ cannot share a directory"));
            }
            fence.store(bounds)?;
        }
        Ok(fence)
    }

    /// Both bounds as they are now on disk: another process may have raised them.
    pub(crate) fn refresh(&mut self) -> Result<Bounds, Error> {
        if let Some(doc) = self.load()? {
            self.known = doc.bounds;
        }
        Ok(self.known)
    }

    /// Makes sure that `token` may be told: when this returns, the ceiling on disk is not below it.
    pub(crate) fn allow(&mut self, token: u64) -> Result<(), Error> {
        if token <= self.known.ceiling {
            return Ok(());
        }
        self.raise(|bounds| {
            if token > bounds.ceiling {
                bounds.ceiling = token.saturating_add(AHEAD);
            }
        })
    }

    /// Makes sure that new files start above `token`.
    pub(crate) fn raise_floor(&mut self, token: u64) -> Result<(), Error> {
        self.raise(|bounds| bounds.floor = bounds.floor.max(token))
    }

    /// Changes the bounds on disk, which nobody else can change meanwhile.
    fn raise(&mut self, change: impl FnOnce(&mut Bounds)) -> Result<(), Error> {
        let _alone = exclusive(&self.dir)?;
        let mut bounds = self.refresh()?;
        change(&mut bounds);
        if bounds == self.known { Ok(()) } else { self.store(bounds) }
    }

    fn load(&self) -> Result<Option<Document>, Error> {
        let path = self.dir.join("fence");
        let bytes = if_there(read(&path)).map_err(|e| trouble("read", &path, e))?;
        let decoded = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        decoded.map_err(|e| {
            Error::new(Kind::Layout, format!("{} could not be decoded", path.display()))
                .with_hint("restore it, or remove it if no resource compares tokens")
                .because(e)
        })
    }

    fn store(&mut self, bounds: Bounds) -> Result<(), Error> {
        let doc =
            Document { boot: self.machine.id.clone(), shift: self.machine.shift.clone(), bounds };
        let path = self.dir.join("fence");
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
