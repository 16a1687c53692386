//! What stores on one host must know of it: which boot this is, which file systems are its own, and
//! which directories are its user's.

use std::fs;
use std::path::Path;

use crate::{Error, Kind};

mod trust;

pub use trust::{link, own_entry, private_dir, trusted_path};

/// Which boot of which kernel, seen through which time namespace: what makes two readings of the
/// boot-time clock comparable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Boot {
    /// The kernel's id of this boot.
    pub id: String,
    /// How far this process's time namespace shifts the boot-time clock: seconds and nanoseconds.
    pub shift: String,
}

impl Boot {
    /// Reads it from the kernel.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when `/proc` is not mounted.
    pub fn here() -> Result<Self, Error> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| {
            Error::new(Kind::Unsupported, "the kernel's boot id cannot be read")
                .with_hint("this store needs /proc to tell which boot its times are of")
                .because(e)
        })?;
        // A kernel without time namespaces has no such file, and nothing is shifted.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Self { id: id.trim().to_owned(), shift: shift(&offsets) })
    }
}

/// The shift of the boot-time clock in the text of `/proc/self/timens_offsets`.
fn shift(offsets: &str) -> String {
    let line = offsets.lines().find_map(|l| l.trim().strip_prefix("boottime"));
    let numbers: Vec<&str> = line.unwrap_or("0 0").split_whitespace().collect();
    numbers.join(" ")
}

/// A file system that only this kernel writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalFs {
    /// What it is called.
    pub name: &'static str,
    /// Whether a reboot empties it.
    pub volatile: bool,
}

/// An allow list, because the others fail in silence: two kernels on one shared file system do not
/// see each other's locks, and take each other's boots for their own past.
const LOCAL: [(u64, LocalFs); 7] = [
    (0xEF53, LocalFs { name: "ext2/3/4", volatile: false }),
    (0x5846_5342, LocalFs { name: "xfs", volatile: false }),
    (0x9123_683E, LocalFs { name: "btrfs", volatile: false }),
    (0x2FC1_2FC1, LocalFs { name: "zfs", volatile: false }),
    (0xF2F5_2010, LocalFs { name: "f2fs", volatile: false }),
    (0x0102_1994, LocalFs { name: "tmpfs", volatile: true }),
    (0x794C_7630, LocalFs { name: "overlayfs", volatile: false }),
];

impl LocalFs {
    /// The file system a path lies on, if it is known as local. A path that does not exist yet is
    /// judged by its nearest parent that does, so that nothing is left behind on a foreign one.
    ///
    /// # Errors
    /// [`Kind::Refused`] for any other file system; [`Kind::Store`] when it cannot be looked at.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        let stat = rustix::fs::statfs(there).map_err(|e| {
            Error::new(Kind::Store, format!("cannot look at {}", there.display()))
                .because(std::io::Error::from(e))
        })?;
        // Some kernels sign-extend the 32-bit number.
        #[allow(clippy::cast_sign_loss)]
        Self::known(stat.f_type as u64 & 0xFFFF_FFFF).map_err(|e| e.store(path.display()))
    }

    fn known(magic: u64) -> Result<Self, Error> {
        if let Some((_, fs)) = LOCAL.iter().find(|(known, _)| *known == magic) {
            return Ok(*fs);
        }
        let names: Vec<&str> = LOCAL.iter().map(|(_, fs)| fs.name).collect();
        let fault = format!("this file system (type {magic:#x}) is not known to be local");
        Err(Error::new(Kind::Refused, fault).with_hint(format!(
            "use one of {}; for locks between hosts use a server",
            names.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_is_that_of_the_boottime_clock() {
        let text = "monotonic           7         0\nboottime     -86400         5\n";
        assert_eq!(shift(text), "-86400 5");
        assert_eq!(shift(""), "0 0");
        assert_eq!(Boot::here().unwrap().id.len(), 36);
    }

    #[test]
    fn shared_and_strange_file_systems_are_refused() {
        const NFS: u64 = 0x6969;
        const CIFS: u64 = 0xFF53_4D42;
        const V9FS: u64 = 0x0102_1997;
        const FUSE: u64 = 0x6573_5546;
        for magic in [NFS, CIFS, V9FS, FUSE, 0] {
            let e = LocalFs::known(magic).unwrap_err();
            assert_eq!(e.kind(), Kind::Refused);
            assert!(e.hint().is_some_and(|h| h.contains("ext2/3/4")), "{e:?}");
        }
        assert_eq!(LocalFs::known(0xEF53).unwrap().name, "ext2/3/4");
        assert!(LocalFs::known(0x0102_1994).unwrap().volatile);
        assert_eq!(LocalFs::of(Path::new("/proc/self")).unwrap_err().kind(), Kind::Refused);
    }
}
