//! The command ends before anybody else can have its lock, whatever happens to `distlock`.

use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::scene::{Scene, alive, timed, until, usually};

const DEAF: &str = "trap '' TERM; touch ready; while :; do sleep 0.02; done";

/// Waits for the lock and says who of the old group was alive when it got it.
fn next_in(scene: &Scene, old: Pid) -> (Duration, bool) {
    let script = format!(
        "if [ -e /proc/{old} ] && ! grep -q '^State:.*[ZX]' /proc/{old}/status; \
         then echo alive; else echo gone; fi > next.new; mv next.new next"
    );
    let (took, done) = timed(|| scene.run(&["run", "-q", "lock", "--", "sh", "-c", &script]));
    assert_eq!(done.code, 0, "{done:?}");
    (took, scene.read("next").trim() == "alive")
}

#[test]
fn kill_9_of_distlock_ends_the_command_and_frees_the_lock_within_ttl_and_a_second() {
    for script in ["exec sleep 1000", DEAF] {
        let took = usually(|| {
            let scene = Scene::sqlite();
            let mut holder = scene.hold(&["--ttl", "2s"], script);
            if script == DEAF {
                scene.appears("ready");
            }
            let child = scene.pid("pid");
            let (took, ()) = timed(|| {
                holder.signal(Signal::KILL);
                let (_, was_alive) = next_in(&scene, child);
                assert!(!was_alive, "two at once");
            });
            assert_eq!(holder.code(), -1);
            scene.says("holder.log", "was killed; ending its command");
            took
        });
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}

#[test]
fn kill_9_of_distlock_asks_before_it_ends() {
    let scene = Scene::sqlite();
    let script = "trap 'touch asked; exit' TERM; touch ready; while :; do sleep 0.02; done";
    let holder = scene.hold(&["--ttl", "60s"], script);
    scene.appears("ready");
    let child = scene.pid("pid");
    let (took, ()) = timed(|| {
        holder.signal(Signal::KILL);
        until("the command ends", || !alive(child));
    });
    assert!(scene.path("asked").exists());
    assert!(took < Duration::from_secs(5), "a tenth of the TTL: {took:?}");
}

#[test]
fn kill_9_of_distlock_on_file_ends_the_command_at_once_and_the_lock_only_then() {
    // A deaf command lives for a moment after distlock. The kernel would free the lock at once,
    // and the waiter would see the command alive, if the guardian did not keep the descriptor.
    let took = usually(|| {
        let scene = Scene::file();
        let mut holder = scene.hold(&[], DEAF);
        scene.appears("ready");
        let child = scene.pid("pid");
        let mut waiter = scene.start(
            "waiter.log",
            &["run", "lock", "--", "sh", "-c", "cat /proc/$(cat pid)/status > seen; touch in"],
        );
        scene.says("waiter.log", "held by");
        let (took, ()) = timed(|| {
            holder.signal(Signal::KILL);
            scene.appears("in");
        });
        assert_eq!(waiter.code(), 0);
        assert_eq!(holder.code(), -1);
        let seen = scene.read("seen");
        assert!(seen.is_empty() || seen.contains("Z (zombie)"), "two at once: {seen}");
        assert!(!alive(child));
        took
    });
    // 100 ms on a quiet machine; this one may be busy.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn the_kernels_lock_of_a_killed_distlock_ends_after_its_command_and_not_before() {
    let scene = Scene::file();
    let script = "ps -o pgid= -p $$ | tr -d ' ' > group.new; mv group.new group; exec sleep 1000";
    let mut holder = scene.hold(&[], script);
    let (guardian, child) = (scene.pid("group"), scene.pid("pid"));
    // When the last parent of a group in this session dies and somebody in the group is stopped, the
    // kernel sends HUP and CONT to all of it. So this process adopts them: the group keeps a parent.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    // A guardian that gets no time is what a busy machine may make of it.
    rustix::process::kill_process(guardian, Signal::STOP).unwrap();
    holder.signal(Signal::KILL);
    assert_eq!(holder.code(), -1);
    let done = scene.run(&["run", "-w", "300ms", "lock", "--", "true"]);
    assert_eq!((done.code, alive(child)), (75, true), "two at once");
    rustix::process::kill_process(guardian, Signal::CONT).unwrap();
    assert_eq!(scene.run(&["run", "lock", "--", "true"]).code, 0);
    assert!(!alive(child));
}

#[test]
fn a_stopped_distlock_loses_its_command_to_the_guardian_and_says_so_when_it_goes_on() {
    for script in ["exec sleep 1000", DEAF] {
        let scene = Scene::sqlite();
        let mut holder = scene.hold(&["--ttl", "5s"], script);
        if script == DEAF {
            scene.appears("ready");
        }
        let old = scene.show("lock")["holders"][0]["token"].as_str().unwrap().to_owned();
        let child = scene.pid("pid");
        holder.signal(Signal::STOP);
        let (_, was_alive) = next_in(&scene, child);
        assert!(!was_alive, "two at once");
        scene.says("holder.log", "is stopped or stuck; ending its command");
        let token = scene.run(&["run", "lock", "--", "sh", "-c", "echo $DISTLOCK_TOKEN"]).out;
        assert!(token.trim().parse::<u64>().unwrap() > old.parse().unwrap());
        holder.signal(Signal::CONT);
        assert_eq!(holder.code(), 76, "{}", scene.read("holder.log"));
    }
}

#[test]
fn s40_a_lost_lock_ends_even_a_deaf_command_before_the_lease_can_pass_on() {
    let scene = Scene::sqlite();
    let mut holder = scene.hold(&["--ttl", "8s"], DEAF);
    scene.appears("ready");
    let child = scene.pid("pid");
    let mut waiter = scene.start(
        "waiter.log",
        &["run", "lock", "--", "sh", "-c", "cat /proc/$(cat pid)/status > seen; touch in"],
    );
    scene.waiting("lock", 1);
    assert_eq!(scene.run(&["break", "lock"]).code, 0);
    assert_eq!(holder.code(), 76);
    assert!(!alive(child));
    assert_eq!(waiter.code(), 0);
    assert_eq!(scene.read("seen"), "", "two at once");
}

#[test]
fn a_long_command_is_renewed_and_its_guardian_goes_with_it() {
    let scene = Scene::sqlite();
    let script = "ps -o pgid= -p $$ | tr -d ' ' > group.new; mv group.new group; \
                  until [ -e go ]; do sleep 0.02; done";
    let mut holder = scene.hold(&["--ttl", "5s"], script);
    until("it has outlived two leases", || {
        scene.show("lock")["holders"][0]["age_seconds"].as_f64().is_some_and(|age| age > 10.5)
    });
    // The group is named after its guardian.
    assert!(alive(scene.pid("group")));
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!((holder.code(), scene.read("holder.log").as_str()), (0, ""));
    assert!(!alive(scene.pid("group")));
}

#[test]
fn a_guardian_that_was_killed_is_said_and_the_lock_is_kept() {
    let scene = Scene::sqlite();
    let script = "ps -o pgid= -p $$ | tr -d ' ' > group.new; mv group.new group; \
                  until [ -e go ]; do sleep 0.02; done";
    let mut holder = scene.hold(&["--ttl", "6s"], script);
    rustix::process::kill_process(scene.pid("group"), Signal::KILL).unwrap();
    scene.says("holder.log", "the guardian process is gone");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 75);
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(holder.code(), 0);
}

