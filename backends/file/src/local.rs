//! Which file systems the directory may be on.
//!
//! An allow list, because the others fail in silence: two kernels on one shared file system do not
//! see each other's locks, and each would hold them all.

use std::path::Path;

use distlock_core::{Error, Kind};

use crate::trouble::trouble;

/// The one whose files a reboot takes away.
const TMPFS: u64 = 0x0102_1994;

const LOCAL: &[(u64, &str)] = &[
    (0xEF53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (TMPFS, "tmpfs"),
    (0x794C_7630, "overlayfs"),
];

/// Whether files outlive a reboot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    Lasting,
    Volatile,
}

/// Refuses a directory that is not on a local file system. One that does not exist yet is judged
/// by its nearest parent that does, so that nothing is left behind on a foreign one.
pub(crate) fn check(dir: &Path) -> Result<Medium, Error> {
    let there = dir.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statfs(there).map_err(|e| trouble("look at", there, e.into()))?;
    // Some kernels sign-extend the 32-bit number.
    let magic = stat.f_type as u64 & 0xFFFF_FFFF;
    if LOCAL.iter().any(|(known, _)| *known == magic) {
        return Ok(if magic == TMPFS { Medium::Volatile } else { Medium::Lasting });
    }
    let names: Vec<_> = LOCAL.iter().map(|(_, name)| *name).collect();
    Err(Error::new(
        Kind::Refused,
        format!("{} is not on a local file system (type {magic:#x})", dir.display()),
    )
    .with_hint(format!(
        "use a directory on one of {}; for locks between hosts use a server store",
        names.join(", ")
    )))
}
