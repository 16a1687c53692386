//! S40: what reaches the command, and what is left when it has ended.

use rustix::process::Signal;

use crate::scene::{Scene, alive, until};

const ALL: [(Signal, &str, i32); 4] = [
    (Signal::TERM, "TERM", 15),
    (Signal::INT, "INT", 2),
    (Signal::HUP, "HUP", 1),
    (Signal::QUIT, "QUIT", 3),
];

#[test]
fn s40_a_signal_ends_the_command_and_then_the_lock_is_free() {
    for store in [Scene::sqlite as fn() -> Scene, Scene::file] {
        for (signal, _, n) in ALL {
            let scene = store();
            let mut holder = scene.hold(&["--ttl", "1h"], "exec sleep 1000");
            let child = scene.pid("pid");
            holder.signal(signal);
            assert_eq!(holder.code(), 128 + n);
            assert!(!alive(child));
            assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
        }
    }
}

#[test]
fn s40_a_command_that_cleans_up_is_waited_for() {
    for (signal, name, _) in ALL {
        let scene = Scene::sqlite();
        let script = format!(
            "trap 'distlock run -n lock -- true; echo $? > during; exit 7' {name}; \
             touch ready; while :; do sleep 0.05; done"
        );
        let mut holder = scene.hold(&["--ttl", "1h"], &script);
        scene.appears("ready");
        holder.signal(signal);
        assert_eq!(holder.code(), 7, "{name}: {}", scene.read("holder.log"));
        assert_eq!(scene.read("during").trim(), "75", "held while it cleans up");
        assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
    }
}

#[test]
fn s40_the_whole_group_hears_it_and_nobody_of_it_stays() {
    let scene = Scene::sqlite();
    let script = "sh -c 'trap \"\" TERM; echo $$ > d.new; mv d.new deaf; while :; do sleep 0.1; done' & \
                  sleep 1000 & echo $! > t.new; mv t.new tame; wait";
    let mut holder = scene.hold(&["--kill-after", "500ms"], script);
    let (deaf, tame) = (scene.pid("deaf"), scene.pid("tame"));
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert!(!alive(deaf) && !alive(tame));
}

#[test]
fn s40_a_signal_while_waiting_leaves_the_line_at_once() {
    for store in [Scene::sqlite as fn() -> Scene, Scene::file] {
        let scene = store();
        let mut holder = scene.hold(&[], "until [ -e go ]; do sleep 0.02; done");
        for (signal, _, n) in ALL {
            let mut waiter = scene.start("waiter.log", &["run", "lock", "--", "touch", "ran"]);
            scene.says("waiter.log", "held by");
            waiter.signal(signal);
            assert_eq!(waiter.code(), 128 + n);
            scene.waiting("lock", 0);
        }
        std::fs::write(scene.path("go"), "").unwrap();
        assert_eq!(holder.code(), 0);
        assert!(!scene.path("ran").exists());
    }
}

#[test]
fn what_was_ignored_from_the_start_stays_ignored() {
    let scene = Scene::sqlite();
    let line = "trap '' HUP; exec distlock run lock -- sh -c 'echo $$ > pid; touch up; \
                until [ -e go ]; do sleep 0.02; done; exit 4'";
    let mut holder = scene.shell(line).spawn().unwrap();
    scene.appears("up");
    let pid = rustix::process::Pid::from_child(&holder);
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    rustix::process::kill_process(scene.pid("pid"), Signal::HUP).unwrap();
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(holder.wait().unwrap().code(), Some(4));
}

#[test]
fn the_command_gets_stdin_name_and_token() {
    use std::io::Write;
    let scene = Scene::sqlite();
    let script = "cat; echo \"$DISTLOCK_NAME:$DISTLOCK_TOKEN\"";
    let mut command = scene.distlock(&["run", "a lock", "--", "sh", "-c", script]);
    command.env("DISTLOCK_NAME", "inherited").env("DISTLOCK_TOKEN", "0");
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from stdin\n").unwrap();
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let (stdin, rest) = out.split_once('\n').unwrap();
    let (name, token) = rest.trim().split_once(':').unwrap();
    assert_eq!((stdin, name), ("from stdin", "a lock"));
    assert!(token.parse::<u64>().unwrap() > 1);
}

#[test]
fn an_owner_enters_again_with_the_same_token_and_others_wait() {
    let scene = Scene::sqlite();
    let inner = "echo $DISTLOCK_TOKEN > outer; \
                 distlock run -n --owner me lock -- sh -c 'echo $DISTLOCK_TOKEN > inner'; \
                 distlock run -n lock -- true; echo $? > other";
    let done = scene.run(&["run", "--owner", "me", "lock", "--", "sh", "-c", inner]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(scene.read("outer"), scene.read("inner"));
    assert_eq!(scene.read("other").trim(), "75");
}

#[test]
fn processes_left_behind_run_on_and_that_is_said() {
    let scene = Scene::sqlite();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! > left; exit 2";
    let done = scene.run(&["run", "lock", "--", "sh", "-c", script]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("left processes behind"), "{done:?}");
    let left = scene.pid("left");
    assert!(alive(left));
    rustix::process::kill_process(left, Signal::KILL).unwrap();
    until("it is gone", || !alive(left));
}
