//! An empty database to begin with. Laying one out takes seconds, copying it milliseconds: so it
//! is made once on a machine for each build of the server, and kept beside the temporary files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use distlock_core::{Error, Kind};

/// Rises when the layout below changes.
const LAYOUT: u32 = 1;

/// Copies the empty database to where there is nothing yet.
pub(super) fn copy(to: &Path) -> Result<(), Error> {
    let from = made()?;
    copy_all(&from, to).map_err(|e| trouble("cannot be copied").because(e))
}

fn trouble(what: &str) -> Error {
    Error::new(Kind::Store, format!("the empty database of the test server {what}"))
}

fn made() -> Result<PathBuf, Error> {
    let server = super::Mariadb::new().program().find()?;
    let of = fs::metadata(&server).map_err(|e| trouble("has no server").because(e))?;
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("distlock-mariadb-{LAYOUT}-{uid}-{}-{}", of.size(), of.mtime());
    let place = std::env::temp_dir().join(name);
    if place.exists() {
        // The name can be guessed: what another user put there is not ours to run on.
        let owner = fs::metadata(&place).map(|m| m.uid());
        return match owner {
            Ok(owner) if owner == uid => Ok(place),
            _ => Err(trouble("belongs to somebody else").with_hint("remove it from /tmp")),
        };
    }
    // Made aside and moved, so that others see all of it or nothing.
    let aside = tempfile::Builder::new().prefix("distlock-mariadb-new-").tempdir();
    let aside = aside.map_err(|e| trouble("has no directory").because(e))?;
    let data = aside.path().join("data");
    lay_out(&data)?;
    match fs::rename(&data, &place) {
        Err(_) if place.exists() => Ok(place),
        moved => moved.map(|()| place).map_err(|e| trouble("cannot be moved").because(e)),
    }
}

fn lay_out(data: &Path) -> Result<(), Error> {
    let mut command = Command::new("mariadb-install-db");
    command.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    let done = command
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=8M"])
        .args(["--innodb-flush-method=nosync"])
        .output();
    let done = done.map_err(|e| {
        trouble("cannot be made").because(e).with_hint("apt-get install mariadb-server")
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(trouble("cannot be made").because(io::Error::other(said)))
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
