//! The directory: which layout it has, and a moment alone in it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use distlock_core::{Error, Kind};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::lockfile::make_dir;
use crate::record::LAYOUT;
use crate::trouble::trouble;

/// Which run of which machine this is: what boot-clock times are worth.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) boot: String,
    /// Processes of another time namespace have another boot clock.
    pub(crate) time_ns: String,
}

impl Machine {
    pub(crate) fn this() -> Result<Self, Error> {
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = std::fs::read_to_string(path).map_err(|e| {
            trouble("read", path, e).with_hint("the file store needs /proc to be mounted")
        })?;
        let time_ns = std::fs::read_link("/proc/self/ns/time")
            .map_or_else(|_| String::new(), |p| p.to_string_lossy().into_owned());
        Ok(Self { boot: boot.trim().to_owned(), time_ns })
    }
}

/// Has the directory to itself until it is dropped: for the few short moves that concern it as a
/// whole (opening, a new session, the fence file).
pub(crate) fn exclusive(dir: &Path) -> Result<File, Error> {
    let path = dir.join("layout");
    let mut how = OpenOptions::new();
    how.read(true).append(true).create(true).mode(0o600);
    let file = how.open(&path).map_err(|e| trouble("open", &path, e))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(e) => return Err(trouble("lock", &path, e.into())),
        }
    }
}

/// Makes the directory what this layout needs, or refuses it. Answers the moment alone in it.
pub(crate) fn open(dir: &Path) -> Result<File, Error> {
    make_dir(dir).map_err(|e| trouble("make", dir, e))?;
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
