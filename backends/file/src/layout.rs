//! The directory: which layout it has, and a moment alone in it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use distlock_core::host::{own_entry, private_dir};
use distlock_core::{Clock, Error, Kind};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::errors::trouble;
use crate::lockfile::{is_at, make_dir, own};
use crate::record::LAYOUT;

/// How long to wait for another process that is alone in the directory, and in what naps. It
/// writes a small file there; only a stopped one takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
const NAP_NANOS: i64 = 500_000;

/// Has the directory to itself until it is dropped: for the few short moves that concern it as a
/// whole (opening, a new session, the fence file).
pub(crate) fn exclusive(dir: &Path) -> Result<File, Error> {
    let path = dir.join("layout");
    let mut how = own();
    how.read(true).append(true).create(true);
    let clock = Clock::system();
    let start = clock.now();
    let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NANOS };
    loop {
        let file = how.open(&path).map_err(|e| trouble("open", &path, e))?;
        let locked = loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if clock.now().since(start) < PATIENCE => {
                    let _ = rustix::thread::nanosleep(&nap);
                }
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match locked {
            // One that was removed meanwhile keeps nobody out.
            Ok(()) if is_at(&file, &path).map_err(|e| trouble("look at", &path, e))? => {
                return Ok(file);
            }
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::new(
                    Kind::Unreachable,
                    format!("another process keeps {} locked", path.display()),
                )
                .with_hint("look for a stopped process (fuser)"));
            }
            Err(e) => return Err(trouble("lock", &path, e.into())),
        }
    }
}

/// Whether the directory was ever made what this layout needs.
pub(crate) fn exists(dir: &Path) -> bool {
    dir.join("layout").exists()
}

/// Makes the directory what this layout needs, or refuses it: also one in which somebody else could
/// have put a file or a link, or still can, unless `trust_all`. Answers the moment alone in it.
pub(crate) fn open(dir: &Path, trust_all: bool) -> Result<File, Error> {
    if !trust_all {
        private_dir(dir)?;
    }
    make_dir(dir).map_err(|e| trouble("make", dir, e))?;
    if !trust_all {
        private_dir(dir)?;
        // What was put there while it was open to others is still there.
        let say = |e| trouble("list", dir, e);
        for entry in std::fs::read_dir(dir).map_err(say)? {
            own_entry(&entry.map_err(say)?.path())?;
        }
    }
    let mut file = exclusive(dir)?;
    let path = dir.join("layout");
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| trouble("read", &path, e))?;
    match text.trim().parse::<u32>() {
        Ok(LAYOUT) => {}
        Ok(newer) if newer > LAYOUT => {
            return Err(Error::new(
                Kind::Layout,
                format!("{} has layout {newer}, this version knows {LAYOUT}", dir.display()),
            )
            .with_hint("use a newer distlock, or another directory"));
        }
        _ if text.is_empty() => {
            let fresh = file.write_all(format!("{LAYOUT}\n").as_bytes());
            fresh.and_then(|()| file.sync_all()).map_err(|e| trouble("write", &path, e))?;
        }
        _ => {
            return Err(Error::new(
                Kind::Layout,
                format!("{} is not a layout of distlock", path.display()),
            )
            .with_hint("use a directory that nothing else uses"));
        }
    }
    let sessions = dir.join("sessions");
    make_dir(&sessions).map_err(|e| trouble("make", &sessions, e))?;
    Ok(file)
}