#[test]
fn a_suspended_command_goes_on() {
    let scene = Scene::sqlite();
    let mut holder = scene.hold(&[], "until [ -e go ]; do sleep 0.02; done; exit 6");
    let child = scene.pid("pid");
    rustix::process::kill_process(child, Signal::STOP).unwrap();
    scene.says("holder.log", "cannot be suspended");
    holder.signal(Signal::TSTP);
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(holder.code(), 6);
}

/// timeout(1) makes a group of its own, setsid(1) a session, so a signal to the group misses them.
const STRAYS: [&str; 2] = [
    "timeout 1000 sh -c 'trap \"\" TERM; echo $$ > s.new; mv s.new stray; while :; do sleep 0.02; done'",
    "setsid sh -c 'echo $$ > s.new; mv s.new stray; while :; do sleep 0.02; done'",
];

#[test]
fn a_command_that_leaves_the_group_is_ended_with_distlock() {
    for script in STRAYS {
        let scene = Scene::sqlite();
        let holder = scene.hold(&["--ttl", "6s"], &format!("exec {script}"));
        let stray = scene.pid("stray");
        holder.signal(Signal::KILL);
        let (_, was_alive) = next_in(&scene, stray);
        assert!(!was_alive, "two at once: {script}");
    }
}

#[test]
fn a_command_that_leaves_the_group_is_ended_by_max_hold() {
    for script in STRAYS {
        let scene = Scene::sqlite();
        let mut holder = scene.hold(&["--max-hold", "6s"], &format!("exec {script}"));
        let stray = scene.pid("stray");
        assert_eq!(holder.code(), 124);
        assert!(!alive(stray), "{script}");
    }
}

#[test]
fn a_command_that_leaves_the_group_hears_what_distlock_hears() {
    let scene = Scene::sqlite();
    let mut holder = scene.hold(&[], "exec timeout 1000 sleep 1000");
    let group = scene.pid("pid");
    until("it has a group of its own", || rustix::process::getpgid(Some(group)) == Ok(group));
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
}
