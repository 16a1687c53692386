//! Listing locks by reading alone: no lock is taken, so nobody's try fails because somebody looks.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use distlock_core::{
    Clock, Error, FullName, HoldInfo, LockInfo, Mode, Name, Namespace, Query, WaiterInfo,
};

use crate::errors::{if_there, trouble};
use crate::file_name::{Stem, decode, space_dir};
use crate::live_processes::is_alive;
use crate::lockfile::peek;
use crate::queue;
use crate::record::Phase;

/// What a look needs to know.
#[derive(Clone)]
pub(crate) struct Looker {
    pub(crate) dir: std::path::PathBuf,
    pub(crate) boot: String,
    pub(crate) clock: Clock,
}

impl Looker {
    pub(crate) fn list(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        match query {
            Query::Name(lock) => Ok(self.show(lock)?.into_iter().collect()),
            Query::Prefix { space, prefix, after, limit } => {
                let mut names = self.names(space)?;
                names.retain(|n| {
                    n.as_str().starts_with(prefix.as_str()) && after.as_ref().is_none_or(|a| n > a)
                });
                names.sort_unstable();
                let mut page = Vec::new();
                for name in names {
                    if page.len() == *limit {
                        break;
                    }
                    page.extend(self.show(&FullName { space: space.clone(), name })?);
                }
                Ok(page)
            }
        }
    }

    /// A held or waited-for lock; `None` for any other.
    pub(crate) fn show(&self, lock: &FullName) -> Result<Option<LockInfo>, Error> {
        let stem = Stem::of(lock);
        let now = self.clock.now();
        let sessions = self.dir.join("sessions");
        let record = peek(&stem.lock_file(&self.dir)).filter(|r| r.boot == self.boot);
        let left = record.as_ref().and_then(|r| r.left(now.as_micros(), &self.boot));
        let hold = record.and_then(|r| r.hold).filter(|h| match h.phase {
            Phase::Held => is_alive(&sessions, &h.session).unwrap_or(true),
            Phase::Lingering => left.is_some(),
        });
        let holds: Vec<_> = hold
            .map(|h| HoldInfo {
                req: h.req,
                holder: h.seen(now.as_micros(), left),
                tokens: NonZeroU32::MIN,
                mode: Mode::Exclusive,
                lingering: h.phase == Phase::Lingering,
                revoked: false,
            })
            .into_iter()
            .collect();
        let dir = stem.line(&self.dir);
        let tickets = queue::all(&dir).map_err(|e| trouble("read", &dir, e))?;
        let waiters: Vec<_> = tickets
            .iter()
            .filter(|t| is_alive(&sessions, t.session()).unwrap_or(true))
            .filter_map(|t| {
                let who = queue::who(&dir, t)?;
                Some(WaiterInfo {
                    req: t.req()?,
                    owner: who.owner,
                    label: who.label,
                    mode: Mode::Exclusive,
                    waited: now.since(t.since()),
                })
            })
            .collect();
        if holds.is_empty() && waiters.is_empty() {
            return Ok(None);
        }
        Ok(Some(LockInfo { lock: lock.clone(), holds, waiters }))
    }

    /// The process that holds a lock, for people who want it gone.
    pub(crate) fn holder_pid(&self, lock: &FullName) -> Option<(u32, Duration)> {
        let record = peek(&Stem::of(lock).lock_file(&self.dir))?;
        let hold = record.hold.filter(|h| h.phase == Phase::Held)?;
        let age = self.clock.now().as_micros().saturating_sub(hold.granted);
        is_alive(&self.dir.join("sessions"), &hold.session)
            .unwrap_or(true)
            .then(|| (hold.pid, Duration::from_micros(age)))
    }

    fn names(&self, space: &Namespace) -> Result<Vec<Name>, Error> {
        let dir = self.dir.join(space_dir(space));
        let say = |e| trouble("list", &dir, e);
        let mut names = Vec::new();
        for entry in if_there(std::fs::read_dir(&dir)).map_err(say)?.into_iter().flatten() {
            names.extend(name_of(&entry.map_err(say)?.path()));
        }
        Ok(names)
    }
}

fn name_of(path: &Path) -> Option<Name> {
    if path.extension()? != "lock" {
        return None;
    }
    match decode(path.file_stem()?.to_str()?) {
        Some(name) => Name::new(name).ok(),
        None => peek(path).map(|r| r.lock.name),
    }
}
