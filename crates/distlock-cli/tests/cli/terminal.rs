//! The command at a terminal, which script(1) plays (package bsdutils, on every Debian).

use std::io::{Read, Write};
use std::process::{ChildStdin, Stdio};

use crate::scene::{Running, Scene};

/// A session on a terminal of its own: what is typed into it, and all that it shows in `screen`.
struct Session {
    script: Running,
    keys: ChildStdin,
}

impl Session {
    fn new(scene: &Scene, line: &str) -> Self {
        let mut command = scene.shell("exec script -q -e -f -c \"$LINE\" screen");
        command.env("LINE", line).env("SHELL", "/bin/sh");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut script = Running::from(command.spawn().expect("script(1) starts"));
        let keys = script.stdin.take().unwrap();
        Self { script, keys }
    }

    fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn code(&mut self) -> i32 {
        let code = self.script.code();
        let mut said = String::new();
        if let Some(err) = &mut self.script.stderr {
            let _ = err.read_to_string(&mut said);
        }
        assert_eq!(said, "", "script(1) itself is well");
        code
    }
}

#[test]
fn the_command_reads_the_terminal_and_ctrl_c_reaches_it_alone() {
    let scene = Scene::sqlite();
    // The last line shows that the terminal came back: reading it from the background would stop.
    let line = "distlock run lock -- sh -c 'read a; echo got-$a; trap \"echo int > int; exit 9\" INT; \
                touch ready; while :; do sleep 0.02; done'; echo code-$?; read b; echo then-$b";
    let mut session = Session::new(&scene, line);
    session.type_in("hello\n");
    scene.says("screen", "got-hello");
    scene.appears("ready");
    session.type_in("\x03");
    scene.says("screen", "code-9");
    session.type_in("back\n");
    scene.says("screen", "then-back");
    assert_eq!(session.code(), 0);
    assert_eq!(scene.read("int").trim(), "int");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
}

#[test]
fn ctrl_z_does_not_suspend_a_command_under_a_lock() {
    let scene = Scene::sqlite();
    let line = "distlock run lock -- sh -c 'touch ready; until [ -e go ]; do sleep 0.02; done; exit 5'; \
                echo code-$?";
    let mut session = Session::new(&scene, line);
    scene.appears("ready");
    session.type_in("\x1a");
    scene.says("screen", "cannot be suspended");
    std::fs::write(scene.path("go"), "").unwrap();
    scene.says("screen", "code-5");
    assert_eq!(session.code(), 0);
}

#[test]
fn ctrl_c_ends_a_script_around_it_too() {
    let scene = Scene::sqlite();
    let line = "distlock run lock -- sh -c 'touch ready; exec sleep 1000'; touch went-on";
    let mut session = Session::new(&scene, line);
    scene.appears("ready");
    session.type_in("\x03");
    assert_eq!(session.code(), 130);
    assert!(!scene.path("went-on").exists());
}

#[test]
fn ctrl_c_while_waiting_leaves_the_line() {
    let scene = Scene::sqlite();
    let _holder = scene.hold(&[], "exec sleep 1000");
    let mut session = Session::new(&scene, "exec distlock run lock -- true");
    scene.says("screen", "held by");
    session.type_in("\x03");
    assert_eq!(session.code(), 130);
    scene.waiting("lock", 0);
}

#[test]
fn ctrl_z_while_waiting_keeps_the_place_and_says_so() {
    let scene = Scene::sqlite();
    let _holder = scene.hold(&[], "until [ -e go ]; do sleep 0.02; done");
    let mut session = Session::new(&scene, "exec distlock run lock -- true");
    scene.says("screen", "held by");
    session.type_in("\x1a");
    scene.says("screen", "cannot be suspended");
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(session.code(), 0);
}

#[test]
fn a_pager_behind_it_keeps_the_keyboard_until_the_command_wants_it() {
    let scene = Scene::sqlite();
    let line = "distlock run lock -- sh -c 'touch ready; read a; echo got-$a' | cat; echo end";
    let mut session = Session::new(&scene, line);
    scene.appears("ready");
    session.type_in("late\n");
    scene.says("screen", "got-late");
    scene.says("screen", "end");
    assert_eq!(session.code(), 0);
}
