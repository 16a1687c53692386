//! A process of the command that KILL does not end: one that sleeps in the kernel, or that became
//! another user's. The latter is what a test can make.

use std::fs::{Permissions, copy, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::scene::{Running, Scene, alive, timed, until};

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// A process that this user ends, also when the test fails.
struct Rooted(Pid);

impl Drop for Rooted {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Starts `distlock run` as another user, with a command that becomes root's.
fn hold(scene: &Scene) -> (Running, Rooted) {
    let dir = scene.path("");
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    // The build may lie where that user must not look.
    copy(env!("CARGO_BIN_EXE_distlock"), scene.path("distlock")).unwrap();
    copy("/usr/bin/setpriv", scene.path("become")).unwrap();
    set_permissions(scene.path("become"), Permissions::from_mode(0o4755)).unwrap();
    let script = "echo $$ > pid.new; mv pid.new pid; exec sleep 1000";
    let log = std::fs::File::create(scene.path("holder.log")).unwrap();
    let holder = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "./distlock"])
        .args(["run", "--url", scene.url(), "--max-hold", "1s", "lock", "--"])
        .args(["./become", "--reuid", "0", "sh", "-c", script])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let rooted = Rooted(scene.pid("pid"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", rooted.0)).unwrap();
    assert!(status.contains("Uid:\t0\t0\t0\t0"), "the place must allow set-user-ID: {status}");
    (holder.into(), rooted)
}

#[test]
fn what_kill_does_not_end_does_not_keep_distlock() {
    let scene = Scene::sqlite();
    if !geteuid().is_root() {
        // Such a process takes root to make; this user can make one that is stopped.
        let done =
            scene.run(&["run", "--max-hold", "1s", "lock", "--", "sh", "-c", "kill -STOP $$"]);
        return assert_eq!(done.code, 124, "{done:?}");
    }
    let (mut holder, rooted) = hold(&scene);
    let (took, code) = timed(|| holder.code());
    assert_eq!(code, 124, "{}", scene.read("holder.log"));
    assert!(took < Duration::from_secs(20), "{took:?}");
    scene.says("holder.log", &format!("KILL does not end process {}", rooted.0));
    assert!(alive(rooted.0));
}

#[test]
fn who_waits_for_what_kill_does_not_end_hears_term() {
    let scene = Scene::sqlite();
    if !geteuid().is_root() {
        let mut holder = scene.hold(&[], "exec sleep 1000");
        holder.signal(Signal::TERM);
        return assert_eq!(holder.code(), 143);
    }
    let (mut holder, _rooted) = hold(&scene);
    scene.says("holder.log", "ending the command");
    let (took, ()) = timed(|| {
        // The first ones are for the command; once it was sent KILL, one is for distlock.
        until("it ends", || {
            let _ = kill_process(holder.pid(), Signal::TERM);
            holder.try_wait().unwrap().is_some()
        });
    });
    assert_eq!(holder.code(), 124, "{}", scene.read("holder.log"));
    assert!(took < Duration::from_secs(4), "it waited all the same: {took:?}");
}
