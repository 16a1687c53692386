//! What the law programs share.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use distlock_core::capability::Capability;
use distlock_etcd::{Version, capability};

/// Where a server's log is in memory. It is synced after every write, and a dozen servers that wait
/// for one disk are a law about the disk.
const MEMORY: &str = "/dev/shm";

/// Starts this program again with its servers' data in memory.
pub(crate) fn in_memory() {
    if Path::new(MEMORY).is_dir() && std::env::temp_dir() != Path::new(MEMORY) {
        let this = std::env::current_exe().expect("this program's path");
        let again =
            Command::new(this).args(std::env::args_os().skip(1)).env("TMPDIR", MEMORY).exec();
        panic!("this program does not start again: {again}");
    }
}

/// What the store promises on the etcd that is installed here.
pub(crate) fn capability_here() -> Capability {
    let said = Command::new("etcd").arg("--version").output().expect("etcd is installed");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.lines().next().and_then(|l| l.rsplit(' ').next()).and_then(Version::read);
    capability(Some(version.expect("etcd tells its version")))
}
