//! What the tests need besides cargo and a C compiler, and how it gets here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::part::follow;

/// A program the tests start, and the Debian package it comes from.
const NEEDED: [(&str, &str); 9] = [
    ("redis-server", "redis-server"),
    ("memcached", "memcached"),
    ("mariadbd", "mariadb-server"),
    ("postgres", "postgresql"),
    ("pgbouncer", "pgbouncer"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("/usr/share/zookeeper/bin/zkServer.sh", "zookeeper"),
    ("chromium", "chromium"),
];

/// Keeps a freshly installed server from being started by its package.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Whether a program is on the path, or where Debian keeps servers.
pub(crate) fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // PostgreSQL has a directory for each of its versions.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").to_owned()])
        .chain(versions.map(|version| version.path().join("bin")))
        .map(|dir| dir.join(program))
        .any(|file| fs::metadata(file).is_ok_and(|m| m.permissions().mode() & 0o111 != 0))
}

pub(crate) fn run() -> Result<(), String> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(program, _)| !found(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        println!("setup: everything the tests need is here");
        return Ok(());
    }
    println!("setup: installing {} with apt", missing.join(", "));
    if !found("apt-get") {
        return Err(format!(
            "the tests need {}, and this machine has no apt-get; install them by hand",
            missing.join(", ")
        ));
    }
    let policy = Path::new(POLICY).exists();
    if !policy {
        root(&[
            "sh",
            "-c",
            &format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}"),
        ])?;
    }
    let mut install =
        vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y"];
    install.push("--no-install-recommends");
    install.extend(&missing);
    let installed = root(&["apt-get", "update", "-qq"]).and_then(|()| root(&install));
    if !policy {
        root(&["rm", "-f", POLICY])?;
    }
    installed?;
    match NEEDED.iter().find(|(program, _)| !found(program)) {
        None => Ok(()),
        Some((program, package)) => {
            Err(format!("{package} was installed, yet there is no {program} on the path"))
        }
    }
}

/// Runs a command as root, directly or through sudo.
fn root(command: &[&str]) -> Result<(), String> {
    let uid = Command::new("id").arg("-u").output().map_err(|e| format!("cannot run id: {e}"))?;
    let is_root = String::from_utf8_lossy(&uid.stdout).trim() == "0";
    let mut all: Vec<&str> = if is_root { vec![] } else { vec!["sudo"] };
    all.extend(command);
    let mut command = Command::new(all[0]);
    command.args(&all[1..]);
    follow(command, &format!("`{}`", all.join(" ")))
}
